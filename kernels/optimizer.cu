// AdamW and SGD: one pass over weights, moments and gradients, bound by memory. Scalars of a step are made in double and rounded once; the
// arithmetic of an element follows PyTorch's order.
#include "optimizer.h"

#include "cuda.cuh"

typedef struct { float decay, rest1, beta2, rest2, step, root, eps; } AdamWStep;   // what elements of one t share

static __host__ __device__ AdamWStep adamw_step(AdamW o, int t) {
    AdamWStep s;
    s.decay = (float)(1 - o.lr * o.weight_decay);
    s.rest1 = (float)(1 - o.beta1);
    s.beta2 = (float)o.beta2;
    s.rest2 = (float)(1 - o.beta2);
    s.step = (float)(o.lr / (1 - pow(o.beta1, (double)t)));
    s.root = (float)sqrt(1 - pow(o.beta2, (double)t));
    s.eps = (float)o.eps;
    return s;
}

// copy of one pack, where there is one.
template <int N> __device__ __forceinline__ void store_copy(floatx* copy, Pack<float, N> w) {
    if (!copy) return;
    Pack<floatx, N> rounded;
    for (int k = 0; k < N; k++) rounded.v[k] = (floatx)w.v[k];
    store<N>(copy, rounded);
}

template <int N> __device__ void adamw(float* w, floatx* copy, float* m, float* v, const float* g, AdamWStep s, float scale) {
    Pack<float, N> wn = load<N>(w), mn = load<N>(m), vn = load<N>(v), gn = load<N>(g);
    for (int k = 0; k < N; k++) {
        float gk = gn.v[k] * scale;
        mn.v[k] += s.rest1 * (gk - mn.v[k]);
        vn.v[k] = vn.v[k] * s.beta2 + s.rest2 * gk * gk;
        wn.v[k] = wn.v[k] * s.decay - s.step * mn.v[k] / (sqrtf(vn.v[k]) / s.root + s.eps);
    }
    store<N>(w, wn);
    store_copy<N>(copy, wn);
    store<N>(m, mn);
    store<N>(v, vn);
}

template <int N> __device__ void sgd(float* w, floatx* copy, float* velocity, const float* g, SGD o, int first, float scale) {
    Pack<float, N> wn = load<N>(w), vn = load<N>(velocity), gn = load<N>(g);
    float lr = (float)o.lr, decay = (float)o.weight_decay, momentum = (float)o.momentum;
    for (int k = 0; k < N; k++) {
        float gk = gn.v[k] * scale + decay * wn.v[k];
        vn.v[k] = first ? gk : momentum * vn.v[k] + gk;
        wn.v[k] -= lr * vn.v[k];
    }
    store<N>(w, wn);
    store_copy<N>(copy, wn);
    store<N>(velocity, vn);
}

// ---- whole tensors: packs of 4 floats, then what is left of n one by one

enum { FOUR = 4 };

__device__ __forceinline__ floatx* offset(floatx* copy, size_t by) { return copy ? copy + by : NULL; }

static __global__ void adamw_all(float* w, floatx* copy, float* m, float* v, const float* g, AdamWStep s, const float* gradient_scale, size_t packs, size_t n) {
    float scale = *gradient_scale;
    if (isnan(scale)) return;
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x, one = packs * FOUR + (i - packs);
    if (i < packs) adamw<FOUR>(w + i * FOUR, offset(copy, i * FOUR), m + i * FOUR, v + i * FOUR, g + i * FOUR, s, scale);
    else if (one < n) adamw<1>(w + one, offset(copy, one), m + one, v + one, g + one, s, scale);
}

static __global__ void sgd_all(float* w, floatx* copy, float* velocity, const float* g, SGD o, int first, size_t packs, size_t n) {
    float scale = *o.gradient_scale;
    if (isnan(scale)) return;
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x, one = packs * FOUR + (i - packs);
    if (i < packs) sgd<FOUR>(w + i * FOUR, offset(copy, i * FOUR), velocity + i * FOUR, g + i * FOUR, o, first, scale);
    else if (one < n) sgd<1>(w + one, offset(copy, one), velocity + one, g + one, o, first, scale);
}

static size_t packs_of(size_t n, int aligned) { return aligned ? n / FOUR : 0; }

void adamw_dense(float* w, floatx* copy, float* m, float* v, const float* g, AdamW o, int t, size_t n) {
    size_t packs = packs_of(n, aligned16(w) && aligned16(copy) && aligned16(m) && aligned16(v) && aligned16(g));
    if (n) LAUNCH(adamw_all, blocks_for(n - packs * (FOUR - 1), BLOCK), BLOCK, 0, w, copy, m, v, g, adamw_step(o, t), o.gradient_scale, packs, n);
}

void sgd_dense(float* w, floatx* copy, float* velocity, const float* g, SGD o, int first, size_t n) {
    size_t packs = packs_of(n, aligned16(w) && aligned16(copy) && aligned16(velocity) && aligned16(g));
    if (n) LAUNCH(sgd_all, blocks_for(n - packs * (FOUR - 1), BLOCK), BLOCK, 0, w, copy, velocity, g, o, first, packs, n);
}

// ---- column blocks: a thread takes one pack of the compact columns over ROWS rows, so that the powers in a block's scalars are taken
// rarely. Grid: packs x tiles of rows.

enum { ROWS = 32 };

template <int N> __global__ void adamw_blocks(float* w, floatx* copy, float* m, float* v, const float* g, AdamW o, const int* t, const int* blocks, int n, int width, int rows, int cin) {
    int p = (blockIdx.x * blockDim.x + threadIdx.x) * N, j = p / width, columns = n * width, end = min(rows, (int)(blockIdx.y + 1) * ROWS);
    float scale = *o.gradient_scale;
    if (p >= columns || isnan(scale)) return;
    AdamWStep s = adamw_step(o, t[j]);
    size_t column = (size_t)blocks[j] * width + p % width;
    for (int r = blockIdx.y * ROWS; r < end; r++) {
        size_t at = (size_t)r * cin + column;
        adamw<N>(w + at, offset(copy, at), m + at, v + at, g + (size_t)r * columns + p, s, scale);
    }
}

template <int N> __global__ void sgd_blocks(float* w, floatx* copy, float* velocity, const float* g, SGD o, const int* t, const int* blocks, int n, int width, int rows, int cin) {
    int p = (blockIdx.x * blockDim.x + threadIdx.x) * N, j = p / width, columns = n * width, end = min(rows, (int)(blockIdx.y + 1) * ROWS);
    float scale = *o.gradient_scale;
    if (p >= columns || isnan(scale)) return;
    int first = t[j] == 1;
    size_t column = (size_t)blocks[j] * width + p % width;
    for (int r = blockIdx.y * ROWS; r < end; r++) {
        size_t at = (size_t)r * cin + column;
        sgd<N>(w + at, offset(copy, at), velocity + at, g + (size_t)r * columns + p, o, first, scale);
    }
}

enum { NARROW = 64 };   // threads of a block: there are few packs in a row

static int four_fit(const void* w, const void* copy, const void* m, const void* v, const void* g, int width, int cin) {
    return width % FOUR == 0 && cin % FOUR == 0 && aligned16(w) && aligned16(copy) && aligned16(m) && aligned16(v) && aligned16(g);
}

void adamw_columns(float* w, floatx* copy, float* m, float* v, const float* g, AdamW o, const int* t, const int* blocks, int n, int width, int rows, int cin) {
    if (n < 1 || rows < 1) return;
    size_t columns = (size_t)n * width;
    if (four_fit(w, copy, m, v, g, width, cin))
        LAUNCH(adamw_blocks<FOUR>, dim3(blocks_for(columns / FOUR, NARROW), blocks_for(rows, ROWS)), NARROW, 0, w, copy, m, v, g, o, t, blocks, n, width, rows, cin);
    else LAUNCH(adamw_blocks<1>, dim3(blocks_for(columns, NARROW), blocks_for(rows, ROWS)), NARROW, 0, w, copy, m, v, g, o, t, blocks, n, width, rows, cin);
}

void sgd_columns(float* w, floatx* copy, float* velocity, const float* g, SGD o, const int* t, const int* blocks, int n, int width, int rows, int cin) {
    if (n < 1 || rows < 1) return;
    size_t columns = (size_t)n * width;
    if (four_fit(w, copy, velocity, velocity, g, width, cin))
        LAUNCH(sgd_blocks<FOUR>, dim3(blocks_for(columns / FOUR, NARROW), blocks_for(rows, ROWS)), NARROW, 0, w, copy, velocity, g, o, t, blocks, n, width, rows, cin);
    else LAUNCH(sgd_blocks<1>, dim3(blocks_for(columns, NARROW), blocks_for(rows, ROWS)), NARROW, 0, w, copy, velocity, g, o, t, blocks, n, width, rows, cin);
}

// ---- global norm: a sum for each TILE elements, then the tiles' sums by one block, every thread a fixed share

enum { TILE = 8192 };

size_t squares_scratch(size_t n) { return (n + TILE - 1) / TILE * sizeof(double); }

static __global__ void squares_tiles(double* partial, const float* g, size_t n) {
    __shared__ double room[BLOCK / WARP];
    size_t start = (size_t)blockIdx.x * TILE, end = start + TILE < n ? start + TILE : n;
    double sum = 0;
    for (size_t i = start + threadIdx.x; i < end; i += BLOCK) sum += (double)g[i] * g[i];
    sum = block_sum(sum, room);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

static __global__ void squares_total(double* sum, const double* partial, int tiles) {
    __shared__ double room[BLOCK / WARP];
    double mine = 0;
    for (int i = threadIdx.x; i < tiles; i += BLOCK) mine += partial[i];
    mine = block_sum(mine, room);
    if (threadIdx.x == 0) *sum += mine;
}

void squares_add(double* sum, const float* g, size_t n, void* scratch) {
    double* partial = (double*)scratch;
    unsigned tiles = blocks_for(n, TILE);
    if (!n) return;
    LAUNCH(squares_tiles, tiles, BLOCK, 0, partial, g, n);
    LAUNCH(squares_total, 1, BLOCK, 0, sum, partial, (int)tiles);
}

static __global__ void scale_for(float* scale, const double* squares, double clip) {
    double norm = sqrt(*squares);
    *scale = !isfinite(norm) ? NAN : clip > 0 && norm > clip ? (float)(clip / (norm + 1e-6)) : 1;
}

void clip_scale(float* scale, const double* squares, double clip) { LAUNCH(scale_for, 1, 1, 0, scale, squares, clip); }
