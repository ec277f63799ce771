// Dropout: one draw serves four neighbouring elements, so a thread takes four (two draws' worth where a pack has eight).
#include "dropout.h"

#include "cuda.cuh"
#include "philox.h"

// Elements first .. first + N; both are multiples of 4.
template <int N> __device__ void drop(floatx* y, const floatx* x, const floatx* residual, Dropout d, size_t first) {
    Pack<floatx, N> v = load<N>(x + first), r = {};
    if (residual) r = load<N>(residual + first);
    float keep = 1.0f / (1.0f - d.p);
    for (int k = 0; k < N; k += 4) {
        Philox draw = philox(d.seed, STREAM_DROPOUT, d.step, ((uint64_t)d.site << 40) + (first + k) / 4);
        for (int j = 0; j < 4; j++) {
            float factor = d.p > 0 ? (philox_uniform(draw.v[j]) < d.p ? 0.0f : keep) : 1.0f;
            v.v[k + j] = (floatx)((residual ? (float)r.v[k + j] : 0.0f) + factor * (float)v.v[k + j]);
        }
    }
    store<N>(y + first, v);
}

// Packs while they last, the rest in groups of four elements, which share a draw.
static __global__ void dropout_all(floatx* y, const floatx* x, const floatx* residual, Dropout d, size_t packs, size_t n) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x, first = packs * WIDE + (i - packs) * 4;
    if (i < packs) {
        drop<WIDE>(y, x, residual, d, i * WIDE);
        return;
    }
    Philox draw = philox(d.seed, STREAM_DROPOUT, d.step, ((uint64_t)d.site << 40) + first / 4);
    for (int j = 0; j < 4 && first + j < n; j++) {
        float factor = d.p > 0 ? (philox_uniform(draw.v[j]) < d.p ? 0.0f : 1.0f / (1.0f - d.p)) : 1.0f;
        y[first + j] = (floatx)((residual ? (float)residual[first + j] : 0.0f) + factor * (float)x[first + j]);
    }
}

void dropout_apply(floatx* y, const floatx* x, const floatx* residual, Dropout dropout, size_t n) {
    size_t packs = wide(0, y, x, residual) ? n / WIDE : 0, threads = packs + (n - packs * WIDE + 3) / 4;
    if (n) LAUNCH(dropout_all, blocks_for(threads, BLOCK), BLOCK, 0, y, x, residual, dropout, packs, n);
}
