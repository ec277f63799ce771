// Batches ahead of the compute: a thread gathers the next raw batches while the current one is being used.
//
// The order of an epoch is a Fisher-Yates shuffle: for i = n-1 .. 1 swap(i, philox_below(philox(seed, STREAM_SHUFFLE, epoch, i).v[0], i+1)),
// from 0 .. n-1. A training batch is `batch` consecutive places of that order; the tail that does not fill a batch is dropped.
// With shuffle off (evaluation) the order is the file's and the last batch may be short.
#ifndef PREBR_LOADER_H
#define PREBR_LOADER_H

#include <stdint.h>
#include "images.h"

C_BEGIN

typedef struct {
    const uint8_t* raw;     // [count, channels, height, width]
    const int32_t* label;   // [count]
    const int32_t* index;   // [count] record numbers in the split
    int count;
} Batch;

typedef struct Loader Loader;

// Starts at batch number `first` of the whole run (epochs of floor(n / batch) batches one after the other); trouble when batch
// is larger than the split and shuffle is on.
Loader* loader_open(const Split* split, int channels, int height, int width, int batch, int shuffle, uint64_t seed, int64_t first);
// The next batch; its pointers stay valid until the next call. count 0 at the end when shuffle is off.
Batch loader_next(Loader* l);
void loader_close(Loader* l);

// The order itself, for tests and for whoever wants it: order [n].
void shuffle_order(int32_t* order, int n, uint64_t seed, uint32_t epoch);

C_END

#endif
