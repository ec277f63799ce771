// Batches of sequences: which ones, in what order, padded to the longest of them.
#include "tokens.h"

#include <stdlib.h>
#include <string.h>

#include "../kernels/philox.h"
#include "loader.h"

TokenBatch token_batch_make(int batch, int longest) {
    TokenBatch b = {0};
    size_t n = (size_t)batch;
    b.ids = allocate(n * (size_t)longest, sizeof *b.ids);
    b.segment = allocate(n * (size_t)longest, sizeof *b.segment);
    b.lengths = allocate(n, sizeof *b.lengths);
    b.index = allocate(n, sizeof *b.index);
    b.label = allocate(n, sizeof *b.label);
    b.score = allocate(n, sizeof *b.score);
    return b;
}

void token_batch_free(TokenBatch* b) {
    free(b->ids);
    free(b->segment);
    free(b->lengths);
    free(b->index);
    free(b->label);
    free(b->score);
    *b = (TokenBatch){0};
}

static int sequence_length(const TokenSplit* s, int i) { return (int)(s->offset[i + 1] - s->offset[i]); }

void token_batch_fill(TokenBatch* b, const Tokens* t, const TokenSplit* s, const int32_t* index, int count) {
    b->count = count;
    b->length = 0;
    for (int i = 0; i < count; i++) {
        b->index[i] = index[i];
        b->lengths[i] = sequence_length(s, index[i]);
        b->label[i] = s->labelled && t->classes ? s->label[index[i]] : 0;
        b->score[i] = s->labelled && !t->classes ? s->score[index[i]] : 0;
        if (b->lengths[i] > b->length) b->length = b->lengths[i];
    }
    for (int i = 0; i < count; i++) {
        const uint32_t* ids = t->ids + s->offset[index[i]];
        const uint8_t* segment = t->segment + s->offset[index[i]];
        int32_t *to = b->ids + (size_t)i * b->length, *to_segment = b->segment + (size_t)i * b->length;
        for (int j = 0; j < b->length; j++) {
            to[j] = j < b->lengths[i] ? (int32_t)ids[j] : t->pad;
            to_segment[j] = j < b->lengths[i] ? segment[j] : 0;
        }
    }
}

TokenOrder token_order_make(const TokenSplit* s, int batch, int grouped, uint64_t seed) {
    TokenOrder o = {s, batch, grouped, seed, allocate((size_t)s->count, sizeof *o.order), -1};
    return o;
}

void token_order_free(TokenOrder* o) {
    free(o->order);
    o->order = NULL;
}

typedef struct { int32_t length, place, record; } Place;

static int shorter_first(const void* a, const void* b) {
    const Place *x = a, *y = b;
    return x->length != y->length ? (x->length > y->length) - (x->length < y->length) : (x->place > y->place) - (x->place < y->place);
}

// One run of batches: sorted by length, then its batches shuffled as wholes.
static void group_run(TokenOrder* o, int32_t* order, int batches, int run) {
    int n = batches * o->batch;
    Place* place = allocate((size_t)n, sizeof *place);
    int32_t* turn = allocate((size_t)batches, sizeof *turn);
    for (int i = 0; i < n; i++) place[i] = (Place){sequence_length(o->split, order[i]), i, order[i]};
    qsort(place, (size_t)n, sizeof *place, shorter_first);
    for (int i = 0; i < batches; i++) turn[i] = i;
    for (int i = batches - 1; i > 0; i--) {
        uint64_t index = ((uint64_t)1 << 40) + ((uint64_t)run << 20) + (uint64_t)i;
        uint32_t j = philox_below(philox(o->seed, STREAM_SHUFFLE, (uint32_t)o->epoch, index).v[0], (uint32_t)i + 1);
        int32_t swapped = turn[i];
        turn[i] = turn[j];
        turn[j] = swapped;
    }
    for (int i = 0; i < n; i++) order[i] = place[turn[i / o->batch] * o->batch + i % o->batch].record;
    free(place);
    free(turn);
}

const int32_t* token_order_batch(TokenOrder* o, int64_t number) {
    int per_epoch = o->split->count / o->batch;
    if (number / per_epoch != o->epoch) {
        o->epoch = number / per_epoch;
        shuffle_order(o->order, o->split->count, o->seed, (uint32_t)o->epoch);
        for (int first = 0, run = 0; o->grouped && first < per_epoch; first += GROUP_BATCHES, run++) {
            int batches = per_epoch - first < GROUP_BATCHES ? per_epoch - first : GROUP_BATCHES;
            group_run(o, o->order + (size_t)first * o->batch, batches, run);
        }
    }
    return o->order + number % per_epoch * o->batch;
}
