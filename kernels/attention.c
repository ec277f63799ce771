// Attention on the CPU: one thread takes a (batch, head) (flash forward: one tile of its queries) from start to end, so results
// do not depend on the number of threads. All products are tile_product() (tile.h): on these shapes it is as fast as oneDNN's
// sgemm at its best or faster (48 x 48 x 64: 97 against 82 GFLOP/s, 96 x 96 x 64: 99 against 91, one core).
//
// Flash keeps its tiles transposed, [keys, queries]: a vector holds the same key for LANES queries, so maxima and sums of the
// softmax need no sum across a vector, and rows of k and v are read where the projection wrote them.
#include "attention.h"
#include "philox.h"
#include "tile.h"
#include "vector_math.h"
#include <math.h>
#include <omp.h>

// Multiples of every TILE_ROWS and LANES, and of the 4 keys that share a Philox draw.
enum { QUERIES = 48, KEYS = 96 };

static int least(int a, int b) { return a < b ? a : b; }

// Scratch is dealt out as floats, in pieces of whole cache lines.
static size_t padded(size_t floats) { return (floats + 15) / 16 * 16; }

static float* take(float** scratch, size_t floats) {
    float* p = *scratch;
    *scratch += padded(floats);
    return p;
}

// Where a head's rows are: row i of q, k, v and their gradients at + i * row, of o and its gradient at + i * o_row.
typedef struct { ptrdiff_t q, k, v, row, o, o_row; } Head;

static Head head_of(int batch, int head, int t, int h, int d) {
    ptrdiff_t wide = (ptrdiff_t)h * d, first = (ptrdiff_t)batch * t * 3 * wide + (ptrdiff_t)head * d;
    return (Head){first, first + wide, first + 2 * wide, 3 * wide, (ptrdiff_t)batch * t * wide + (ptrdiff_t)head * d, wide};
}

static void zero_rows(float* x, ptrdiff_t row, int from, int to, int d) {
    for (int i = from; i < to; i++) memset(x + i * row, 0, d * sizeof *x);
}

static void scale_rows(float* x, const float* scale, int n, int d) {
    for (int i = 0; i < n; i++) {
        #pragma omp simd
        for (int p = 0; p < d; p++) x[(size_t)i * d + p] *= scale[i];
    }
}

// ---- dropout

// The factors (0 or 1 / (1 - p)) of four keys, group 4g .. 4g+3, for n queries from query i: keep [4, width]. `row` is the
// number of (batch, head, query 0) among all rows of probabilities.
static void dropout_factors(float* keep, Dropout dropout, uint64_t row, int i, int n, int g, int t, int width) {
    uint64_t groups = (t + 3) / 4, first = ((uint64_t)dropout.site << 40) + (row + i) * groups + g;
    float p = dropout.p, factor = 1.0f / (1.0f - p);
    #pragma omp simd
    for (int q = 0; q < n; q++) {
        Philox r = philox(dropout.seed, STREAM_DROPOUT, dropout.step, first + q * groups);
        keep[q] = philox_uniform(r.v[0]) < p ? 0.0f : factor;
        keep[width + q] = philox_uniform(r.v[1]) < p ? 0.0f : factor;
        keep[2 * width + q] = philox_uniform(r.v[2]) < p ? 0.0f : factor;
        keep[3 * width + q] = philox_uniform(r.v[3]) < p ? 0.0f : factor;
    }
}

static uint64_t probability_row(int batch, int head, int h, int t) { return ((uint64_t)batch * h + head) * t; }

// ---- flash

// One thread's tiles.
typedef struct {
    float *q_t, *do_t;         // [d, QUERIES] transposed; q_t times the softmax scale
    float *q, *d_o, *k, *v;    // [QUERIES or KEYS, tile_width(d)]
    float *s, *ds;             // [KEYS, QUERIES]
    float *keep;               // [4, QUERIES]
    float *out;                // [QUERIES, d]
    float *max, *sum, *factor; // [QUERIES]
} Flash;

static size_t flash_floats(int d) {
    size_t wide = tile_width(d);
    return 2 * padded((size_t)d * QUERIES) + 2 * padded(QUERIES * wide) + 2 * padded(KEYS * wide) + 2 * padded(KEYS * QUERIES)
        + padded(4 * QUERIES) + padded((size_t)QUERIES * d) + 3 * padded(QUERIES);
}

static Flash flash_tiles(void* scratch, int d) {
    float* at = (float*)scratch + flash_floats(d) * omp_get_thread_num();
    size_t wide = tile_width(d);
    Flash f;
    f.q_t = take(&at, (size_t)d * QUERIES);
    f.do_t = take(&at, (size_t)d * QUERIES);
    f.q = take(&at, QUERIES * wide);
    f.d_o = take(&at, QUERIES * wide);
    f.k = take(&at, KEYS * wide);
    f.v = take(&at, KEYS * wide);
    f.s = take(&at, KEYS * QUERIES);
    f.ds = take(&at, KEYS * QUERIES);
    f.keep = take(&at, 4 * QUERIES);
    f.out = take(&at, (size_t)QUERIES * d);
    f.max = take(&at, QUERIES);
    f.sum = take(&at, QUERIES);
    f.factor = take(&at, QUERIES);
    return f;
}

size_t attention_flash_scratch(int b, int t, int h, int d) { return omp_get_max_threads() * flash_floats(d) * sizeof(float); }

// Online softmax: s [m, width] scores become exp(s - new maximum); max and sum [width] take them in; factor [width] is what
// earlier results must be multiplied by.
static void softmax_update(float* s, float* max, float* sum, float* factor, int m, int width) {
    float old[QUERIES];
    for (int i = 0; i < width; i++) old[i] = max[i];
    for (int j = 0; j < m; j++) {
        #pragma omp simd
        for (int i = 0; i < width; i++) max[i] = s[j * width + i] > max[i] ? s[j * width + i] : max[i];
    }
    #pragma omp simd
    for (int i = 0; i < width; i++) {
        factor[i] = vexp(old[i] - max[i]);
        sum[i] *= factor[i];
    }
    for (int j = 0; j < m; j++) {
        #pragma omp simd
        for (int i = 0; i < width; i++) {
            s[j * width + i] = vexp(s[j * width + i] - max[i]);
            sum[i] += s[j * width + i];
        }
    }
}

static void flash_drop(float* s, float* keep, Dropout dropout, uint64_t row, int i0, int n, int j0, int m, int t, int width) {
    for (int j = 0; j < m; j += 4) {
        dropout_factors(keep, dropout, row, i0, n, (j0 + j) / 4, t, width);
        int rows = least(4, m - j);
        #pragma omp simd
        for (int i = 0; i < rows * width; i++) s[j * width + i] *= keep[i];
    }
}

// o and lse of the queries i0 .. i0+n of one head, over its first `keys` keys.
static void flash_forward_tile(float* o, float* lse, const float* qkv, Head at, int keys, Dropout dropout, uint64_t row, int i0, int n,
                               int t, int d, Flash f) {
    int width = tile_width(n), wide = tile_width(d);
    tile_pack_transposed(f.q_t, qkv + at.q + i0 * at.row, at.row, n, d, width, 1.0f / sqrtf((float)d));
    for (int i = 0; i < width; i++) {
        f.max[i] = -INFINITY;
        f.sum[i] = 0;
    }
    for (int j0 = 0; j0 < keys; j0 += KEYS) {
        int m = least(KEYS, keys - j0);
        tile_product(m, width, d, qkv + at.k + j0 * at.row, at.row, 1, f.q_t, width, 0, f.s, width);
        softmax_update(f.s, f.max, f.sum, f.factor, m, width);
        if (dropout.p > 0) flash_drop(f.s, f.keep, dropout, row, i0, n, j0, m, t, width);
        if (j0 > 0) scale_rows(f.out, f.factor, n, d);
        tile_pack(f.v, qkv + at.v + j0 * at.row, at.row, m, d);
        tile_product(n, d, m, f.s, 1, width, f.v, wide, j0 > 0, f.out, d);
    }
    for (int i = 0; i < n; i++) {
        float* to = o + at.o + (i0 + i) * at.o_row;
        float inverse = 1.0f / f.sum[i];
        #pragma omp simd
        for (int p = 0; p < d; p++) to[p] = f.out[(size_t)i * d + p] * inverse;
        lse[i0 + i] = f.max[i] + logf(f.sum[i]);
    }
}

void attention_flash_forward(floatx* o, float* lse, const floatx* qkv, const int* lengths, Dropout dropout, int b, int t, int h, int d, void* scratch) {
    #pragma omp parallel
    {
        Flash f = flash_tiles(scratch, d);
        #pragma omp for collapse(3) schedule(dynamic)
        for (int batch = 0; batch < b; batch++) {
            for (int head = 0; head < h; head++) {
                for (int i0 = 0; i0 < t; i0 += QUERIES) {
                    int keys = lengths ? lengths[batch] : t, n = least(QUERIES, t - i0);
                    uint64_t row = probability_row(batch, head, h, t);
                    Head at = head_of(batch, head, t, h, d);
                    if (keys > 0) {
                        flash_forward_tile(o, lse + row, qkv, at, keys, dropout, row, i0, n, t, d, f);
                    } else {
                        zero_rows(o + at.o, at.o_row, i0, i0 + n, d);
                        for (int i = i0; i < i0 + n; i++) lse[row + i] = -INFINITY;
                    }
                }
            }
        }
    }
}

// Four rows (keys) of a tile at a time. In: s the scaled scores, ds the gradient of the dropped-out weights, both [m, width].
// Out: s the dropped-out weights P keep; ds = scale P (ds keep - D), the gradient of the unscaled scores.
static void softmax_backward(float* s, float* ds, const float* keep, const float* lse, const float* dot, float scale, int m, int width) {
    for (int j = 0; j < m; j++) {
        #pragma omp simd
        for (int i = 0; i < width; i++) {
            float p = vexp(s[j * width + i] - lse[i]), k = keep[j * width + i];
            s[j * width + i] = p * k;
            ds[j * width + i] = scale * p * (ds[j * width + i] * k - dot[i]);
        }
    }
}

// Everything of one head. Gradients of k and v add up in their place in dqkv while the tiles of queries pass; that of q in its
// place while the tiles of keys pass.
static void flash_backward_head(float* dqkv, const float* d_o, const float* o, const float* lse, const float* qkv, Head at, int keys,
                                Dropout dropout, uint64_t row, int t, int d, Flash f) {
    float scale = 1.0f / sqrtf((float)d);
    int wide = tile_width(d);
    for (int i = 0; i < 4 * QUERIES; i++) f.keep[i] = 1;
    for (int i0 = 0; i0 < t; i0 += QUERIES) {
        int n = least(QUERIES, t - i0), width = tile_width(n);
        const float *d_o_rows = d_o + at.o + i0 * at.o_row, *o_rows = o + at.o + i0 * at.o_row, *q_rows = qkv + at.q + i0 * at.row;
        tile_pack_transposed(f.q_t, q_rows, at.row, n, d, width, scale);
        tile_pack_transposed(f.do_t, d_o_rows, at.o_row, n, d, width, 1);
        tile_pack(f.q, q_rows, at.row, n, d);
        tile_pack(f.d_o, d_o_rows, at.o_row, n, d);
        float *dot = f.sum, *log_sum = f.max;   // D = do . o of each query, which is also the sum of P dP over keys
        for (int i = 0; i < width; i++) {
            float sum = 0;
            if (i < n) {
                #pragma omp simd reduction(+:sum)
                for (int p = 0; p < d; p++) sum += d_o_rows[i * at.o_row + p] * o_rows[i * at.o_row + p];
            }
            dot[i] = sum;
            log_sum[i] = i < n ? lse[i0 + i] : 0;
        }
        for (int j0 = 0; j0 < keys; j0 += KEYS) {
            int m = least(KEYS, keys - j0);
            const float *k_rows = qkv + at.k + j0 * at.row, *v_rows = qkv + at.v + j0 * at.row;
            tile_product(m, width, d, k_rows, at.row, 1, f.q_t, width, 0, f.s, width);
            tile_product(m, width, d, v_rows, at.row, 1, f.do_t, width, 0, f.ds, width);
            for (int j = 0; j < m; j += 4) {
                if (dropout.p > 0) dropout_factors(f.keep, dropout, row, i0, n, (j0 + j) / 4, t, width);
                softmax_backward(f.s + j * width, f.ds + j * width, f.keep, log_sum, dot, scale, least(4, m - j), width);
            }
            tile_pack(f.k, k_rows, at.row, m, d);
            tile_product(m, d, n, f.s, width, 1, f.d_o, wide, i0 > 0, dqkv + at.v + j0 * at.row, at.row);
            tile_product(m, d, n, f.ds, width, 1, f.q, wide, i0 > 0, dqkv + at.k + j0 * at.row, at.row);
            tile_product(n, d, m, f.ds, 1, width, f.k, wide, j0 > 0, dqkv + at.q + i0 * at.row, at.row);
        }
    }
}

void attention_flash_backward(floatx* dqkv, const floatx* d_o, const floatx* o, const float* lse, const floatx* qkv, const int* lengths,
                              Dropout dropout, int b, int t, int h, int d, void* scratch) {
    #pragma omp parallel
    {
        Flash f = flash_tiles(scratch, d);
        #pragma omp for collapse(2) schedule(dynamic)
        for (int batch = 0; batch < b; batch++) {
            for (int head = 0; head < h; head++) {
                int keys = lengths ? lengths[batch] : t;
                uint64_t row = probability_row(batch, head, h, t);
                Head at = head_of(batch, head, t, h, d);
                if (keys == 0) zero_rows(dqkv + at.q, at.row, 0, t, d);
                zero_rows(dqkv + at.k, at.row, keys, t, d);
                zero_rows(dqkv + at.v, at.row, keys, t, d);
                flash_backward_head(dqkv, d_o, o, lse + row, qkv, at, keys, dropout, row, t, d, f);
            }
        }
    }
}

// ---- materialized

// One thread's tiles; T = tile_width(t). A head's keys (values in backward) transposed once, and tiles of its queries.
typedef struct {
    float *kv_t;          // [d, T]
    float *kv;            // [t, tile_width(d)]
    float *q, *d_o;       // [QUERIES, tile_width(d)]
    float *weights, *ds;  // [QUERIES, T]
    float *keep;          // [4, QUERIES]
} Materialized;

static size_t materialized_floats(int t, int d) {
    size_t wide = tile_width(d), all = tile_width(t);
    return padded(d * all) + padded(t * wide) + 2 * padded(QUERIES * wide) + 2 * padded(QUERIES * all) + padded(4 * QUERIES);
}

static Materialized materialized_tiles(void* scratch, int t, int d) {
    float* at = (float*)scratch + materialized_floats(t, d) * omp_get_thread_num();
    size_t wide = tile_width(d), all = tile_width(t);
    Materialized f;
    f.kv_t = take(&at, d * all);
    f.kv = take(&at, t * wide);
    f.q = take(&at, QUERIES * wide);
    f.d_o = take(&at, QUERIES * wide);
    f.weights = take(&at, QUERIES * all);
    f.ds = take(&at, QUERIES * all);
    f.keep = take(&at, 4 * QUERIES);
    return f;
}

size_t attention_materialized_scratch(int b, int t, int h, int d) { return omp_get_max_threads() * materialized_floats(t, d) * sizeof(float); }

// x [n, keys] of row stride ldx times the dropout factors of queries i0 .. i0+n.
static void materialized_drop(float* x, float* keep, Dropout dropout, uint64_t row, int i0, int n, int keys, int t, int ldx) {
    for (int j = 0; j < keys; j += 4) {
        dropout_factors(keep, dropout, row, i0, n, j / 4, t, QUERIES);
        for (int i = 0; i < n; i++) {
            for (int r = 0; r < least(4, keys - j); r++) x[(size_t)i * ldx + j + r] *= keep[r * QUERIES + i];
        }
    }
}

// p [n] = softmax(scale s).
static void softmax_row(float* p, const float* s, float scale, int n) {
    float max = -INFINITY, sum = 0;
    #pragma omp simd reduction(max:max)
    for (int j = 0; j < n; j++) max = s[j] > max ? s[j] : max;
    #pragma omp simd reduction(+:sum)
    for (int j = 0; j < n; j++) {
        p[j] = vexp(scale * (s[j] - max));
        sum += p[j];
    }
    float inverse = 1.0f / sum;
    #pragma omp simd
    for (int j = 0; j < n; j++) p[j] *= inverse;
}

static void materialized_forward_head(float* o, float* probs, const float* qkv, Head at, int keys, Dropout dropout, uint64_t row, int t, int d,
                                      Materialized f) {
    int all = tile_width(t);
    tile_pack_transposed(f.kv_t, qkv + at.k, at.row, keys, d, all, 1);
    tile_pack(f.kv, qkv + at.v, at.row, keys, d);
    for (int i0 = 0; i0 < t; i0 += QUERIES) {
        int n = least(QUERIES, t - i0);
        tile_product(n, keys, d, qkv + at.q + i0 * at.row, at.row, 1, f.kv_t, all, 0, f.weights, all);
        for (int i = 0; i < n; i++) {
            float *w = f.weights + (size_t)i * all, *p = probs + (size_t)(i0 + i) * t;
            softmax_row(w, w, 1.0f / sqrtf((float)d), keys);
            memcpy(p, w, keys * sizeof *p);
            memset(p + keys, 0, (t - keys) * sizeof *p);
        }
        if (dropout.p > 0) materialized_drop(f.weights, f.keep, dropout, row, i0, n, keys, t, all);
        tile_product(n, d, keys, f.weights, all, 1, f.kv, tile_width(d), 0, o + at.o + i0 * at.o_row, at.o_row);
    }
}

void attention_materialized_forward(floatx* o, floatx* probs, const floatx* qkv, const int* lengths, Dropout dropout, int b, int t, int h, int d,
                                    void* scratch) {
    #pragma omp parallel
    {
        Materialized f = materialized_tiles(scratch, t, d);
        #pragma omp for collapse(2) schedule(dynamic)
        for (int batch = 0; batch < b; batch++) {
            for (int head = 0; head < h; head++) {
                uint64_t row = probability_row(batch, head, h, t);
                Head at = head_of(batch, head, t, h, d);
                materialized_forward_head(o, probs + row * t, qkv, at, lengths ? lengths[batch] : t, dropout, row, t, d, f);
            }
        }
    }
}

// In: p the probabilities, dw the gradient of the weights behind dropout's factor. Out: dw = scale p (dw - sum of p dw), the
// gradient of the unscaled scores.
static void softmax_row_backward(float* dw, const float* p, float scale, int n) {
    float dot = 0;
    #pragma omp simd reduction(+:dot)
    for (int j = 0; j < n; j++) dot += p[j] * dw[j];
    #pragma omp simd
    for (int j = 0; j < n; j++) dw[j] = scale * p[j] * (dw[j] - dot);
}

static void materialized_backward_head(float* dqkv, const float* d_o, const float* probs, const float* qkv, Head at, int keys, Dropout dropout,
                                       uint64_t row, int t, int d, Materialized f) {
    int all = tile_width(t), wide = tile_width(d);
    tile_pack_transposed(f.kv_t, qkv + at.v, at.row, keys, d, all, 1);
    tile_pack(f.kv, qkv + at.k, at.row, keys, d);
    for (int i0 = 0; i0 < t; i0 += QUERIES) {
        int n = least(QUERIES, t - i0);
        const float *d_o_rows = d_o + at.o + i0 * at.o_row, *q_rows = qkv + at.q + i0 * at.row;
        tile_pack(f.q, q_rows, at.row, n, d);
        tile_pack(f.d_o, d_o_rows, at.o_row, n, d);
        tile_product(n, keys, d, d_o_rows, at.o_row, 1, f.kv_t, all, 0, f.ds, all);
        for (int i = 0; i < n; i++) memcpy(f.weights + (size_t)i * all, probs + (size_t)(i0 + i) * t, keys * sizeof *probs);
        if (dropout.p > 0) {
            materialized_drop(f.weights, f.keep, dropout, row, i0, n, keys, t, all);
            materialized_drop(f.ds, f.keep, dropout, row, i0, n, keys, t, all);
        }
        for (int i = 0; i < n; i++) softmax_row_backward(f.ds + (size_t)i * all, probs + (size_t)(i0 + i) * t, 1.0f / sqrtf((float)d), keys);
        tile_product(keys, d, n, f.weights, 1, all, f.d_o, wide, i0 > 0, dqkv + at.v, at.row);
        tile_product(keys, d, n, f.ds, 1, all, f.q, wide, i0 > 0, dqkv + at.k, at.row);
        tile_product(n, d, keys, f.ds, all, 1, f.kv, wide, 0, dqkv + at.q + i0 * at.row, at.row);
    }
}

void attention_materialized_backward(floatx* dqkv, const floatx* d_o, const floatx* probs, const floatx* qkv, const int* lengths, Dropout dropout,
                                     int b, int t, int h, int d, void* scratch) {
    #pragma omp parallel
    {
        Materialized f = materialized_tiles(scratch, t, d);
        #pragma omp for collapse(2) schedule(dynamic)
        for (int batch = 0; batch < b; batch++) {
            for (int head = 0; head < h; head++) {
                int keys = lengths ? lengths[batch] : t;
                uint64_t row = probability_row(batch, head, h, t);
                Head at = head_of(batch, head, t, h, d);
                zero_rows(dqkv + at.k, at.row, keys, t, d);
                zero_rows(dqkv + at.v, at.row, keys, t, d);
                materialized_backward_head(dqkv, d_o, probs + row * t, qkv, at, keys, dropout, row, t, d, f);
            }
        }
    }
}
