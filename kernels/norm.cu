// A warp takes a row: mean and variance in two passes over it (the second pass, and the one that writes, find the row in the first-level
// cache), so that memory is read once.
//
// Backward: dx likewise. For dgamma and dbeta every lane adds up its own columns over the rows of its warp, in registers; a block's eight
// warps are added in order through shared memory, and a second kernel adds the blocks in order. Rows too wide for registers,
// and rows that are no multiple of 16 bytes, have their column sums from a kernel of its own.
#include "norm.h"

#include "cuda.cuh"

enum { WARPS = BLOCK / WARP };

template <int N> __device__ void row_output(floatx* y, const floatx* x, float mean, float rstd, const float* gamma, const float* beta, int c) {
    for (int j = threadIdx.x % WARP * N; j < c; j += WARP * N) {
        Pack<floatx, N> v = load<N>(x + j);
        Pack<float, N> g = load<N>(gamma + j), b = load<N>(beta + j);
        for (int k = 0; k < N; k++) v.v[k] = (floatx)(((float)v.v[k] - mean) * rstd * g.v[k] + b.v[k]);
        store<N>(y + j, v);
    }
}

template <int N> __global__ void norm_forward(floatx* y, float* mean, float* rstd, const floatx* x, const float* gamma, const float* beta, float eps, int t, int c) {
    int i = blockIdx.x * WARPS + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (i >= t) return;
    const floatx* row = x + (size_t)i * c;
    float sum = 0, squares = 0;
    for (int j = lane * N; j < c; j += WARP * N) {
        Pack<floatx, N> v = load<N>(row + j);
        for (int k = 0; k < N; k++) sum += (float)v.v[k];
    }
    float m = warp_sum(sum) / c;
    for (int j = lane * N; j < c; j += WARP * N) {
        Pack<floatx, N> v = load<N>(row + j);
        for (int k = 0; k < N; k++) squares += ((float)v.v[k] - m) * ((float)v.v[k] - m);
    }
    float r = 1.0f / sqrtf(warp_sum(squares) / c + eps);
    row_output<N>(y + (size_t)i * c, row, m, r, gamma, beta, c);
    if (lane == 0 && mean) mean[i] = m;
    if (lane == 0 && rstd) rstd[i] = r;
}

template <int N> __global__ void norm_remake(floatx* y, const floatx* x, const float* mean, const float* rstd, const float* gamma, const float* beta, int t, int c) {
    int i = blockIdx.x * WARPS + threadIdx.x / WARP;
    if (i < t) row_output<N>(y + (size_t)i * c, x + (size_t)i * c, mean[i], rstd[i], gamma, beta, c);
}

template <int N> __global__ void norm_remake_columns(floatx* packed, const floatx* x, const float* mean, const float* rstd, const float* gamma, const float* beta,
                                                     const int* blocks, int n, int width, int t, int c) {
    size_t all = (size_t)t * n * width, step = (size_t)gridDim.x * blockDim.x * N;
    for (size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * N; i < all; i += step) {
        Source s = source_of(i, blocks, n, width);
        Pack<floatx, N> v = load<N>(x + (size_t)s.row * c + s.column);
        Pack<float, N> g = load<N>(gamma + s.column), b = load<N>(beta + s.column);
        for (int k = 0; k < N; k++) v.v[k] = (floatx)(((float)v.v[k] - mean[s.row]) * rstd[s.row] * g.v[k] + b.v[k]);
        store<N>(packed + i, v);
    }
}

void layernorm_forward(floatx* y, float* mean, float* rstd, const floatx* x, const float* gamma, const float* beta, float eps, int t, int c) {
    if (t < 1) return;
    if (wide(c, x, y, gamma, beta)) LAUNCH(norm_forward<WIDE>, blocks_for(t, WARPS), BLOCK, 0, y, mean, rstd, x, gamma, beta, eps, t, c);
    else LAUNCH(norm_forward<1>, blocks_for(t, WARPS), BLOCK, 0, y, mean, rstd, x, gamma, beta, eps, t, c);
}

void layernorm_remake(floatx* y, const floatx* x, const float* mean, const float* rstd, const float* gamma, const float* beta, int t, int c) {
    if (t < 1) return;
    if (wide(c, x, y, gamma, beta)) LAUNCH(norm_remake<WIDE>, blocks_for(t, WARPS), BLOCK, 0, y, x, mean, rstd, gamma, beta, t, c);
    else LAUNCH(norm_remake<1>, blocks_for(t, WARPS), BLOCK, 0, y, x, mean, rstd, gamma, beta, t, c);
}

void layernorm_remake_columns(floatx* packed, const floatx* x, const float* mean, const float* rstd, const float* gamma, const float* beta,
                              const int* blocks, int n, int width, int t, int c) {
    size_t all = (size_t)t * n * width;
    if (!all) return;
    if (wide(width, packed, x, gamma, beta) && c % WIDE == 0)
        LAUNCH(norm_remake_columns<WIDE>, loop_blocks(all / WIDE), BLOCK, 0, packed, x, mean, rstd, gamma, beta, blocks, n, width, t, c);
    else LAUNCH(norm_remake_columns<1>, loop_blocks(all), BLOCK, 0, packed, x, mean, rstd, gamma, beta, blocks, n, width, t, c);
}

// ---- backward

enum { MOST_TILES = 512 };   // blocks that share out the rows; two to four for each multiprocessor of the largest cards

static int tiles_of(int t) {
    int tiles = (t + WARPS - 1) / WARPS;
    return tiles < MOST_TILES ? tiles : MOST_TILES;
}

size_t layernorm_scratch(int t, int c) { return (size_t)tiles_of(t) * 2 * c * sizeof(float); }

// With x^ = (x - mean) rstd and g = dy gamma: dx = rstd (g - mean(g) - x^ mean(g x^)), means over the row. The row's first pass also adds to
// dgamma and dbeta of the lane's own columns; ROUNDS = packs of a row for each lane, 0: any number, and no parameters.
template <int N, int ROUNDS> __device__ void row_backward(floatx* dx, const floatx* dy, const floatx* x, float mean, float rstd, const float* gamma,
                                                          float beta_dx, int c, Pack<float, N>* dgamma, Pack<float, N>* dbeta) {
    int lane = threadIdx.x % WARP, rounds = ROUNDS ? ROUNDS : (c + WARP * N - 1) / (WARP * N);
    float sum_g = 0, sum_gx = 0;
#pragma unroll
    for (int r = 0; r < rounds; r++) {
        int j = (r * WARP + lane) * N;
        if (j >= c) continue;
        Pack<floatx, N> g = load<N>(dy + j), v = load<N>(x + j);
        Pack<float, N> gm = load<N>(gamma + j);
        for (int k = 0; k < N; k++) {
            float d = (float)g.v[k], x_hat = ((float)v.v[k] - mean) * rstd;
            sum_g += d * gm.v[k];
            sum_gx += d * gm.v[k] * x_hat;
            if (ROUNDS) dgamma[r].v[k] += d * x_hat;
            if (ROUNDS) dbeta[r].v[k] += d;
        }
    }
    float mean_g = warp_sum(sum_g) / c, mean_gx = warp_sum(sum_gx) / c;
#pragma unroll
    for (int r = 0; r < rounds; r++) {
        int j = (r * WARP + lane) * N;
        if (j >= c) continue;
        Pack<floatx, N> g = load<N>(dy + j), v = load<N>(x + j), out = {};
        Pack<float, N> gm = load<N>(gamma + j);
        if (beta_dx != 0) out = load<N>(dx + j);   // else dx may hold anything
        for (int k = 0; k < N; k++) {
            float d = rstd * ((float)g.v[k] * gm.v[k] - mean_g - ((float)v.v[k] - mean) * rstd * mean_gx);
            out.v[k] = (floatx)(beta_dx != 0 ? beta_dx * (float)out.v[k] + d : d);
        }
        store<N>(dx + j, out);
    }
}

// dx alone.
template <int N> __global__ void norm_backward_rows(floatx* dx, const floatx* dy, const floatx* x, const float* mean, const float* rstd, const float* gamma,
                                                    float beta_dx, int t, int c) {
    int i = blockIdx.x * WARPS + threadIdx.x / WARP;
    size_t at = (size_t)i * c;
    if (i < t) row_backward<N, 0>(dx + at, dy + at, x + at, mean[i], rstd[i], gamma, beta_dx, c, NULL, NULL);
}

// dx, and partial [tiles][2][c] = this block's dgamma and dbeta, of FLOATS columns for each lane. Without partial the arithmetic is the same, so that dx has the same bits.
template <int FLOATS> __global__ void __launch_bounds__(BLOCK, 1) norm_backward(floatx* dx, float* partial, const floatx* dy, const floatx* x, const float* mean,
                                                                             const float* rstd, const float* gamma, float beta_dx, int t, int c) {
    enum { N = WIDE, ROUNDS = FLOATS / N };
    __shared__ float sums[WARPS][WARP * N];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    Pack<float, N> parameters[2][ROUNDS] = {};
    for (int i = blockIdx.x * WARPS + warp; i < t; i += gridDim.x * WARPS) {
        size_t at = (size_t)i * c;
        row_backward<N, ROUNDS>(dx + at, dy + at, x + at, mean[i], rstd[i], gamma, beta_dx, c, parameters[0], parameters[1]);
    }
    if (!partial) return;
#pragma unroll
    for (int which = 0; which < 2; which++) {
#pragma unroll
        for (int r = 0; r < ROUNDS; r++) {
            for (int k = 0; k < N; k++) sums[warp][lane * N + k] = parameters[which][r].v[k];
            __syncthreads();
            for (int column = threadIdx.x; column < WARP * N; column += BLOCK) {
                float all = 0;
                for (int w = 0; w < WARPS; w++) all += sums[w][column];
                int j = r * WARP * N + column;
                if (j < c) partial[((size_t)blockIdx.x * 2 + which) * c + j] = all;
            }
            __syncthreads();
        }
    }
}

// partial [tiles][2][c] for any c: a thread takes a column of a tile's rows.
static __global__ void norm_parameters(float* partial, const floatx* dy, const floatx* x, const float* mean, const float* rstd, int t, int c) {
    int j = blockIdx.x * blockDim.x + threadIdx.x, tile = blockIdx.y, tiles = gridDim.y;
    if (j >= c) return;
    float dgamma = 0, dbeta = 0;
    int end = (int)((int64_t)t * (tile + 1) / tiles);
    for (int i = (int)((int64_t)t * tile / tiles); i < end; i++) {
        float d = (float)dy[(size_t)i * c + j];
        dgamma += d * (((float)x[(size_t)i * c + j] - mean[i]) * rstd[i]);
        dbeta += d;
    }
    partial[(size_t)tile * 2 * c + j] = dgamma;
    partial[((size_t)tile * 2 + 1) * c + j] = dbeta;
}

// dgamma and dbeta [c] (blockIdx.y 0 and 1; each may be NULL) = beta themselves + the tiles' sums: a warp's lanes take neighbouring columns, its block's warps
// every eighth tile.
static __global__ void norm_add_tiles(float* dgamma, float* dbeta, const float* partial, float beta, int tiles, int c) {
    __shared__ double sums[WARPS][WARP];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, j = blockIdx.x * WARP + lane, which = blockIdx.y;
    double sum = 0;
    for (int k = warp; j < c && k < tiles; k += WARPS) sum += partial[((size_t)k * 2 + which) * c + j];
    sums[warp][lane] = sum;
    __syncthreads();
    float* out = which ? dbeta : dgamma;
    if (warp > 0 || j >= c || !out) return;
    sum = beta == 0 ? 0 : (double)beta * out[j];
    for (int w = 0; w < WARPS; w++) sum += sums[w][lane];
    out[j] = (float)sum;
}

void layernorm_backward(floatx* dx, float* dgamma, float* dbeta, const floatx* dy, const floatx* x, const float* mean, const float* rstd,
                        const float* gamma, float beta_dx, float beta_dp, int t, int c, void* scratch) {
    float* partial = (float*)scratch;
    int packs = wide(c, dx, dy, x, gamma), tiles = tiles_of(t), floats = (c + WARP * WIDE - 1) / (WARP * WIDE) * WIDE, fused = packs && floats <= 48;
    if (t < 1) return;
    if (!dgamma && !dbeta) partial = NULL;
    if (fused) {
        if (floats <= 8) LAUNCH(norm_backward<8>, tiles, BLOCK, 0, dx, partial, dy, x, mean, rstd, gamma, beta_dx, t, c);
        else if (floats <= 16) LAUNCH(norm_backward<16>, tiles, BLOCK, 0, dx, partial, dy, x, mean, rstd, gamma, beta_dx, t, c);
        else if (floats <= 24) LAUNCH(norm_backward<24>, tiles, BLOCK, 0, dx, partial, dy, x, mean, rstd, gamma, beta_dx, t, c);
        else if (floats <= 32) LAUNCH(norm_backward<32>, tiles, BLOCK, 0, dx, partial, dy, x, mean, rstd, gamma, beta_dx, t, c);
        else LAUNCH(norm_backward<48>, tiles, BLOCK, 0, dx, partial, dy, x, mean, rstd, gamma, beta_dx, t, c);
    } else {
        if (partial) LAUNCH(norm_parameters, dim3(blocks_for(c, BLOCK), tiles), BLOCK, 0, partial, dy, x, mean, rstd, t, c);   // before dx, which may be dy
        if (packs) LAUNCH(norm_backward_rows<WIDE>, blocks_for(t, WARPS), BLOCK, 0, dx, dy, x, mean, rstd, gamma, beta_dx, t, c);
        else LAUNCH(norm_backward_rows<1>, blocks_for(t, WARPS), BLOCK, 0, dx, dy, x, mean, rstd, gamma, beta_dx, t, c);
    }
    if (partial) LAUNCH(norm_add_tiles, dim3(blocks_for(c, WARP), 2), BLOCK, 0, dgamma, dbeta, partial, beta_dp, tiles, c);
}
