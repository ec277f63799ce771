// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011).
//
// There is no state: a draw is a function of (seed, stream, step, index), so any mask, crop or order can be made again by
// anybody at any time. Key = the two halves of seed; counter = {index low, index high, step, stream}.
#ifndef PREBR_PHILOX_H
#define PREBR_PHILOX_H

#include <stdint.h>

#ifdef __CUDACC__
#define PHILOX_FN static inline __host__ __device__
#else
#define PHILOX_FN static inline
#endif

// What a draw is for. step means: the epoch (SHUFFLE), the step's first sample number over the whole run (see each use),
// the resampling number (SAMPLE), 0 (INIT), the number of the batch over the whole run (DROPOUT).
enum { STREAM_SHUFFLE = 0, STREAM_AUGMENT = 1, STREAM_SAMPLE = 2, STREAM_INIT = 3, STREAM_DROPOUT = 4 };

typedef struct { uint32_t v[4]; } Philox;

PHILOX_FN Philox philox(uint64_t seed, uint32_t stream, uint32_t step, uint64_t index) {
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32), c2 = step, c3 = stream;
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(b >> 32) ^ c1 ^ k0, n2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)b;
        c3 = (uint32_t)a;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    Philox r = {{c0, c1, c2, c3}};
    return r;
}

// A float in [0, 1) with 24 random bits, exact in float and double alike.
PHILOX_FN float philox_uniform(uint32_t bits) { return (float)(bits >> 8) * (1.0f / 16777216.0f); }

// An integer in [0, n), n >= 1.
PHILOX_FN uint32_t philox_below(uint32_t bits, uint32_t n) { return (uint32_t)(((uint64_t)bits * n) >> 32); }

#endif
