// One thread gathers batches into a ring of three: one is being used, one is ready, one is being filled.
#include "loader.h"
#include "../kernels/philox.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { RING = 3 };

typedef struct {
    uint8_t* raw;        // [batch, channels, height, width]
    int32_t *label, *index;
    int count;
} Buffer;

struct Loader {
    const Split* split;
    size_t image_bytes;
    int batch, shuffle;
    uint64_t seed;
    int64_t next;             // batch number that the thread gathers next, over the whole run
    int32_t* order;           // [split->count] of the epoch that next is in
    int64_t order_epoch;      // -1: none yet
    Buffer ring[RING];

    pthread_t thread;
    pthread_mutex_t mutex;    // guards what follows
    pthread_cond_t filled, freed;
    int64_t taken, ready;     // batches handed out, batches gathered, since loader_open; batch i lies in ring[i % RING]
    int stop;
};

void shuffle_order(int32_t* order, int n, uint64_t seed, uint32_t epoch) {
    for (int i = 0; i < n; i++) order[i] = i;
    for (int i = n - 1; i > 0; i--) {
        uint32_t j = philox_below(philox(seed, STREAM_SHUFFLE, epoch, (uint64_t)i).v[0], (uint32_t)i + 1);
        int32_t swapped = order[i];
        order[i] = order[j];
        order[j] = swapped;
    }
}

// The places of batch number l->next go to b->index. Leaves count 0 after the end of an unshuffled split.
static void choose(Loader* l, Buffer* b) {
    int64_t n = l->split->count, first = l->next * l->batch;
    if (!l->shuffle) {
        int64_t left = first < n ? n - first : 0;
        b->count = (int)(left < l->batch ? left : l->batch);
        for (int i = 0; i < b->count; i++) b->index[i] = (int32_t)(first + i);
        return;
    }
    int64_t per_epoch = n / l->batch, epoch = l->next / per_epoch;
    if (epoch != l->order_epoch) shuffle_order(l->order, (int)n, l->seed, (uint32_t)epoch);
    l->order_epoch = epoch;
    b->count = l->batch;
    memcpy(b->index, l->order + l->next % per_epoch * l->batch, (size_t)l->batch * sizeof *b->index);
}

static void gather(Loader* l, Buffer* b) {
    choose(l, b);
    for (int i = 0; i < b->count; i++) {
        memcpy(b->raw + (size_t)i * l->image_bytes, l->split->image[b->index[i]], l->image_bytes);
        b->label[i] = l->split->label[b->index[i]];
    }
    l->next++;
}

// Runs until loader_close. Batch i may be gathered once batch i - RING is not in use any more: the caller holds number taken - 1.
static void* gather_all(void* loader) {
    Loader* l = loader;
    pthread_mutex_lock(&l->mutex);
    for (;;) {
        while (!l->stop && l->ready - RING >= l->taken - 1) pthread_cond_wait(&l->freed, &l->mutex);
        if (l->stop) break;
        Buffer* b = &l->ring[l->ready % RING];
        pthread_mutex_unlock(&l->mutex);
        gather(l, b);
        pthread_mutex_lock(&l->mutex);
        l->ready++;
        pthread_cond_signal(&l->filled);
    }
    pthread_mutex_unlock(&l->mutex);
    return NULL;
}

// Signals are for the main thread: the new one inherits a mask in which all are blocked.
static void start_thread(Loader* l) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&l->thread, NULL, gather_all, l);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error) trouble("cannot start the thread that reads images: %s", strerror(error));
}

Loader* loader_open(const Split* split, int channels, int height, int width, int batch, int shuffle, uint64_t seed, int64_t first) {
    if (shuffle && batch > split->count)
        trouble("a batch of %d images is more than the %d there are to train on: make it smaller", batch, split->count);
    Loader* l = allocate(1, sizeof *l);
    l->split = split;
    l->image_bytes = (size_t)channels * (size_t)height * (size_t)width;
    l->batch = batch;
    l->shuffle = shuffle;
    l->seed = seed;
    l->next = first;
    l->order_epoch = -1;
    if (shuffle) l->order = allocate((size_t)split->count, sizeof *l->order);
    for (int i = 0; i < RING; i++) {
        l->ring[i].raw = allocate((size_t)batch, l->image_bytes);
        l->ring[i].label = allocate((size_t)batch, sizeof(int32_t));
        l->ring[i].index = allocate((size_t)batch, sizeof(int32_t));
    }
    pthread_mutex_init(&l->mutex, NULL);
    pthread_cond_init(&l->filled, NULL);
    pthread_cond_init(&l->freed, NULL);
    start_thread(l);
    return l;
}

Batch loader_next(Loader* l) {
    pthread_mutex_lock(&l->mutex);
    int64_t i = l->taken++;
    pthread_cond_signal(&l->freed);   // the one handed out before
    while (l->ready <= i) pthread_cond_wait(&l->filled, &l->mutex);
    pthread_mutex_unlock(&l->mutex);
    const Buffer* b = &l->ring[i % RING];
    return (Batch){b->raw, b->label, b->index, b->count};
}

void loader_close(Loader* l) {
    if (!l) return;
    pthread_mutex_lock(&l->mutex);
    l->stop = 1;
    pthread_cond_signal(&l->freed);
    pthread_mutex_unlock(&l->mutex);
    pthread_join(l->thread, NULL);
    pthread_cond_destroy(&l->freed);
    pthread_cond_destroy(&l->filled);
    pthread_mutex_destroy(&l->mutex);
    for (int i = 0; i < RING; i++) {
        free(l->ring[i].raw);
        free(l->ring[i].label);
        free(l->ring[i].index);
    }
    free(l->order);
    free(l);
}
