// Token files written here byte by byte: read back, batches and orders against their recipes, and every kind of damage as one line.
#include "data/tokens.h"

#include "data/loader.h"
#include "kernels/philox.h"
#include "test.h"

enum { VOCABULARY = 50, PAD = 3 };

typedef struct { uint8_t* bytes; size_t n; size_t offsets, labels, ids, segments; } File;

static void put(File* f, size_t at, uint64_t value, size_t bytes) { memcpy(f->bytes + at, &value, bytes); }
static size_t padded(size_t n) { return (n + 7) / 8 * 8; }

// A file of these counts with random sequences of 1 .. 9 tokens; classes 0: scores.
static File file_make(const char* text, int classes, int train, int dev, int test, int labelled) {
    int count = train + dev + test, *length = malloc((size_t)(count + 1) * sizeof *length), total = 0;
    for (int i = 0; i < count; i++) total += length[i] = test_int(1, 9);
    File f = {NULL, 0, 64 + padded(strlen(text)), 0, 0, 0};
    f.labels = f.offsets + 8 * (size_t)(count + 1);
    f.ids = f.labels + padded(4 * (size_t)count);
    f.segments = f.ids + padded(4 * (size_t)total);
    f.n = f.segments + padded((size_t)total);
    f.bytes = aligned_alloc(64, (f.n + 63) / 64 * 64);
    memset(f.bytes, 0, f.n);
    memcpy(f.bytes, "prebrtok", 8);
    uint32_t fields[] = {1, VOCABULARY};
    memcpy(f.bytes + 8, fields, 8);
    put(&f, 16, 0x1234567890abcdef, 8);
    uint32_t rest[] = {(uint32_t)classes, (uint32_t)padded(strlen(text)), (uint32_t)train, (uint32_t)dev, (uint32_t)test, (uint32_t)labelled};
    memcpy(f.bytes + 24, rest, 24);
    put(&f, 48, (uint64_t)total, 8);
    put(&f, 56, PAD, 4);
    memcpy(f.bytes + 64, text, strlen(text));
    for (int i = 0, at = 0; i < count; i++) {
        put(&f, f.offsets + 8 * (size_t)i, (uint64_t)at, 8);
        float score = (float)i / 4;
        int label = classes ? i % classes : 0;
        memcpy(f.bytes + f.labels + 4 * i, classes ? (void*)&label : (void*)&score, 4);
        for (int j = 0; j < length[i]; j++, at++) {
            put(&f, f.ids + 4 * (size_t)at, (uint64_t)test_int(0, VOCABULARY - 1), 4);
            f.bytes[f.segments + (size_t)at] = (uint8_t)(j > length[i] / 2);
        }
    }
    put(&f, f.offsets + 8 * (size_t)count, (uint64_t)total, 8);
    free(length);
    return f;
}

static void test_reading(void) {
    File f = file_make("rte\naccuracy f1\nyes it is\nno\n", 2, 13, 4, 3, 3);
    Tokens t;
    char* wrong = tokens_parse(&t, f.bytes, f.n);
    CHECK(!wrong, "%s", wrong);
    CHECK(!strcmp(t.task, "rte") && t.metrics == 2 && !strcmp(t.metric[1], "f1") && t.classes == 2 && !strcmp(t.class_name[0], "yes it is"), "names");
    CHECK(t.vocabulary == VOCABULARY && t.pad == PAD && t.segments == 2 && t.hash == 0x1234567890abcdef, "header");
    CHECK(t.split[SPLIT_TRAIN].count == 13 && t.split[SPLIT_DEV].count == 4 && t.split[SPLIT_TEST].count == 3, "counts");
    CHECK(t.split[SPLIT_DEV].labelled && !t.split[SPLIT_TEST].labelled, "labelled");
    CHECK(t.split[SPLIT_DEV].label[1] == 14 % 2, "labels of the second split begin at the wrong place");

    TokenBatch b = token_batch_make(4, 9);
    int32_t index[4] = {3, 0, 2, 3};
    token_batch_fill(&b, &t, &t.split[SPLIT_DEV], index, 4);
    int longest = 0;
    for (int i = 0; i < 4; i++) {
        int record = 13 + index[i];
        uint64_t from, to;
        memcpy(&from, f.bytes + f.offsets + 8 * record, 8);
        memcpy(&to, f.bytes + f.offsets + 8 * record + 8, 8);
        CHECK(b.lengths[i] == (int)(to - from) && b.label[i] == record % 2, "sequence %d of the batch", i);
        longest = b.lengths[i] > longest ? b.lengths[i] : longest;
        for (int j = 0; j < b.length; j++) {
            uint32_t id = PAD;
            if (j < b.lengths[i]) memcpy(&id, f.bytes + f.ids + 4 * (from + (uint64_t)j), 4);
            int segment = j < b.lengths[i] ? f.bytes[f.segments + from + (uint64_t)j] : 0;
            CHECK(b.ids[i * b.length + j] == (int)id && b.segment[i * b.length + j] == segment, "token %d of sequence %d", j, i);
        }
    }
    CHECK(b.length == longest, "padded to %d, the longest has %d", b.length, longest);
    token_batch_free(&b);
    tokens_close(&t);
    free(f.bytes);

    f = file_make("stsb\npearson spearman\n", 0, 5, 0, 2, 1);
    wrong = tokens_parse(&t, f.bytes, f.n);
    CHECK(!wrong && t.classes == 0 && t.split[SPLIT_TRAIN].score[3] == 0.75f, "scores: %s", wrong ? wrong : "");
    tokens_close(&t);
    free(f.bytes);
}

static int length_of(const TokenSplit* s, int i) { return (int)(s->offset[i + 1] - s->offset[i]); }

// Grouping against its recipe, with another way of sorting: one length after the other.
static void test_order(int n, int batch, int grouped) {
    File f = file_make("t\naccuracy\na\nb\n", 2, n, 0, 0, 1);
    Tokens t;
    free(tokens_parse(&t, f.bytes, f.n));
    const TokenSplit* s = &t.split[SPLIT_TRAIN];
    uint64_t seed = 77;
    TokenOrder o = token_order_make(s, batch, grouped, seed);
    int per_epoch = n / batch, *order = malloc((size_t)n * sizeof *order), *sorted = malloc((size_t)n * sizeof *sorted);
    for (int epoch = 0; epoch < 3; epoch++) {
        shuffle_order(order, n, seed, (uint32_t)epoch);
        for (int run = 0, first = 0; grouped && first < per_epoch; run++, first += GROUP_BATCHES) {
            int batches = per_epoch - first < GROUP_BATCHES ? per_epoch - first : GROUP_BATCHES, count = 0, turn[GROUP_BATCHES];
            for (int length = 1; length <= 9; length++)
                for (int i = first * batch; i < (first + batches) * batch; i++)
                    if (length_of(s, order[i]) == length) sorted[count++] = order[i];
            for (int i = 0; i < batches; i++) turn[i] = i;
            for (int i = batches - 1; i > 0; i--) {
                uint32_t bits = philox(seed, STREAM_SHUFFLE, (uint32_t)epoch, ((uint64_t)1 << 40) + ((uint64_t)run << 20) + (uint64_t)i).v[0];
                int j = (int)((uint64_t)bits * (uint64_t)(i + 1) >> 32), swapped = turn[i];
                turn[i] = turn[j];
                turn[j] = swapped;
            }
            for (int i = 0; i < batches; i++) memcpy(order + (first + i) * batch, sorted + turn[i] * batch, (size_t)batch * sizeof *order);
        }
        for (int i = 0; i < per_epoch; i++) {
            const int32_t* got = token_order_batch(&o, (int64_t)epoch * per_epoch + i);
            CHECK(!memcmp(got, order + i * batch, (size_t)batch * sizeof *got), "n %d batch %d grouped %d epoch %d batch %d", n, batch, grouped, epoch, i);
        }
    }
    TokenOrder late = token_order_make(s, batch, grouped, seed);   // resuming starts in the middle
    CHECK(!memcmp(token_order_batch(&late, 3 * per_epoch - 1), token_order_batch(&o, 3 * per_epoch - 1), (size_t)batch * sizeof *order), "late start");
    token_order_free(&o);
    token_order_free(&late);
    free(order), free(sorted);
    tokens_close(&t);
    free(f.bytes);
}

static void refused(File* f, const char* expected) {
    Tokens t;
    char* wrong = tokens_parse(&t, f->bytes, f->n);
    CHECK(wrong && strstr(wrong, expected), "\"%s\" and not \"%s\"", wrong ? wrong : "accepted", expected);
    free(wrong);
    tokens_close(&t);
    free(f->bytes);
}

static void test_damage(void) {
    const char* names = "t\naccuracy\na\nb\n";
#define DAMAGED(change, expected) do { File f = file_make(names, 2, 6, 3, 2, 3); change; refused(&f, expected); } while (0)
    DAMAGED(f.bytes[0] = 'x', "is not a token file");
    DAMAGED(f.n = 10, "is not a token file");
    DAMAGED(f.bytes[8] = 2, "version 2");
    DAMAGED(put(&f, 12, 0, 4), "0 tokens of vocabulary");
    DAMAGED(put(&f, 56, 50, 4), "padding: 50");
    DAMAGED(f.n -= 8, "cut off or damaged");
    DAMAGED(put(&f, 32, 7, 4), "cut off or damaged");
    DAMAGED(put(&f, 48, UINT64_MAX, 8), "its header says");
    DAMAGED(put(&f, 28, 12, 4), "bytes of names");
    DAMAGED(put(&f, 24, 3, 4), "it names 2 of its 3 classes");
    DAMAGED(put(&f, 24, 1, 4), "more than its 1 classes");
    DAMAGED(f.bytes[66] = 'x', "metric 'xccuracy' is not known");
    DAMAGED(f.bytes[66] = 0, "zero byte among its names");
    DAMAGED(put(&f, f.offsets, 1, 8), "do not cover");
    DAMAGED(memcpy(f.bytes + f.offsets + 16, f.bytes + f.offsets + 8, 8), "train record 1 (from 0) is empty");
    DAMAGED(put(&f, f.offsets + 16, 1000000, 8), "train record 1 (from 0) lies outside");
    DAMAGED(put(&f, f.labels + 28, 2, 4), "dev record 1 (from 0) has label 2, outside the 2 classes 0 .. 1");
    DAMAGED(put(&f, f.labels + 28, UINT32_MAX, 4), "has label -1");
    DAMAGED(put(&f, f.ids, 50, 4), "train record 0 (from 0), token 0: token number 50, outside 0 .. 49");
    DAMAGED(f.bytes[f.segments] = 16, "segment 16");
    names = "t\nf1\na\nb\nc\n";
    File f = file_make(names, 3, 6, 3, 2, 3);
    refused(&f, "'f1' is for 2 classes");
    f = file_make("t\npearson\n", 0, 2, 0, 0, 1);
    put(&f, f.labels, 0x7fc00000, 4);
    refused(&f, "is no number");
    f = file_make("t\naccuracy\n", 0, 2, 0, 0, 1);
    refused(&f, "does not fit scores");
}

static void test_hash(void) {
    char path[] = "/tmp/prebr_vocab_XXXXXX";
    FILE* f = fdopen(mkstemp(path), "wb");
    fputs("[PAD]\r\nthe\n##s", f);
    fclose(f);
    uint64_t expected = 0xcbf29ce484222325u;
    for (const char* c = "[PAD]\nthe\n##s\n"; *c; c++) expected = (expected ^ (uint8_t)*c) * 0x100000001b3u;
    int tokens;
    CHECK(vocabulary_hash(path, &tokens) == expected && tokens == 3, "hash of %d tokens", tokens);
    unlink(path);
    CHECK(vocabulary_hash(path, &tokens) == 0 && tokens == 0, "a file that is not there");
}

int main(void) {
    test_reading();
    test_order(101, 4, 0);
    test_order(101, 4, 1);
    test_order(301, 3, 1);
    test_order(7, 7, 1);
    test_damage();
    test_hash();
    TEST_END();
}
