// attention.h, flash and materialized, against one double-precision reference: lengths (0, 1, some, all), dropout (the mask made
// here from the formula in the header), head sizes and token counts off the vector widths; gradients also against central
// differences of the reference; equal bits for 1, 2 and 3 threads.
#include "test.h"
#include "kernels/attention.h"
#include "kernels/philox.h"
#include <omp.h>

typedef struct { int b, t, h, d; const int* lengths; Dropout dropout; } Shape;

static const Dropout NONE = {0, 0, 0, 0};

static size_t tokens(Shape s) { return (size_t)s.b * s.t * s.h * s.d; }
static size_t rows(Shape s) { return (size_t)s.b * s.h * s.t; }

// Index of part (0 q, 1 k, 2 v) of a token's head in qkv, and of its output in o.
static size_t in_qkv(Shape s, int b, int i, int part, int h) { return ((((size_t)b * s.t + i) * 3 + part) * s.h + h) * s.d; }
static size_t in_o(Shape s, int b, int i, int h) { return (((size_t)b * s.t + i) * s.h + h) * s.d; }

static double keep(Shape s, int b, int h, int i, int j) {
    if (s.dropout.p == 0) return 1;
    uint64_t row = (((uint64_t)b * s.h + h) * s.t + i) * ((s.t + 3) / 4);
    Philox r = philox(s.dropout.seed, STREAM_DROPOUT, s.dropout.step, ((uint64_t)s.dropout.site << 40) + row + j / 4);
    return philox_uniform(r.v[j % 4]) < s.dropout.p ? 0 : 1 / (1 - (double)s.dropout.p);
}

// probs [b, h, t, t], lse [b, h, t] and o from qkv, in double. Batch element `only` alone where it is >= 0.
static void forward_reference(double* o, double* lse, double* probs, const double* qkv, Shape s, int only) {
    for (int b = 0; b < s.b; b++) {
        if (only >= 0 && b != only) continue;
        int keys = s.lengths ? s.lengths[b] : s.t;
        for (int h = 0; h < s.h; h++) {
            for (int i = 0; i < s.t; i++) {
                const double* q = qkv + in_qkv(s, b, i, 0, h);
                size_t row = ((size_t)b * s.h + h) * s.t + i;
                double *p = probs + row * s.t, max = -INFINITY, sum = 0, *out = o + in_o(s, b, i, h);
                for (int x = 0; x < s.d; x++) out[x] = 0;
                for (int j = 0; j < s.t; j++) {
                    const double* k = qkv + in_qkv(s, b, j, 1, h);
                    p[j] = 0;
                    if (j >= keys) continue;
                    for (int x = 0; x < s.d; x++) p[j] += q[x] * k[x];
                    p[j] /= sqrt(s.d);
                    max = fmax(max, p[j]);
                }
                for (int j = 0; j < keys; j++) sum += p[j] = exp(p[j] - max);
                lse[row] = max + log(sum);
                for (int j = 0; j < keys; j++) {
                    const double *v = qkv + in_qkv(s, b, j, 2, h);
                    p[j] /= sum;
                    double w = p[j] * keep(s, b, h, i, j);
                    for (int x = 0; x < s.d; x++) out[x] += w * v[x];
                }
            }
        }
    }
}

static void backward_reference(double* dqkv, const double* d_o, const double* probs, const double* qkv, Shape s) {
    for (size_t i = 0; i < 3 * tokens(s); i++) dqkv[i] = 0;
    double* dp = malloc(s.t * sizeof *dp);
    for (int b = 0; b < s.b; b++) {
        int keys = s.lengths ? s.lengths[b] : s.t;
        for (int h = 0; h < s.h; h++) {
            for (int i = 0; i < s.t; i++) {
                const double *p = probs + (((size_t)b * s.h + h) * s.t + i) * s.t, *g = d_o + in_o(s, b, i, h);
                double dot = 0;
                for (int j = 0; j < keys; j++) {
                    size_t v = in_qkv(s, b, j, 2, h);
                    double factor = keep(s, b, h, i, j), sum = 0;
                    for (int x = 0; x < s.d; x++) {
                        sum += g[x] * qkv[v + x];
                        dqkv[v + x] += p[j] * factor * g[x];
                    }
                    dp[j] = sum * factor;
                    dot += p[j] * dp[j];
                }
                size_t q = in_qkv(s, b, i, 0, h);
                for (int j = 0; j < keys; j++) {
                    double ds = p[j] * (dp[j] - dot) / sqrt(s.d);
                    size_t k = in_qkv(s, b, j, 1, h);
                    for (int x = 0; x < s.d; x++) {
                        dqkv[q + x] += ds * qkv[k + x];
                        dqkv[k + x] += ds * qkv[q + x];
                    }
                }
            }
        }
    }
    free(dp);
}

static double* in_double(const float* a, size_t n) {
    double* b = malloc((n ? n : 1) * sizeof *b);
    for (size_t i = 0; i < n; i++) b[i] = a[i];
    return b;
}

// Largest error relative to the largest value of the reference.
static double error_of(const float* a, const double* b, size_t n) {
    double worst = 0, largest = 1e-30;
    for (size_t i = 0; i < n; i++) {
        if (b[i] == -INFINITY) { if (a[i] != -INFINITY) return INFINITY; continue; }
        double d = fabs(a[i] - b[i]);
        if (!(d <= worst)) worst = isnan(d) ? INFINITY : d;
        largest = fmax(largest, fabs(b[i]));
    }
    return worst / largest;
}

static float* filled(size_t n) {
    float* a = malloc((n ? n : 1) * sizeof *a);
    for (size_t i = 0; i < n; i++) a[i] = NAN;
    return a;
}

typedef struct { float *o, *lse, *dqkv, *probs; } Result;

static void free_result(Result r) { free(r.o), free(r.lse), free(r.dqkv), free(r.probs); }

// Outputs and scratch start as NaN: everything read must have been written.
static Result flash(const float* qkv, const float* d_o, Shape s) {
    Result r = {filled(tokens(s)), filled(rows(s)), filled(3 * tokens(s)), NULL};
    size_t bytes = attention_flash_scratch(s.b, s.t, s.h, s.d);
    float* scratch = filled(bytes / 4);
    attention_flash_forward(r.o, r.lse, qkv, s.lengths, s.dropout, s.b, s.t, s.h, s.d, scratch);
    attention_flash_backward(r.dqkv, d_o, r.o, r.lse, qkv, s.lengths, s.dropout, s.b, s.t, s.h, s.d, scratch);
    free(scratch);
    return r;
}

static Result materialized(const float* qkv, const float* d_o, Shape s) {
    Result r = {filled(tokens(s)), NULL, filled(3 * tokens(s)), filled(rows(s) * s.t)};
    size_t bytes = attention_materialized_scratch(s.b, s.t, s.h, s.d);
    float* scratch = filled(bytes / 4);
    attention_materialized_forward(r.o, r.probs, qkv, s.lengths, s.dropout, s.b, s.t, s.h, s.d, scratch);
    attention_materialized_backward(r.dqkv, d_o, r.probs, qkv, s.lengths, s.dropout, s.b, s.t, s.h, s.d, scratch);
    free(scratch);
    return r;
}

// A few elements of dqkv against central differences of sum(d_o o). Only the element's own batch entry depends on it.
static void check_differences(const float* dqkv, const double* d_o, double* qkv, double* o, double* lse, double* probs, Shape s) {
    size_t per_batch = tokens(s) / s.b;
    for (int n = 0; n < 12; n++) {
        int b = test_int(0, s.b - 1);
        size_t i = 3 * per_batch * b + test_int(0, (int)(3 * per_batch) - 1);
        double saved = qkv[i], side[2], h = 1e-4;
        for (int k = 0; k < 2; k++) {
            qkv[i] = saved + (k ? -h : h);
            forward_reference(o, lse, probs, qkv, s, b);
            side[k] = 0;
            for (size_t j = per_batch * b; j < per_batch * (b + 1); j++) side[k] += d_o[j] * o[j];
        }
        qkv[i] = saved;
        double slope = (side[0] - side[1]) / (2 * h);
        CHECK(fabs(dqkv[i] - slope) < 1e-5 * (1 + fabs(slope)), "dqkv[%zu] = %g, central difference %g (b %d t %d h %d d %d)",
              i, dqkv[i], slope, s.b, s.t, s.h, s.d);
    }
}

static double worst_forward = 0, worst_backward = 0, worst_apart = 0;

// Inputs uniform in +-size. Scores grow with its square and their rounding with them, so the tolerance does too.
static void test_shape(Shape s, float size, int differences) {
    size_t n = tokens(s);
    double tolerance = fmax(2e-6, 0.2e-6 * size * size);
    float *qkv = test_array(3 * n), *d_o = test_array(n);
    for (size_t i = 0; i < 3 * n; i++) qkv[i] *= size;
    double *x = in_double(qkv, 3 * n), *g = in_double(d_o, n), *o = malloc(n * 8), *lse = malloc(rows(s) * 8);
    double *probs = malloc(rows(s) * s.t * 8), *dx = malloc(3 * n * 8);
    forward_reference(o, lse, probs, x, s, -1);
    backward_reference(dx, g, probs, x, s);
    Result f = flash(qkv, d_o, s), m = materialized(qkv, d_o, s);
    double forward[] = {error_of(f.o, o, n), error_of(f.lse, lse, rows(s)), error_of(m.o, o, n), error_of(m.probs, probs, rows(s) * s.t)};
    double backward[] = {error_of(f.dqkv, dx, 3 * n), error_of(m.dqkv, dx, 3 * n)};
    for (int k = 0; k < 4; k++) {
        CHECK(forward[k] < tolerance, "forward, check %d: error %g (b %d t %d h %d d %d, p %g)", k, forward[k], s.b, s.t, s.h, s.d, s.dropout.p);
        if (size <= 2) worst_forward = fmax(worst_forward, forward[k]);
    }
    for (int k = 0; k < 2; k++) {
        CHECK(backward[k] < 2 * tolerance, "backward, check %d: error %g (b %d t %d h %d d %d, p %g)", k, backward[k], s.b, s.t, s.h, s.d, s.dropout.p);
        if (size <= 2) worst_backward = fmax(worst_backward, backward[k]);
    }
    double* flash_o = in_double(f.o, n);
    if (size <= 2) worst_apart = fmax(worst_apart, error_of(m.o, flash_o, n));
    for (int b = 0; s.lengths && b < s.b; b++) {   // padding keys: exact zeros
        for (int i = s.lengths[b]; i < s.t; i++) {
            for (int h = 0; h < s.h; h++) {
                for (int p = 0; p < 2 * s.d; p++) {
                    size_t at = in_qkv(s, b, i, 1 + p / s.d, h) + p % s.d;
                    CHECK(f.dqkv[at] == 0 && m.dqkv[at] == 0, "gradient of a padding key: %g, %g", f.dqkv[at], m.dqkv[at]);
                }
            }
        }
    }
    if (differences) {
        check_differences(f.dqkv, g, x, o, lse, probs, s);
        check_differences(m.dqkv, g, x, o, lse, probs, s);
    }
    free_result(f), free_result(m);
    free(qkv), free(d_o), free(x), free(g), free(o), free(lse), free(probs), free(dx), free(flash_o);
}

// Materialized backward takes pruned probabilities as they are.
static void test_pruned(void) {
    Shape s = {2, 37, 2, 24, NULL, {0.2f, 3, 4, 5}};
    size_t n = tokens(s), n_probs = rows(s) * s.t;
    float *qkv = test_array(3 * n), *d_o = test_array(n), *probs = test_array(n_probs), *dqkv = filled(3 * n);
    for (size_t i = 0; i < n_probs; i++) probs[i] = probs[i] < 0 ? 0 : probs[i];
    double *x = in_double(qkv, 3 * n), *g = in_double(d_o, n), *p = in_double(probs, n_probs), *dx = malloc(3 * n * 8);
    backward_reference(dx, g, p, x, s);
    void* scratch = malloc(attention_materialized_scratch(s.b, s.t, s.h, s.d));
    attention_materialized_backward(dqkv, d_o, probs, qkv, NULL, s.dropout, s.b, s.t, s.h, s.d, scratch);
    CHECK(error_of(dqkv, dx, 3 * n) < 2e-6, "%g", error_of(dqkv, dx, 3 * n));
    free(qkv), free(d_o), free(probs), free(dqkv), free(x), free(g), free(p), free(dx), free(scratch);
}

static int same(const float* a, const float* b, size_t n) { return memcmp(a, b, n * sizeof *a) == 0; }

static void test_threads(Shape s) {
    float *qkv = test_array(3 * tokens(s)), *d_o = test_array(tokens(s));
    Result f1, m1;
    for (int threads = 1; threads <= 3; threads++) {
        omp_set_num_threads(threads);
        Result f = flash(qkv, d_o, s), m = materialized(qkv, d_o, s);
        if (threads == 1) { f1 = f, m1 = m; continue; }
        CHECK(same(f.o, f1.o, tokens(s)) && same(f.lse, f1.lse, rows(s)) && same(f.dqkv, f1.dqkv, 3 * tokens(s)), "flash, %d threads", threads);
        CHECK(same(m.o, m1.o, tokens(s)) && same(m.dqkv, m1.dqkv, 3 * tokens(s)) && same(m.probs, m1.probs, rows(s) * s.t),
              "materialized, %d threads", threads);
        free_result(f), free_result(m);
    }
    free_result(f1), free_result(m1), free(qkv), free(d_o);
}

// A token that is not a number reaches its own batch element and nothing else.
static void test_nan(void) {
    Shape s = {2, 19, 1, 8, NULL, NONE};
    float *qkv = test_array(3 * tokens(s)), *d_o = test_array(tokens(s));
    qkv[in_qkv(s, 1, 3, 1, 0)] = NAN;
    Result f = flash(qkv, d_o, s);
    for (size_t i = 0; i < tokens(s); i++) CHECK(isnan(f.o[i]) == (i >= tokens(s) / 2), "o[%zu] = %g", i, f.o[i]);
    free_result(f), free(qkv), free(d_o);
}

int main(void) {
    int head_sizes[] = {8, 32, 64, 80, 5}, token_counts[] = {1, 2, 17, 37, 197};
    for (int i = 0; i < 5; i++) {
        for (int k = 0; k < 5; k++) {
            int d = head_sizes[i], t = token_counts[k], lengths[] = {t, 0, 1, (t + 1) / 2};
            Dropout some = {0.1f, 0x123456789abcdefull, 7, 11};
            test_shape((Shape){1, t, 3, d, NULL, NONE}, 1, t <= 37);
            if (t < 197) test_shape((Shape){4, t, 2, d, lengths, NONE}, 1, t <= 17);
            if (t < 197 || d == 32) test_shape((Shape){4, t, 2, d, lengths, some}, 2, t <= 17);
        }
    }
    test_shape((Shape){1, 577, 1, 16, NULL, NONE}, 1, 0);
    test_shape((Shape){1, 193, 1, 32, NULL, {0.5f, 1, 2, 3}}, 6, 0);   // peaked: the running maximum moves between tiles
    printf("worst error: forward %.2g, backward %.2g; materialized from flash %.2g\n", worst_forward, worst_backward, worst_apart);
    CHECK(worst_apart < 4e-6, "%g", worst_apart);
    test_pruned();
    test_nan();
    int lengths[] = {101, 60, 0};
    test_threads((Shape){3, 101, 2, 20, lengths, {0.1f, 5, 6, 7}});
    test_threads((Shape){1, 101, 3, 64, NULL, NONE});
    TEST_END();
}
