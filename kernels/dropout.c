// Dropout on the CPU: 64 elements at a time, whose 16 draws fill the lanes of a vector.
#include "dropout.h"

#include "philox.h"

enum { DRAWS = 16, BLOCK = 4 * DRAWS };

// factor [BLOCK] of elements first .. first + BLOCK, first a multiple of 4.
static void factors(float* factor, Dropout d, size_t first) {
    float keep = 1.0f / (1.0f - d.p), part[4][DRAWS];
    uint64_t index = ((uint64_t)d.site << 40) + first / 4;
    #pragma omp simd
    for (int q = 0; q < DRAWS; q++) {
        Philox r = philox(d.seed, STREAM_DROPOUT, d.step, index + (uint64_t)q);
        part[0][q] = philox_uniform(r.v[0]) < d.p ? 0.0f : keep;
        part[1][q] = philox_uniform(r.v[1]) < d.p ? 0.0f : keep;
        part[2][q] = philox_uniform(r.v[2]) < d.p ? 0.0f : keep;
        part[3][q] = philox_uniform(r.v[3]) < d.p ? 0.0f : keep;
    }
    for (int i = 0; i < BLOCK; i++) factor[i] = part[i % 4][i / 4];
}

void dropout_apply(floatx* y, const floatx* x, const floatx* residual, Dropout dropout, size_t n) {
    #pragma omp parallel for schedule(static)
    for (size_t first = 0; first < n; first += BLOCK) {
        int m = n - first < BLOCK ? (int)(n - first) : BLOCK;
        float factor[BLOCK];
        if (dropout.p > 0) factors(factor, dropout, first);
        else
            for (int i = 0; i < BLOCK; i++) factor[i] = 1;
        if (residual)
            for (int i = 0; i < m; i++) y[first + i] = residual[first + i] + factor[i] * x[first + i];
        else
            for (int i = 0; i < m; i++) y[first + i] = factor[i] * x[first + i];
    }
}
