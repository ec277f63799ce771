// Patches, tokens and pooling: copies and short sums, bound by memory. A thread takes a pack of an output row; sums over the batch and over
// tokens run in order, each by one thread.
#include "embed.h"

#include "cuda.cuh"

// Output pack i: patch i / (row / N), and in it (channel, y, x), of which x runs over neighbouring pixels.
template <int N> __global__ void gather_patches(floatx* patches, const floatx* images, int channels, int size, int patch, size_t packs) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= packs) return;
    int grid = size / patch, row = channels * patch * patch, column = (int)(i % (row / N)) * N;
    size_t p = i / (row / N);
    int gx = (int)(p % grid), gy = (int)(p / grid % grid), ch = column / (patch * patch), y = column / patch % patch, x = column % patch;
    size_t line = (p / grid / grid * channels + ch) * size + gy * patch + y;
    store<N>(patches + i * N, load<N>(images + line * size + gx * patch + x));
}

void patches_gather(floatx* patches, const floatx* images, int b, int channels, int size, int patch) {
    size_t all = (size_t)b * (size / patch) * (size / patch) * channels * patch * patch;
    if (!all) return;
    if (wide(patch, patches, images) && size % WIDE == 0)
        LAUNCH(gather_patches<WIDE>, blocks_for(all / WIDE, BLOCK), BLOCK, 0, patches, images, channels, size, patch, all / WIDE);
    else LAUNCH(gather_patches<1>, blocks_for(all, BLOCK), BLOCK, 0, patches, images, channels, size, patch, all);
}

template <int N> __global__ void embed_tokens(floatx* tokens, const floatx* embedded, const float* cls, const float* position, int n, int prefix, int c, size_t packs) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= packs) return;
    int t = prefix + n, column = (int)(i % (c / N)) * N, token = (int)(i / (c / N) % t);
    size_t s = i / (c / N) / t;
    Pack<float, N> sum = load<N>(position + (size_t)token * c + column);
    Pack<floatx, N> out;
    if (token < prefix) {
        Pack<float, N> v = load<N>(cls + column);
        for (int k = 0; k < N; k++) sum.v[k] += v.v[k];
    } else {
        Pack<floatx, N> v = load<N>(embedded + (s * n + token - prefix) * c + column);
        for (int k = 0; k < N; k++) sum.v[k] += (float)v.v[k];
    }
    for (int k = 0; k < N; k++) out.v[k] = (floatx)sum.v[k];
    store<N>(tokens + i * N, out);
}

void tokens_forward(floatx* tokens, const floatx* embedded, const float* cls, const float* position, int b, int n, int prefix, int c) {
    size_t all = (size_t)b * (prefix + n) * c;
    if (!all) return;
    if (wide(c, tokens, embedded, cls, position))
        LAUNCH(embed_tokens<WIDE>, blocks_for(all / WIDE, BLOCK), BLOCK, 0, tokens, embedded, cls, position, n, prefix, c, all / WIDE);
    else LAUNCH(embed_tokens<1>, blocks_for(all, BLOCK), BLOCK, 0, tokens, embedded, cls, position, n, prefix, c, all);
}

enum { AHEAD = 8 };

// A thread takes a pack of a token's place in the sequence, over the whole batch.
template <int N> __global__ void embed_tokens_backward(floatx* dembedded, float* dcls, float* dposition, const floatx* dtokens, float beta, int b, int n, int prefix, int c) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, t = prefix + n, token = i / (c / N), column = i % (c / N) * N;
    if (token >= t) return;
    float sum[N] = {0};
    for (int s0 = 0; s0 < b; s0 += AHEAD) {   // so many loads are under way at once
        Pack<floatx, N> v[AHEAD];
#pragma unroll
        for (int q = 0; q < AHEAD; q++)
            if (s0 + q < b) v[q] = load<N>(dtokens + ((size_t)(s0 + q) * t + token) * c + column);
#pragma unroll
        for (int q = 0; q < AHEAD; q++) {
            if (s0 + q >= b) break;
            for (int k = 0; k < N; k++) sum[k] += (float)v[q].v[k];
            if (token >= prefix) store<N>(dembedded + ((size_t)(s0 + q) * n + token - prefix) * c + column, v[q]);
        }
    }
    float* place = dposition ? dposition + (size_t)token * c + column : NULL;
    for (int k = 0; k < N && place; k++) place[k] = beta == 0 ? sum[k] : beta * place[k] + sum[k];
    for (int k = 0; k < N && dcls && token < prefix; k++) dcls[column + k] = beta == 0 ? sum[k] : beta * dcls[column + k] + sum[k];
}

void tokens_backward(floatx* dembedded, float* dcls, float* dposition, const floatx* dtokens, float beta, int b, int n, int prefix, int c) {
    size_t all = (size_t)(prefix + n) * c;
    if (!all) return;
    if (wide(c, dembedded, dtokens))
        LAUNCH(embed_tokens_backward<WIDE>, blocks_for(all / WIDE, 128), 128, 0, dembedded, dcls, dposition, dtokens, beta, b, n, prefix, c);
    else LAUNCH(embed_tokens_backward<1>, blocks_for(all, 128), 128, 0, dembedded, dcls, dposition, dtokens, beta, b, n, prefix, c);
}

static __global__ void pool(floatx* pooled, const floatx* tokens, int mean, int prefix, int b, int t, int c) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= b * c) return;
    const floatx* x = tokens + (size_t)(i / c) * t * c + i % c;
    float sum = 0;
    for (int k = prefix; k < t && mean; k++) sum += (float)x[(size_t)k * c];
    pooled[i] = mean ? (floatx)(sum / (t - prefix)) : x[0];
}

void pool_forward(floatx* pooled, const floatx* tokens, int mean, int prefix, int b, int t, int c) {
    if (b > 0) LAUNCH(pool, blocks_for((size_t)b * c, 128), 128, 0, pooled, tokens, mean, prefix, b, t, c);
}

static __global__ void unpool(floatx* dtokens, const floatx* dpooled, int mean, int prefix, int t, int c, size_t all) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= all) return;
    int column = (int)(i % c), token = (int)(i / c % t);
    float share = mean ? (token >= prefix ? 1.0f / (t - prefix) : 0) : token == 0;
    dtokens[i] = share == 0 ? (floatx)0.0f : (floatx)(share * (float)dpooled[i / c / t * c + column]);
}

void pool_backward(floatx* dtokens, const floatx* dpooled, int mean, int prefix, int b, int t, int c) {
    size_t all = (size_t)b * t * c;
    if (all) LAUNCH(unpool, blocks_for(all, BLOCK), BLOCK, 0, dtokens, dpooled, mean, prefix, t, c, all);
}
