// Flash attention on tensor cores, for bfloat16 and cards of compute capability 8.0 and newer (FlashAttention-2, Dao, 2023).
//
// A block has four warps, and each warp owns 16 rows of the block's tile of 64: queries in forward and for dQ, keys for dK and dV. It passes over
// the tiles of the other side, which come into shared memory by asynchronous copies, the next one while this one is worked on. All three kernels are
// made of two products:
//   scores       S [16, n] = own rows [16, D] times rows [n, D]'
//   accumulate   O [16, D] += S, rounded to bfloat16, times rows [n, D]
// and since a score's place in the registers is that of the second product's operand, scores never go through memory. Backward makes the scores twice,
// once for each side, rather than add up dQ across blocks: 7 products instead of 5, no atomics, always the same bits.
//
// Rows in shared memory are 16 bytes longer than D, which puts the eight rows that a warp loads at once on different banks. Columns from d to D are zeros.
// Of the order of the barriers: a tile is overwritten only after the barrier at the end of the round that read it, and read only after copies_wait and
// the barrier that follows it.
#ifndef PREBR_ATTENTION_MMA_CUH
#define PREBR_ATTENTION_MMA_CUH

#include "mma.cuh"

enum { OWN = 64, OWN_WARPS = 4, OWN_THREADS = OWN_WARPS * WARP, OWN_ROWS = 16, ROW_PAD = 8, EIGHT = 8 };

// Rows of the other side in a tile: what the registers of backward leave room for.
template <int D> struct Other { enum { FORWARD = 64, BACKWARD = D <= 64 ? 64 : 32 }; };

// ---- tiles

// to [ROWS, D + pad] = `rows` rows of d elements (a multiple of 8), zeros around them; part of the open group of copies.
template <int D, int ROWS> __device__ void copy_tile(bf16* to, const bf16* from, size_t row, int rows, int d) {
    for (int i = threadIdx.x; i < ROWS * (D / EIGHT); i += OWN_THREADS) {
        int r = i / (D / EIGHT), c = i % (D / EIGHT) * EIGHT;
        bool real = r < rows && c < d;
        copy_async(to + r * (D + ROW_PAD) + c, real ? from + r * row + c : from, real);
    }
}

// A warp's 16 rows [16, D] as the left operand: loaded again for each product, or held in registers.
template <int D> struct Rows {
    const bf16* at;
    __device__ __forceinline__ void operand(unsigned (&a)[4], int k) const {
        int lane = threadIdx.x % WARP;   // matrices: rows 0-7 and 8-15 of columns k .., then of columns k + 8 ..
        load_matrices(a, at + lane % 16 * (D + ROW_PAD) + 16 * k + lane / 16 * 8);
    }
};
template <int D> struct HeldRows {
    unsigned a[D / 16][4];
    __device__ __forceinline__ void hold(Rows<D> rows) {
#pragma unroll
        for (int k = 0; k < D / 16; k++) rows.operand(a[k], k);
    }
    __device__ __forceinline__ void operand(unsigned (&to)[4], int k) const {
        for (int i = 0; i < 4; i++) to[i] = a[k][i];
    }
};

// s [16, N] = own times tile [N, D]'
template <int D, int N, class Own> __device__ __forceinline__ void scores(float (&s)[N / 8][4], const Own& own, const bf16* tile) {
    int lane = threadIdx.x % WARP;
#pragma unroll
    for (int n = 0; n < N / 8; n++)
        for (int i = 0; i < 4; i++) s[n][i] = 0;
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        unsigned a[4], b[4];
        own.operand(a, k);
#pragma unroll
        for (int n = 0; n < N / 16; n++) {   // matrices: columns 16 k .. and + 8 of rows 16 n .., then of rows 16 n + 8 ..
            load_matrices(b, tile + (16 * n + lane % 8 + lane / 16 * 8) * (D + ROW_PAD) + 16 * k + lane / 8 % 2 * 8);
            mma(s[2 * n], a, b[0], b[1]);
            mma(s[2 * n + 1], a, b[2], b[3]);
        }
    }
}

// o [16, D] += s [16, N], rounded, times tile [N, D]
template <int D, int N> __device__ __forceinline__ void accumulate(float (&o)[D / 8][4], const float (&s)[N / 8][4], const bf16* tile) {
    int lane = threadIdx.x % WARP;
#pragma unroll
    for (int k = 0; k < N / 16; k++) {
        const float *left = s[2 * k], *right = s[2 * k + 1];
        unsigned b[4], a[4] = {packed(left[0], left[1]), packed(left[2], left[3]), packed(right[0], right[1]), packed(right[2], right[3])};
#pragma unroll
        for (int n = 0; n < D / 16; n++) {   // matrices: rows 16 k .. and + 8 of columns 16 n .., then of columns 16 n + 8 ..
            load_transposed(b, tile + (16 * k + lane % 16) * (D + ROW_PAD) + 16 * n + lane / 16 * 8);
            mma(o[2 * n], a, b[0], b[1]);
            mma(o[2 * n + 1], a, b[2], b[3]);
        }
    }
}

// This lane's rows of its warp's 16: row_of(0) and row_of(1); its columns in piece n: 8 n + column_of() and the next.
__device__ __forceinline__ int row_of(int lower) { return threadIdx.x % WARP / 4 + 8 * lower; }
__device__ __forceinline__ int column_of(void) { return threadIdx.x % 4 * 2; }

// The warp's rows of an output, through its own rows of shared memory, which nobody reads any more: those below `rows` are written, zeros from `live` on.
template <int D> __device__ void write_rows(bf16* to, size_t row, bf16* own, const float (&o)[D / 8][4], int rows, int live, int d) {
    __syncwarp();
#pragma unroll
    for (int n = 0; n < D / 8; n++)
        for (int lower = 0; lower < 2; lower++) {
            bool is_live = row_of(lower) < live;
            *(unsigned*)(own + row_of(lower) * (D + ROW_PAD) + 8 * n + column_of()) = is_live ? packed(o[n][2 * lower], o[n][2 * lower + 1]) : 0;
        }
    __syncwarp();
    for (int i = threadIdx.x % WARP; i < OWN_ROWS * (D / EIGHT); i += WARP) {
        int r = i / (D / EIGHT), c = i % (D / EIGHT) * EIGHT;
        if (r < rows && c < d) store<EIGHT>(to + r * row + c, load<EIGHT>(own + r * (D + ROW_PAD) + c));
    }
}

// ---- dropout. A draw serves four neighbouring keys of a query.

__device__ __forceinline__ unsigned kept_of_four(const Problem& p, const Head& at, int query, int key) {
    Philox r = philox(p.dropout.seed, STREAM_DROPOUT, p.dropout.step, ((uint64_t)p.dropout.site << 40) + (at.rows + query) * (size_t)((p.t + 3) / 4) + key / 4);
    unsigned bits = 0;
    for (int k = 0; k < 4; k++) bits |= (unsigned)(philox_uniform(r.v[k]) >= p.dropout.p) << k;
    return bits;
}

// Which of this lane's four scores stay, rows being queries: bit 2 lower + right. Two neighbouring lanes share their four keys: the even one draws for the
// upper row, the odd one for the lower. keys: the first of the piece of eight.
__device__ __forceinline__ unsigned kept_by_query(const Problem& p, const Head& at, int first_query, int keys) {
    int odd = threadIdx.x & 1;
    unsigned mine = kept_of_four(p, at, first_query + row_of(odd), keys + column_of()), other = __shfl_xor_sync(ALL_LANES, mine, 1);
    unsigned upper = odd ? other : mine, lower = odd ? mine : other;
    return (upper >> 2 * odd & 3) | (lower >> 2 * odd & 3) << 2;
}

// Rows being keys and columns queries. Four neighbouring groups of lanes share four keys; each draws for one of the pairs (upper or lower keys, left or
// right query).
__device__ __forceinline__ unsigned kept_by_key(const Problem& p, const Head& at, int first_key, int queries) {
    int lane = threadIdx.x % WARP, which = lane / 4 % 4, place = (first_key + row_of(0)) % 4;
    unsigned mine = kept_of_four(p, at, queries + column_of() + which % 2, first_key + row_of(which / 2)), bits = 0;
    for (int i = 0; i < 4; i++) {   // i = 2 lower + right, as they lie in the registers
        unsigned drawn = __shfl_sync(ALL_LANES, mine, lane / 16 * 16 + i * 4 + lane % 4);
        bits |= (drawn >> place & 1) << i;
    }
    return bits;
}

// ---- forward. Grid: tiles of queries x heads.

template <int D> __global__ void __launch_bounds__(OWN_THREADS) mma_forward(bf16* o, float* lse, Problem p) {
    enum { N = Other<D>::FORWARD, TILE = N * (D + ROW_PAD) };
    DYNAMIC_SHARED(bf16, q);   // the own rows, then two times a tile of keys and one of values
    bf16* stage = q + OWN * (D + ROW_PAD);
    Head at = head_of(p);
    int warp = threadIdx.x / WARP, first = blockIdx.x * OWN, mine = first + OWN_ROWS * warp;
    float scale = 1.0f / sqrtf((float)p.d), to_log2 = scale * 1.44269504f, keep = p.dropout.p > 0 ? 1.0f / (1.0f - p.dropout.p) : 1.0f;
    float max[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0}, out[D / 8][4] = {}, s[N / 8][4];
    HeldRows<D> queries;
    bf16* own = q + OWN_ROWS * warp * (D + ROW_PAD);
    auto fetch = [&](int j0, bf16* to) {
        copy_tile<D, N>(to, p.qkv + at.k + j0 * at.row, at.row, at.keys - j0, p.d);
        copy_tile<D, N>(to + TILE, p.qkv + at.v + j0 * at.row, at.row, at.keys - j0, p.d);
    };
    copy_tile<D, OWN>(q, p.qkv + at.q + first * at.row, at.row, p.t - first, p.d);
    if (at.keys > 0) fetch(0, stage);
    copies_commit();
    for (int j0 = 0, turn = 0; j0 < at.keys; j0 += N, turn ^= 1) {
        bf16* k = stage + turn * 2 * TILE;
        if (j0 + N < at.keys) fetch(j0 + N, stage + (turn ^ 1) * 2 * TILE);
        copies_commit();
        copies_wait<1>();
        __syncthreads();
        if (j0 == 0) queries.hold(Rows<D>{own});
        scores<D, N>(s, queries, k);
#pragma unroll
        for (int lower = 0; lower < 2; lower++) {
            float most = max[lower];
#pragma unroll
            for (int n = 0; n < N / 8; n++)
                for (int right = 0; right < 2; right++) {
                    float& x = s[n][2 * lower + right];
                    x = j0 + 8 * n + column_of() + right < at.keys ? x * to_log2 : -INFINITY;
                    most = fmaxf(most, x);
                }
            most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 1));
            most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 2));
            float factor = exp2f(max[lower] - most);
            max[lower] = most;
            sum[lower] *= factor;
#pragma unroll
            for (int n = 0; n < D / 8; n++)
                for (int right = 0; right < 2; right++) out[n][2 * lower + right] *= factor;
#pragma unroll
            for (int n = 0; n < N / 8; n++)
                for (int right = 0; right < 2; right++) {
                    float& x = s[n][2 * lower + right];
                    x = exp2f(x - most);
                    sum[lower] += x;
                }
        }
        if (p.dropout.p > 0)
#pragma unroll
            for (int n = 0; n < N / 8; n++) {
                unsigned kept = kept_by_query(p, at, mine, j0 + 8 * n);
                for (int i = 0; i < 4; i++) s[n][i] = kept >> i & 1 ? s[n][i] * keep : 0;
            }
        accumulate<D, N>(out, s, k + TILE);
        __syncthreads();
    }
    copies_wait<0>();
#pragma unroll
    for (int lower = 0; lower < 2; lower++) {
        float all = sum[lower];
        all += __shfl_xor_sync(ALL_LANES, all, 1);
        all += __shfl_xor_sync(ALL_LANES, all, 2);
        int row = mine + row_of(lower);
        if (column_of() == 0 && row < p.t) lse[at.rows + row] = at.keys ? (max[lower] + log2f(all)) * 0.69314718f : -INFINITY;
#pragma unroll
        for (int n = 0; n < D / 8; n++)
            for (int right = 0; right < 2; right++) out[n][2 * lower + right] /= all;
    }
    __syncthreads();   // without keys: the own rows have come for all
    write_rows<D>(o + at.o + mine * at.o_row, at.o_row, own, out, p.t - mine, at.keys ? OWN_ROWS : 0, p.d);
}

// ---- backward

typedef struct { const bf16* d_o; const float *lse, *dot; } MmaUpstream;

// One score and the gradient of its weight become the weight after dropout and the gradient of the unscaled score; 0 where there is no such pair.
__device__ __forceinline__ void score_gradient(float& s, float& dp, bool real, float scale, float lse, float dot, float keep) {
    float w = real ? exp2f((s * scale - lse) * 1.44269504f) : 0;
    dp = real ? scale * w * (dp * keep - dot) : 0;
    s = w * keep;
}

// dQ. Grid: tiles of queries x heads.
template <int D> __global__ void __launch_bounds__(OWN_THREADS) mma_backward_queries(bf16* dqkv, MmaUpstream up, Problem p) {
    enum { N = Other<D>::BACKWARD, TILE = N * (D + ROW_PAD), OWN_TILE = OWN * (D + ROW_PAD) };
    DYNAMIC_SHARED(bf16, q);   // own queries and gradients, then two times keys and values
    bf16 *g = q + OWN_TILE, *stage = g + OWN_TILE;
    Head at = head_of(p);
    int warp = threadIdx.x / WARP, first = blockIdx.x * OWN, mine = first + OWN_ROWS * warp;
    float scale = 1.0f / sqrtf((float)p.d), keep = p.dropout.p > 0 ? 1.0f / (1.0f - p.dropout.p) : 1.0f;
    float lse[2], dot[2], dq[D / 8][4] = {}, s[N / 8][4], dp[N / 8][4];
    bf16 *own_q = q + OWN_ROWS * warp * (D + ROW_PAD), *own_g = own_q + OWN_TILE;
    for (int lower = 0; lower < 2; lower++) {
        int row = mine + row_of(lower);
        lse[lower] = row < p.t ? up.lse[at.rows + row] : 0;
        dot[lower] = row < p.t ? up.dot[at.rows + row] : 0;
    }
    auto fetch = [&](int j0, bf16* to) {
        copy_tile<D, N>(to, p.qkv + at.k + j0 * at.row, at.row, at.keys - j0, p.d);
        copy_tile<D, N>(to + TILE, p.qkv + at.v + j0 * at.row, at.row, at.keys - j0, p.d);
    };
    copy_tile<D, OWN>(q, p.qkv + at.q + first * at.row, at.row, p.t - first, p.d);
    copy_tile<D, OWN>(g, up.d_o + at.o + first * at.o_row, at.o_row, p.t - first, p.d);
    if (at.keys > 0) fetch(0, stage);
    copies_commit();
    for (int j0 = 0, turn = 0; j0 < at.keys; j0 += N, turn ^= 1) {
        bf16* k = stage + turn * 2 * TILE;
        if (j0 + N < at.keys) fetch(j0 + N, stage + (turn ^ 1) * 2 * TILE);
        copies_commit();
        copies_wait<1>();
        __syncthreads();
        scores<D, N>(s, Rows<D>{own_q}, k);
        scores<D, N>(dp, Rows<D>{own_g}, k + TILE);
#pragma unroll
        for (int n = 0; n < N / 8; n++) {
            unsigned kept = p.dropout.p > 0 ? kept_by_query(p, at, mine, j0 + 8 * n) : 15;
            for (int i = 0; i < 4; i++) {
                bool real = mine + row_of(i / 2) < p.t && j0 + 8 * n + column_of() + i % 2 < at.keys;
                score_gradient(s[n][i], dp[n][i], real, scale, lse[i / 2], dot[i / 2], kept >> i & 1 ? keep : 0);
            }
        }
        accumulate<D, N>(dq, dp, k);
        __syncthreads();
    }
    copies_wait<0>();
    __syncthreads();
    write_rows<D>(dqkv + at.q + mine * at.row, at.row, own_q, dq, p.t - mine, OWN_ROWS, p.d);
}

// dK and dV. Grid: tiles of keys x heads.
template <int D> __global__ void __launch_bounds__(OWN_THREADS) mma_backward_keys(bf16* dqkv, MmaUpstream up, Problem p) {
    enum { N = Other<D>::BACKWARD, TILE = N * (D + ROW_PAD), OWN_TILE = OWN * (D + ROW_PAD) };
    DYNAMIC_SHARED(bf16, k);   // own keys and values, then two times queries and gradients
    bf16 *v = k + OWN_TILE, *stage = v + OWN_TILE;
    __shared__ float lse[2][N], dot[2][N];
    Head at = head_of(p);
    int warp = threadIdx.x / WARP, first = blockIdx.x * OWN, mine = first + OWN_ROWS * warp, rows = first < at.keys ? p.t : 0;
    float scale = 1.0f / sqrtf((float)p.d), keep = p.dropout.p > 0 ? 1.0f / (1.0f - p.dropout.p) : 1.0f;
    float dk[D / 8][4] = {}, dv[D / 8][4] = {}, s[N / 8][4], dp[N / 8][4];
    bf16 *own_k = k + OWN_ROWS * warp * (D + ROW_PAD), *own_v = own_k + OWN_TILE;
    auto fetch = [&](int i0, int turn) {
        bf16* to = stage + turn * 2 * TILE;
        copy_tile<D, N>(to, p.qkv + at.q + i0 * at.row, at.row, p.t - i0, p.d);
        copy_tile<D, N>(to + TILE, up.d_o + at.o + i0 * at.o_row, at.o_row, p.t - i0, p.d);
        for (int i = threadIdx.x; i < N; i += OWN_THREADS) {
            lse[turn][i] = i0 + i < p.t ? up.lse[at.rows + i0 + i] : 0;
            dot[turn][i] = i0 + i < p.t ? up.dot[at.rows + i0 + i] : 0;
        }
    };
    copy_tile<D, OWN>(k, p.qkv + at.k + first * at.row, at.row, at.keys - first, p.d);
    copy_tile<D, OWN>(v, p.qkv + at.v + first * at.row, at.row, at.keys - first, p.d);
    if (rows > 0) fetch(0, 0);
    copies_commit();
    for (int i0 = 0, turn = 0; i0 < rows; i0 += N, turn ^= 1) {
        bf16* q = stage + turn * 2 * TILE;
        if (i0 + N < rows) fetch(i0 + N, turn ^ 1);
        copies_commit();
        copies_wait<1>();
        __syncthreads();
        scores<D, N>(s, Rows<D>{own_k}, q);
        scores<D, N>(dp, Rows<D>{own_v}, q + TILE);
#pragma unroll
        for (int n = 0; n < N / 8; n++) {
            unsigned kept = p.dropout.p > 0 ? kept_by_key(p, at, mine, i0 + 8 * n) : 15;
            for (int i = 0; i < 4; i++) {
                int column = 8 * n + column_of() + i % 2;
                bool real = mine + row_of(i / 2) < at.keys && i0 + column < p.t;
                score_gradient(s[n][i], dp[n][i], real, scale, lse[turn][column], dot[turn][column], kept >> i & 1 ? keep : 0);
            }
        }
        accumulate<D, N>(dv, s, q + TILE);
        accumulate<D, N>(dk, dp, q);
        __syncthreads();
    }
    copies_wait<0>();
    __syncthreads();
    write_rows<D>(dqkv + at.k + mine * at.row, at.row, own_k, dk, p.t - mine, at.keys - mine, p.d);
    write_rows<D>(dqkv + at.v + mine * at.row, at.row, own_v, dv, p.t - mine, at.keys - mine, p.d);
}

// ---- one compiled head size

template <int D> struct MmaSized {
    enum : int {
        FORWARD = 2 * (OWN + 4 * Other<D>::FORWARD) * (D + ROW_PAD),
        BACKWARD = 2 * (2 * OWN + 4 * Other<D>::BACKWARD) * (D + ROW_PAD)
    };

    static void forward(bf16* o, float* lse, const Problem& p, int heads) {
        MORE_SHARED(mma_forward<D>, FORWARD);
        LAUNCH(mma_forward<D>, dim3(blocks_for(p.t, OWN), heads), OWN_THREADS, FORWARD, o, lse, p);
    }

    static void backward(bf16* dqkv, const MmaUpstream& up, const Problem& p, int heads) {
        MORE_SHARED(mma_backward_queries<D>, BACKWARD);
        LAUNCH(mma_backward_queries<D>, dim3(blocks_for(p.t, OWN), heads), OWN_THREADS, BACKWARD, dqkv, up, p);
        MORE_SHARED(mma_backward_keys<D>, BACKWARD);
        LAUNCH(mma_backward_keys<D>, dim3(blocks_for(p.t, OWN), heads), OWN_THREADS, BACKWARD, dqkv, up, p);
    }
};

// Whether these kernels can do it: else those of attention.cu. Rows must come in whole packs of 16 bytes.
static int mma_fits(const Problem& p) { return device_capability() >= 80 && p.d <= 128 && p.packs; }

#endif
