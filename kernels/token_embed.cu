// Token embeddings. Backward needs no sorting and no atomics: of the tokens that name a word, the first one's block adds up all of them, in
// the order of the batch.
#include "token_embed.h"

#include "cuda.cuh"

template <int N> __global__ void embed(floatx* y, const float* word, const float* position, const float* type, const int* ids, const int* types, int t, int c, size_t packs) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= packs) return;
    size_t token = i / (c / N);
    int column = (int)(i % (c / N)) * N;
    Pack<float, N> w = load<N>(word + (size_t)ids[token] * c + column), p = load<N>(position + token % t * c + column);
    Pack<float, N> s = load<N>(type + (size_t)types[token] * c + column);
    Pack<floatx, N> out;
    for (int k = 0; k < N; k++) out.v[k] = (floatx)(w.v[k] + p.v[k] + s.v[k]);
    store<N>(y + i * N, out);
}

void token_embed_forward(floatx* y, const float* word, const float* position, const float* type, const int* ids, const int* types, int b, int t, int c) {
    size_t all = (size_t)b * t * c;
    if (!all) return;
    if (wide(c, y, word, position, type))
        LAUNCH(embed<WIDE>, blocks_for(all / WIDE, BLOCK), BLOCK, 0, y, word, position, type, ids, types, t, c, all / WIDE);
    else LAUNCH(embed<1>, blocks_for(all, BLOCK), BLOCK, 0, y, word, position, type, ids, types, t, c, all);
}

enum { NARROW = 128 };

// A block for each token; those whose word came before have nothing to do. The others look for it in the tokens that follow, a chunk at a time, and
// add up what they find in order.
static __global__ void add_words(float* dword, const floatx* dy, const int* ids, int tokens, int c) {
    __shared__ int room[NARROW / WARP], same[NARROW];
    int i = blockIdx.x, id = ids[i], earlier = 0, found;
    for (int j = threadIdx.x; j < i; j += NARROW) earlier |= ids[j] == id;
    if (block_sum(earlier, room)) return;
    for (int start = i; start < tokens; start += NARROW) {
        int j = start + threadIdx.x, match = j < tokens && ids[j] == id, before = block_before(match, &found, room);
        if (match) same[before] = j;
        __syncthreads();
        for (int k = threadIdx.x; found && k < c; k += NARROW) {
            float sum = dword[(size_t)id * c + k];
            for (int m = 0; m < found; m++) sum += (float)dy[(size_t)same[m] * c + k];
            dword[(size_t)id * c + k] = sum;
        }
        __syncthreads();
    }
}

// Grid: columns x places in the sequence.
static __global__ void add_positions(float* dposition, const floatx* dy, int b, int t, int c) {
    int k = blockIdx.x * NARROW + threadIdx.x, place = blockIdx.y;
    if (k >= c) return;
    float sum = dposition[(size_t)place * c + k];
    for (int s = 0; s < b; s++) sum += (float)dy[((size_t)s * t + place) * c + k];
    dposition[(size_t)place * c + k] = sum;
}

enum { WARPS = BLOCK / WARP, AHEAD = 16 };

// Few rows, each the sum of very many, so in double: a warp's lanes take neighbouring columns, a block's warps every eighth token. Grid: columns
// x kinds.
static __global__ void add_types(float* dtype, const floatx* dy, const int* types, int tokens, int c) {
    __shared__ double sums[WARPS][WARP];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, k = blockIdx.x * WARP + lane, kind = blockIdx.y;
    double sum = 0;
    for (int start = warp; k < c && start < tokens; start += AHEAD * WARPS) {   // so many loads are under way at once
        float v[AHEAD];
        int is[AHEAD];
#pragma unroll
        for (int q = 0; q < AHEAD; q++) {
            int i = start + q * WARPS;
            is[q] = i < tokens ? types[i] : -1;
            v[q] = i < tokens ? (float)dy[(size_t)i * c + k] : 0;
        }
#pragma unroll
        for (int q = 0; q < AHEAD; q++)
            if (is[q] == kind) sum += (double)v[q];
    }
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || k >= c) return;
    for (int w = 1; w < WARPS; w++) sum += sums[w][lane];
    dtype[(size_t)kind * c + k] += (float)sum;
}

void token_embed_backward(float* dword, float* dposition, float* dtype, const floatx* dy, const int* ids, const int* types, float beta, int b, int t,
                          int c, int vocabulary, int positions, int kinds) {
    if (dword && beta == 0) device_zero(dword, (size_t)vocabulary * c * sizeof *dword);
    if (dposition && beta == 0) device_zero(dposition, (size_t)positions * c * sizeof *dposition);
    if (dtype && beta == 0) device_zero(dtype, (size_t)kinds * c * sizeof *dtype);
    if (b < 1 || t < 1) return;
    if (dword) LAUNCH(add_words, b * t, NARROW, 0, dword, dy, ids, b * t, c);
    if (dposition) LAUNCH(add_positions, dim3(blocks_for(c, NARROW), t), NARROW, 0, dposition, dy, b, t, c);
    if (dtype) LAUNCH(add_types, dim3(blocks_for(c, WARP), kinds), BLOCK, 0, dtype, dy, types, b * t, c);
}
