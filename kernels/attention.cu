// Attention without tensor cores, in float (bfloat16 on cards that have them: attention_mma.cuh): tiles of queries and keys in shared memory,
// 256 threads as 16 x 16. Thread (y, x) computes the elements (y + 16 i, x + 16 j) of every tile, so the 16 threads that share a row are neighbours
// in a warp.
//
// Backward needs no atomics: one kernel owns a tile of keys and passes over the queries (dK, dV), another owns a tile of queries and
// passes over the keys (dQ). Both make the softmax weights again from the log-sum-exp; `GIVEN` reads them instead (materialized).
//
// Head sizes between those compiled are padded with zeros in shared memory.
#include "attention.h"

#include <stdio.h>
#include <stdlib.h>

#include "cuda.cuh"
#include "philox.h"

enum { SIDE = 16, PAD = 4 };   // PAD keeps the rows of a tile 16-byte aligned and off each other's banks

// Tiles for head size D: forward and the softmax weights FQ x FK, backward BQ x BK (queries x keys). Up to D = 128 all fit into 64 KiB.
template <int D> struct Tiles { enum { FQ = 32, FK = 64, BQ = 32, BK = 32 }; };
template <> struct Tiles<32> { enum { FQ = 64, FK = 64, BQ = 64, BK = 64 }; };
template <> struct Tiles<64> { enum { FQ = 64, FK = 64, BQ = 32, BK = 64 }; };
template <> struct Tiles<128> { enum { FQ = 32, FK = 64, BQ = 16, BK = 32 }; };
template <> struct Tiles<256> { enum { FQ = 32, FK = 32, BQ = 16, BK = 16 }; };

typedef struct {
    const floatx* qkv;     // [b, t, 3, h, d]
    const int* lengths;    // [b] or NULL
    Dropout dropout;
    int t, h, d;
    int packs;             // whether rows can be read 16 bytes at a time
} Problem;

// Where a head's rows are: row i of q, k, v and their gradients at + i * row, of o and its gradient at + i * o_row; of lse and the like
// [b, h, t] at rows + i.
typedef struct { size_t q, k, v, row, o, o_row, rows; int keys; } Head;

__device__ __forceinline__ Head head_of(const Problem& p) {
    size_t batch = blockIdx.y / p.h, head = blockIdx.y % p.h, wide = (size_t)p.h * p.d;
    Head at;
    at.q = batch * p.t * 3 * wide + head * p.d;
    at.k = at.q + wide;
    at.v = at.k + wide;
    at.row = 3 * wide;
    at.o = batch * p.t * wide + head * p.d;
    at.o_row = wide;
    at.rows = blockIdx.y * (size_t)p.t;
    at.keys = p.lengths ? p.lengths[batch] : p.t;
    return at;
}

// to [ROWS, D + PAD] = scale times `rows` rows of d elements, zeros around them.
template <int D, int ROWS> __device__ void load_tile(float* to, const floatx* from, size_t row, int rows, int d, float scale, int packs) {
    enum { N = WIDE };
    for (int i = threadIdx.x; i < ROWS * D / N; i += BLOCK) {
        int r = i / (D / N), c = i % (D / N) * N;
        float* at = to + r * (D + PAD) + c;
        if (packs && r < rows && c < d) {
            Pack<floatx, N> v = load<N>(from + r * row + c);
            for (int k = 0; k < N; k++) at[k] = scale * (float)v.v[k];
        } else {
            for (int k = 0; k < N; k++) at[k] = r < rows && c + k < d ? scale * (float)from[r * row + c + k] : 0;
        }
    }
}

__device__ __forceinline__ int tile_y(void) { return threadIdx.x / SIDE; }
__device__ __forceinline__ int tile_x(void) { return threadIdx.x % SIDE; }

// s = A B': A [16 R, D], B [16 C, D].
template <int D, int R, int C> __device__ void product_nt(float (&s)[R][C], const float* a, const float* b) {
    for (int i = 0; i < R; i++)
        for (int j = 0; j < C; j++) s[i][j] = 0;
#pragma unroll 4
    for (int k = 0; k < D; k += 4) {
        float4 x[R], y[C];
        for (int i = 0; i < R; i++) x[i] = *(const float4*)(a + (tile_y() + SIDE * i) * (D + PAD) + k);
        for (int j = 0; j < C; j++) y[j] = *(const float4*)(b + (tile_x() + SIDE * j) * (D + PAD) + k);
        for (int i = 0; i < R; i++)
            for (int j = 0; j < C; j++) s[i][j] += x[i].x * y[j].x + x[i].y * y[j].y + x[i].z * y[j].z + x[i].w * y[j].w;
    }
}

// o += P V: P [16 R, K], V [K, D].
template <int D, int K, int R> __device__ void product_nn(float (&o)[R][D / SIDE], const float* p, const float* v) {
#pragma unroll 4
    for (int k = 0; k < K; k++) {
        float x[R];
        for (int i = 0; i < R; i++) x[i] = p[(tile_y() + SIDE * i) * (K + PAD) + k];
        for (int j = 0; j < D / SIDE; j++) {
            float y = v[k * (D + PAD) + tile_x() + SIDE * j];
            for (int i = 0; i < R; i++) o[i][j] += x[i] * y;
        }
    }
}

// o += P' X: P [ROWS, K] with K = 16 R, X [ROWS, D].
template <int D, int ROWS, int K> __device__ void product_tn(float (&o)[K / SIDE][D / SIDE], const float* p, const float* x) {
#pragma unroll 4
    for (int r = 0; r < ROWS; r++) {
        float a[K / SIDE];
        for (int i = 0; i < K / SIDE; i++) a[i] = p[r * (K + PAD) + tile_y() + SIDE * i];
        for (int j = 0; j < D / SIDE; j++) {
            float y = x[r * (D + PAD) + tile_x() + SIDE * j];
            for (int i = 0; i < K / SIDE; i++) o[i][j] += a[i] * y;
        }
    }
}

template <int R, int C> __device__ void store_scores(float* p, const float (&s)[R][C]) {
    for (int i = 0; i < R; i++)
        for (int j = 0; j < C; j++) p[(tile_y() + SIDE * i) * (SIDE * C + PAD) + tile_x() + SIDE * j] = s[i][j];
}

// Rows first .. of a gradient or output: those below `rows` are written, zeros from `live` on.
template <int R, int C> __device__ void store_rows(floatx* to, size_t row, const float (&o)[R][C], int rows, int live, int d) {
    for (int i = 0; i < R; i++)
        for (int j = 0; j < C; j++) {
            int r = tile_y() + SIDE * i, c = tile_x() + SIDE * j;
            if (r < rows && c < d) to[r * row + c] = (floatx)(r < live ? o[i][j] : 0);
        }
}

// Over the 16 threads of a row.
__device__ __forceinline__ float row_max(float v) {
    for (int other = SIDE / 2; other > 0; other /= 2) v = fmaxf(v, __shfl_xor_sync(ALL_LANES, v, other));
    return v;
}
__device__ __forceinline__ float row_sum(float v) {
    for (int other = SIDE / 2; other > 0; other /= 2) v += __shfl_xor_sync(ALL_LANES, v, other);
    return v;
}

// Which weights of a tile (queries i0 .., keys j0 .., both multiples of 4) dropout keeps, four keys to a draw and to a byte of kept
// [ROWS, COLUMNS / 4]: bit j % 4.
template <int ROWS, int COLUMNS> __device__ void draw_tile(uint8_t* kept, const Problem& p, const Head& at, int i0, int j0) {
    if (p.dropout.p == 0) return;
    for (int n = threadIdx.x; n < ROWS * COLUMNS / 4; n += BLOCK) {
        size_t row = at.rows + i0 + n / (COLUMNS / 4), group = j0 / 4 + n % (COLUMNS / 4);
        Philox r = philox(p.dropout.seed, STREAM_DROPOUT, p.dropout.step, ((uint64_t)p.dropout.site << 40) + row * ((p.t + 3) / 4) + group);
        unsigned bits = 0;
        for (int k = 0; k < 4; k++) bits |= (unsigned)(philox_uniform(r.v[k]) >= p.dropout.p) << k;
        kept[n] = (uint8_t)bits;
    }
}

// The factor of this thread's element (i, j) of the tile: 0, or 1 / (1 - p).
template <int COLUMNS> __device__ __forceinline__ float factor_of(const uint8_t* kept, const Problem& p, int i, int j) {
    if (p.dropout.p == 0) return 1;
    int row = tile_y() + SIDE * i, column = tile_x() + SIDE * j;
    return kept[row * (COLUMNS / 4) + column / 4] >> column % 4 & 1 ? 1.0f / (1.0f - p.dropout.p) : 0.0f;
}

// ---- forward. Grid: tiles of queries x heads.

template <int D> __global__ void __launch_bounds__(BLOCK, 1) flash_forward(floatx* o, float* lse, Problem p) {
    enum { Q = Tiles<D>::FQ, K = Tiles<D>::FK, R = Q / SIDE, C = K / SIDE };
    DYNAMIC_SHARED(float, q);
    float *kv = q + Q * (D + PAD), *weights = kv + K * (D + PAD);
    Head at = head_of(p);
    int i0 = blockIdx.x * Q, n = min(Q, p.t - i0);
    __shared__ uint8_t drawn[Q * K / 4];
    float max[R], sum[R], out[R][D / SIDE] = {}, s[R][C];
    for (int i = 0; i < R; i++) {
        max[i] = -INFINITY;
        sum[i] = 0;
    }
    load_tile<D, Q>(q, p.qkv + at.q + i0 * at.row, at.row, n, p.d, 1.0f / sqrtf((float)p.d), p.packs);
    for (int j0 = 0; j0 < at.keys; j0 += K) {
        int m = min(K, at.keys - j0);
        __syncthreads();
        load_tile<D, K>(kv, p.qkv + at.k + j0 * at.row, at.row, m, p.d, 1, p.packs);
        draw_tile<Q, K>(drawn, p, at, i0, j0);
        __syncthreads();
        product_nt<D>(s, q, kv);
        for (int i = 0; i < R; i++) {
            float most = max[i];
            for (int j = 0; j < C; j++) {
                if (tile_x() + SIDE * j >= m) s[i][j] = -INFINITY;
                most = fmaxf(most, s[i][j]);
            }
            most = row_max(most);
            float factor = expf(max[i] - most);
            max[i] = most;
            sum[i] *= factor;
            for (int j = 0; j < D / SIDE; j++) out[i][j] *= factor;
            for (int j = 0; j < C; j++) {
                s[i][j] = expf(s[i][j] - most);
                sum[i] += s[i][j];
                s[i][j] *= factor_of<K>(drawn, p, i, j);
            }
        }
        store_scores(weights, s);
        __syncthreads();
        load_tile<D, K>(kv, p.qkv + at.v + j0 * at.row, at.row, m, p.d, 1, p.packs);
        __syncthreads();
        product_nn<D, K>(out, weights, kv);
    }
    for (int i = 0; i < R; i++) {
        float all = row_sum(sum[i]);
        for (int j = 0; j < D / SIDE; j++) out[i][j] /= all;
        int r = tile_y() + SIDE * i;
        if (tile_x() == 0 && r < n) lse[at.rows + i0 + r] = at.keys ? max[i] + logf(all) : -INFINITY;
    }
    store_rows(o + at.o + i0 * at.o_row, at.o_row, out, n, at.keys ? n : 0, p.d);
}

// probs [b, h, t, t] from the log-sum-exp; zeros for keys that are padding.
template <int D> __global__ void __launch_bounds__(BLOCK, 1) softmax_weights(floatx* probs, const float* lse, Problem p) {
    enum { Q = Tiles<D>::FQ, K = Tiles<D>::FK, R = Q / SIDE, C = K / SIDE };
    DYNAMIC_SHARED(float, q);
    float* k = q + Q * (D + PAD);
    Head at = head_of(p);
    int i0 = blockIdx.x * Q, n = min(Q, p.t - i0);
    float s[R][C];
    load_tile<D, Q>(q, p.qkv + at.q + i0 * at.row, at.row, n, p.d, 1.0f / sqrtf((float)p.d), p.packs);
    for (int j0 = 0; j0 < p.t; j0 += K) {
        __syncthreads();
        load_tile<D, K>(k, p.qkv + at.k + j0 * at.row, at.row, at.keys - j0, p.d, 1, p.packs);
        __syncthreads();
        product_nt<D>(s, q, k);
        for (int i = 0; i < R; i++)
            for (int j = 0; j < C; j++) {
                int r = i0 + tile_y() + SIDE * i, c = j0 + tile_x() + SIDE * j;
                if (r < p.t && c < p.t) probs[(at.rows + r) * p.t + c] = (floatx)(c < at.keys ? expf(s[i][j] - lse[at.rows + r]) : 0);
            }
    }
}

// ---- backward. D_i = the sum over keys of P dP: flash has it as dO . O, materialized (whose P may be pruned) adds it up.

// dot [b, h, t]; a warp takes a row. Grid: rows x heads.
static __global__ void flash_dot(float* dot, const floatx* d_o, const floatx* o, Problem p) {
    Head at = head_of(p);
    int i = blockIdx.x * (BLOCK / WARP) + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (i >= p.t) return;
    float sum = 0;
    for (int c = lane; c < p.d; c += WARP) sum += (float)d_o[at.o + i * at.o_row + c] * (float)o[at.o + i * at.o_row + c];
    sum = warp_sum(sum);
    if (lane == 0) dot[at.rows + i] = sum;
}

template <int D> __global__ void __launch_bounds__(BLOCK, 1) given_dot(float* dot, const floatx* d_o, const floatx* probs, Problem p) {
    enum { Q = Tiles<D>::FQ, K = Tiles<D>::FK, R = Q / SIDE, C = K / SIDE };
    DYNAMIC_SHARED(float, g);
    float* v = g + Q * (D + PAD);
    Head at = head_of(p);
    int i0 = blockIdx.x * Q, n = min(Q, p.t - i0);
    __shared__ uint8_t drawn[Q * K / 4];
    float s[R][C], sum[R] = {0};
    load_tile<D, Q>(g, d_o + at.o + i0 * at.o_row, at.o_row, n, p.d, 1, p.packs);
    for (int j0 = 0; j0 < at.keys; j0 += K) {
        __syncthreads();
        load_tile<D, K>(v, p.qkv + at.v + j0 * at.row, at.row, at.keys - j0, p.d, 1, p.packs);
        draw_tile<Q, K>(drawn, p, at, i0, j0);
        __syncthreads();
        product_nt<D>(s, g, v);
        for (int i = 0; i < R; i++)
            for (int j = 0; j < C; j++) {
                int r = i0 + tile_y() + SIDE * i, c = j0 + tile_x() + SIDE * j;
                if (r < p.t && c < at.keys) sum[i] += (float)probs[(at.rows + r) * p.t + c] * s[i][j] * factor_of<K>(drawn, p, i, j);
            }
    }
    for (int i = 0; i < R; i++) {
        float all = row_sum(sum[i]);
        int r = tile_y() + SIDE * i;
        if (tile_x() == 0 && r < n) dot[at.rows + i0 + r] = all;
    }
}

typedef struct {
    const floatx *d_o, *probs;   // probs: GIVEN only
    const float *lse, *dot;      // lse: not GIVEN
} Upstream;

// In: s = q k' (unless GIVEN), dp = do v'. Out: s the dropped-out weights, dp = scale P (dP keep - D), the gradient of the unscaled scores.
template <bool GIVEN, int R, int C> __device__ void score_gradients(float (&s)[R][C], float (&dp)[R][C], const uint8_t* drawn, const Upstream& up, const Problem& p,
                                                                    const Head& at, int i0, int j0) {
    float scale = 1.0f / sqrtf((float)p.d);
    for (int i = 0; i < R; i++) {
        int r = i0 + tile_y() + SIDE * i;
        float dot = r < p.t ? up.dot[at.rows + r] : 0, lse = !GIVEN && r < p.t ? up.lse[at.rows + r] : 0;
        for (int j = 0; j < C; j++) {
            int c = j0 + tile_x() + SIDE * j;
            float w = 0, k = 1;
            if (r < p.t && c < at.keys) {
                w = GIVEN ? (float)up.probs[(at.rows + r) * p.t + c] : expf(scale * s[i][j] - lse);
                k = factor_of<SIDE * C>(drawn, p, i, j);
            }
            s[i][j] = w * k;
            dp[i][j] = scale * w * (dp[i][j] * k - dot);
        }
    }
}

// dK and dV of a tile of keys. Grid: tiles of keys x heads.
template <int D, bool GIVEN> __global__ void __launch_bounds__(BLOCK, 1) backward_keys(floatx* dqkv, Upstream up, Problem p) {
    enum { Q = Tiles<D>::BQ, K = Tiles<D>::BK, R = Q / SIDE, C = K / SIDE };
    DYNAMIC_SHARED(float, k);
    float *v = k + K * (D + PAD), *q = v + K * (D + PAD), *g = q + Q * (D + PAD), *scores = g + Q * (D + PAD);
    Head at = head_of(p);
    int j0 = blockIdx.x * K;
    __shared__ uint8_t drawn[Q * K / 4];
    float dk[C][D / SIDE] = {}, dv[C][D / SIDE] = {}, s[R][C], dp[R][C];
    load_tile<D, K>(k, p.qkv + at.k + j0 * at.row, at.row, at.keys - j0, p.d, 1, p.packs);
    load_tile<D, K>(v, p.qkv + at.v + j0 * at.row, at.row, at.keys - j0, p.d, 1, p.packs);
    for (int i0 = 0; i0 < p.t && j0 < at.keys; i0 += Q) {
        __syncthreads();
        load_tile<D, Q>(q, p.qkv + at.q + i0 * at.row, at.row, p.t - i0, p.d, 1, p.packs);
        load_tile<D, Q>(g, up.d_o + at.o + i0 * at.o_row, at.o_row, p.t - i0, p.d, 1, p.packs);
        draw_tile<Q, K>(drawn, p, at, i0, j0);
        __syncthreads();
        if (!GIVEN) product_nt<D>(s, q, k);
        product_nt<D>(dp, g, v);
        score_gradients<GIVEN>(s, dp, drawn, up, p, at, i0, j0);
        store_scores(scores, s);
        __syncthreads();
        product_tn<D, Q, K>(dv, scores, g);
        __syncthreads();
        store_scores(scores, dp);
        __syncthreads();
        product_tn<D, Q, K>(dk, scores, q);
    }
    store_rows(dqkv + at.k + j0 * at.row, at.row, dk, p.t - j0, at.keys - j0, p.d);
    store_rows(dqkv + at.v + j0 * at.row, at.row, dv, p.t - j0, at.keys - j0, p.d);
}

// dQ of a tile of queries. Grid: tiles of queries x heads.
template <int D, bool GIVEN> __global__ void __launch_bounds__(BLOCK, 1) backward_queries(floatx* dqkv, Upstream up, Problem p) {
    enum { Q = Tiles<D>::BQ, K = Tiles<D>::BK, R = Q / SIDE, C = K / SIDE };
    DYNAMIC_SHARED(float, k);
    float *v = k + K * (D + PAD), *q = v + K * (D + PAD), *g = q + Q * (D + PAD), *scores = g + Q * (D + PAD);
    Head at = head_of(p);
    int i0 = blockIdx.x * Q;
    __shared__ uint8_t drawn[Q * K / 4];
    float dq[R][D / SIDE] = {}, s[R][C], dp[R][C];
    if (!GIVEN) load_tile<D, Q>(q, p.qkv + at.q + i0 * at.row, at.row, p.t - i0, p.d, 1, p.packs);
    load_tile<D, Q>(g, up.d_o + at.o + i0 * at.o_row, at.o_row, p.t - i0, p.d, 1, p.packs);
    for (int j0 = 0; j0 < at.keys; j0 += K) {
        __syncthreads();
        load_tile<D, K>(k, p.qkv + at.k + j0 * at.row, at.row, at.keys - j0, p.d, 1, p.packs);
        load_tile<D, K>(v, p.qkv + at.v + j0 * at.row, at.row, at.keys - j0, p.d, 1, p.packs);
        draw_tile<Q, K>(drawn, p, at, i0, j0);
        __syncthreads();
        if (!GIVEN) product_nt<D>(s, q, k);
        product_nt<D>(dp, g, v);
        score_gradients<GIVEN>(s, dp, drawn, up, p, at, i0, j0);
        store_scores(scores, dp);
        __syncthreads();
        product_nn<D, K>(dq, scores, k);
    }
    store_rows(dqkv + at.q + i0 * at.row, at.row, dq, p.t - i0, p.t - i0, p.d);
}

#ifdef PREBR_BF16
#include "attention_mma.cuh"
#endif

// ---- one compiled head size

template <int D> struct Sized {
    enum : int {
        FORWARD = 4 * ((Tiles<D>::FQ + Tiles<D>::FK) * (D + PAD) + Tiles<D>::FQ * (Tiles<D>::FK + PAD)),
        PAIR = 4 * (Tiles<D>::FQ + Tiles<D>::FK) * (D + PAD),
        BACKWARD = 4 * (2 * (Tiles<D>::BQ + Tiles<D>::BK) * (D + PAD) + Tiles<D>::BQ * (Tiles<D>::BK + PAD))
    };

    static void forward(floatx* o, float* lse, const Problem& p, int heads) {
        MORE_SHARED(flash_forward<D>, FORWARD);
        LAUNCH(flash_forward<D>, dim3(blocks_for(p.t, Tiles<D>::FQ), heads), BLOCK, FORWARD, o, lse, p);
    }

    static void weights(floatx* probs, const float* lse, const Problem& p, int heads) {
        MORE_SHARED(softmax_weights<D>, PAIR);
        LAUNCH(softmax_weights<D>, dim3(blocks_for(p.t, Tiles<D>::FQ), heads), BLOCK, PAIR, probs, lse, p);
    }

    static void dot(float* to, const floatx* d_o, const floatx* probs, const Problem& p, int heads) {
        MORE_SHARED(given_dot<D>, PAIR);
        LAUNCH(given_dot<D>, dim3(blocks_for(p.t, Tiles<D>::FQ), heads), BLOCK, PAIR, to, d_o, probs, p);
    }

    template <bool GIVEN> static void backward(floatx* dqkv, const Upstream& up, const Problem& p, int heads) {
        MORE_SHARED((backward_keys<D, GIVEN>), BACKWARD);
        LAUNCH((backward_keys<D, GIVEN>), dim3(blocks_for(p.t, Tiles<D>::BK), heads), BLOCK, BACKWARD, dqkv, up, p);
        MORE_SHARED((backward_queries<D, GIVEN>), BACKWARD);
        LAUNCH((backward_queries<D, GIVEN>), dim3(blocks_for(p.t, Tiles<D>::BQ), heads), BLOCK, BACKWARD, dqkv, up, p);
    }
};

// call: an expression with Sized<D>.
#define UP_TO_128(d, call) \
    if ((d) <= 32) { enum { D = 32 }; call; } \
    else if ((d) <= 64) { enum { D = 64 }; call; } \
    else if ((d) <= 80) { enum { D = 80 }; call; } \
    else if ((d) <= 96) { enum { D = 96 }; call; } \
    else if ((d) <= 128) { enum { D = 128 }; call; }
#define FOR_HEAD_SIZE(d, call) \
    do { \
        UP_TO_128(d, call) \
        else if ((d) <= 256 && device_capability() >= 80) { enum { D = 256 }; call; } \
        else { \
            fprintf(stderr, "attention: heads of %d elements, at most %d are possible on this GPU\n", d, device_capability() >= 80 ? 256 : 128); \
            exit(1); \
        } \
    } while (0)

static Problem problem(const floatx* qkv, const floatx* d_o, const int* lengths, Dropout dropout, int t, int h, int d) {
    Problem p = {qkv, lengths, dropout, t, h, d, wide(d, qkv, d_o)};
    return p;
}

void attention_flash_forward(floatx* o, float* lse, const floatx* qkv, const int* lengths, Dropout dropout, int b, int t, int h, int d, void* scratch) {
    Problem p = problem(qkv, NULL, lengths, dropout, t, h, d);
#ifdef PREBR_BF16
    if (mma_fits(p)) {
        UP_TO_128(d, MmaSized<D>::forward(o, lse, p, b * h))
        return;
    }
#endif
    FOR_HEAD_SIZE(d, Sized<D>::forward(o, lse, p, b * h));
}

size_t attention_flash_scratch(int b, int t, int h, int d) { return (size_t)b * h * t * sizeof(float); }

void attention_flash_backward(floatx* dqkv, const floatx* d_o, const floatx* o, const float* lse, const floatx* qkv, const int* lengths,
                              Dropout dropout, int b, int t, int h, int d, void* scratch) {
    Problem p = problem(qkv, d_o, lengths, dropout, t, h, d);
    Upstream up = {d_o, NULL, lse, (const float*)scratch};
    LAUNCH(flash_dot, dim3(blocks_for(t, BLOCK / WARP), b * h), BLOCK, 0, (float*)scratch, d_o, o, p);
#ifdef PREBR_BF16
    if (mma_fits(p)) {
        MmaUpstream with_lse = {d_o, lse, (const float*)scratch};
        UP_TO_128(d, MmaSized<D>::backward(dqkv, with_lse, p, b * h))
        return;
    }
#endif
    FOR_HEAD_SIZE(d, Sized<D>::template backward<false>(dqkv, up, p, b * h));
}

size_t attention_materialized_scratch(int b, int t, int h, int d) { return (size_t)b * h * t * sizeof(float); }

void attention_materialized_forward(floatx* o, floatx* probs, const floatx* qkv, const int* lengths, Dropout dropout, int b, int t, int h, int d,
                                    void* scratch) {
    Problem p = problem(qkv, NULL, lengths, dropout, t, h, d);
    float* lse = (float*)scratch;
    FOR_HEAD_SIZE(d, Sized<D>::forward(o, lse, p, b * h));
    FOR_HEAD_SIZE(d, Sized<D>::weights(probs, lse, p, b * h));
}

void attention_materialized_backward(floatx* dqkv, const floatx* d_o, const floatx* probs, const floatx* qkv, const int* lengths, Dropout dropout,
                                     int b, int t, int h, int d, void* scratch) {
    Problem p = problem(qkv, d_o, lengths, dropout, t, h, d);
    Upstream up = {d_o, probs, NULL, (const float*)scratch};
    FOR_HEAD_SIZE(d, Sized<D>::dot((float*)scratch, d_o, probs, p, b * h));
    FOR_HEAD_SIZE(d, Sized<D>::template backward<true>(dqkv, up, p, b * h));
}
