// AdamW and SGD over several steps against the same formulas in double, columns that must not move, norms, bits for any threads.
#include "kernels/optimizer.h"

#include <omp.h>

#include "test.h"

static const float SCALE = 0.5f;
static const AdamW ADAMW = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.05, .gradient_scale = &SCALE};
static const SGD MOMENTUM = {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .gradient_scale = &SCALE};

static double* widen(const float* a, size_t n) {
    double* d = malloc((n + 1) * sizeof *d);
    for (size_t i = 0; i < n; i++) d[i] = a[i];
    return d;
}

static void reference_adamw(double* w, double* m, double* v, double g, int t) {
    g *= SCALE;
    *w *= 1 - ADAMW.lr * ADAMW.weight_decay;
    *m = 0.9 * *m + 0.1 * g;
    *v = 0.999 * *v + 0.001 * g * g;
    *w -= ADAMW.lr * (*m / (1 - pow(0.9, t))) / (sqrt(*v / (1 - pow(0.999, t))) + ADAMW.eps);
}

static void reference_sgd(double* w, double* velocity, double g, int t) {
    g = g * SCALE + MOMENTUM.weight_decay * *w;
    *velocity = t == 1 ? g : MOMENTUM.momentum * *velocity + g;
    *w -= MOMENTUM.lr * *velocity;
}

static void test_dense(size_t n, int steps) {
    float *w = test_array(n), *m = calloc(n + 1, 4), *v = calloc(n + 1, 4), *w2 = test_array(n), *velocity = test_array(n);
    double *dw = widen(w, n), *dm = widen(m, n), *dv = widen(v, n), *dw2 = widen(w2, n), *dvelocity = widen(velocity, n);
    for (int t = 1; t <= steps; t++) {
        float* g = test_array(n);
        if (n > 2) g[1] = 0, g[2] *= 1e-6f;   // a weight that never gets a gradient, and one of tiny gradients
        adamw_dense(w, NULL, m, v, g, ADAMW, t, n);
        sgd_dense(w2, NULL, velocity, g, MOMENTUM, t == 1, n);
        for (size_t i = 0; i < n; i++) {
            reference_adamw(dw + i, dm + i, dv + i, g[i], t);
            reference_sgd(dw2 + i, dvelocity + i, g[i], t);
        }
        free(g);
    }
    CHECK(test_difference(w, dw, n) < 2e-6, "adamw w, n %zu: %g", n, test_difference(w, dw, n));
    CHECK(test_difference(m, dm, n) < 1e-6 && test_difference(v, dv, n) < 1e-6, "adamw moments, n %zu", n);
    CHECK(test_difference(w2, dw2, n) < 2e-6 && test_difference(velocity, dvelocity, n) < 2e-6, "sgd, n %zu", n);
    free(w), free(m), free(v), free(w2), free(velocity), free(dw), free(dm), free(dv), free(dw2), free(dvelocity);
}

// Ten steps, each on another set of blocks, with a count of updates per block.
static void test_columns(int rows, int cin, int width) {
    int total = cin / width;
    size_t size = (size_t)rows * cin;
    float *w = test_array(size), *m = calloc(size, 4), *v = calloc(size, 4), *w2 = test_array(size), *velocity = test_array(size);
    double *dw = widen(w, size), *dm = widen(m, size), *dv = widen(v, size), *dw2 = widen(w2, size), *dvelocity = widen(velocity, size);
    float* before = malloc(5 * size * sizeof *before);
    int *updates = calloc(total, sizeof(int)), *blocks = malloc(total * sizeof(int)), *t = malloc(total * sizeof(int));
    for (int step = 0; step < 10; step++) {
        int n = 0;
        for (int block = 0; block < total; block++)
            if (test_int(0, 2) == 0 && step != 5) blocks[n] = block, t[n++] = ++updates[block];   // in step 5 none is sampled
        float* all[] = {w, m, v, w2, velocity};
        for (int a = 0; a < 5; a++) memcpy(before + a * size, all[a], size * sizeof(float));
        float* g = test_array((size_t)rows * n * width);
        adamw_columns(w, NULL, m, v, g, ADAMW, t, blocks, n, width, rows, cin);
        sgd_columns(w2, NULL, velocity, g, MOMENTUM, t, blocks, n, width, rows, cin);
        char* touched = calloc(cin, 1);
        for (int j = 0; j < n; j++)
            for (int k = 0; k < width; k++) {
                int column = blocks[j] * width + k;
                touched[column] = 1;
                for (int r = 0; r < rows; r++) {
                    size_t at = (size_t)r * cin + column;
                    double gi = g[((size_t)r * n + j) * width + k];
                    reference_adamw(dw + at, dm + at, dv + at, gi, t[j]);
                    reference_sgd(dw2 + at, dvelocity + at, gi, t[j]);
                }
            }
        int moved = 0;
        for (size_t i = 0; i < size; i++)
            for (int a = 0; a < 5 && !touched[i % cin]; a++) moved += memcmp(all[a] + i, before + a * size + i, 4) != 0;
        CHECK(moved == 0, "%d elements of frozen columns moved (rows %d cin %d width %d)", moved, rows, cin, width);
        free(touched), free(g);
    }
    CHECK(test_difference(w, dw, size) < 2e-6, "adamw w (rows %d cin %d width %d): %g", rows, cin, width, test_difference(w, dw, size));
    CHECK(test_difference(m, dm, size) < 1e-6 && test_difference(v, dv, size) < 1e-6, "adamw moments");
    CHECK(test_difference(w2, dw2, size) < 2e-6 && test_difference(velocity, dvelocity, size) < 2e-6, "sgd");
    free(w), free(m), free(v), free(w2), free(velocity), free(dw), free(dm), free(dv), free(dw2), free(dvelocity);
    free(before), free(updates), free(blocks), free(t);
}

static void test_squares(size_t n, float size) {
    float* g = test_array(n);
    double expected = 3, sum = 3, *scratch = malloc(squares_scratch(n) + 1);
    for (size_t i = 0; i < n; i++) {
        g[i] *= size;
        expected += (double)g[i] * g[i];
    }
    squares_add(&sum, g, n, scratch);
    CHECK(fabs(sum / expected - 1) < 1e-13, "squares of %zu: %.17g, not %.17g", n, sum, expected);
    free(g), free(scratch);
}

static void test_threads(void) {
    enum { N = 30011, ROWS = 101, CIN = 96, WIDTH = 16, COUNT = 4 };
    const int blocks[COUNT] = {0, 2, 3, 5}, t[COUNT] = {1, 7, 7, 2};
    float *start = test_array(N), *g = test_array(N), *w[2] = {malloc(N * 4), malloc(N * 4)}, *m = malloc(N * 4), *v = malloc(N * 4);
    double sums[2], *scratch = malloc(squares_scratch(N));
    for (int threads = 1; threads <= 3; threads++) {
        int to = threads > 1;
        omp_set_num_threads(threads);
        memcpy(w[to], start, N * 4);
        memset(m, 0, N * 4), memset(v, 0, N * 4);
        adamw_dense(w[to], NULL, m, v, g, ADAMW, 1, N);
        adamw_columns(w[to], NULL, m, v, g, ADAMW, t, blocks, COUNT, WIDTH, ROWS, CIN);
        sgd_dense(w[to], NULL, m, g, MOMENTUM, 0, N);
        sgd_columns(w[to], NULL, m, g, MOMENTUM, t, blocks, COUNT, WIDTH, ROWS, CIN);
        sums[to] = 0;
        squares_add(&sums[to], w[to], N, scratch);
        CHECK(!to || memcmp(w[0], w[1], N * 4) == 0, "updates with %d threads", threads);
        CHECK(!to || memcmp(&sums[0], &sums[1], sizeof *sums) == 0, "squares with %d threads", threads);
    }
    omp_set_num_threads(2);
    free(start), free(g), free(w[0]), free(w[1]), free(m), free(v), free(scratch);
}

static void test_clip(void) {
    const double squares[] = {4, 4, 0.25, 0, INFINITY, NAN}, clip[] = {1, 0, 1, 1, 1, 0};
    const float expected[] = {(float)(1 / (2 + 1e-6)), 1, 1, 1, NAN, NAN};
    for (int i = 0; i < 6; i++) {
        float scale = -1;
        clip_scale(&scale, squares + i, clip[i]);
        CHECK(scale == expected[i] || (isnan(scale) && isnan(expected[i])), "clip %g of squares %g: %g", clip[i], squares[i], scale);
    }
}

int main(void) {
    test_clip();
    omp_set_num_threads(2);
    test_dense(0, 1);
    test_dense(1, 30);
    test_dense(4097, 30);
    test_dense(12289, 5);
    test_columns(1, 1, 1);
    test_columns(37, 48, 16);
    test_columns(35, 1040, 16);   // more blocks than have their scalars at hand at once
    test_columns(5, 35, 5);
    test_columns(33, 70, 1);
    test_squares(0, 1);
    test_squares(1, 1);
    test_squares(4096, 1);
    test_squares(100003, 1e18f);   // squares beyond the range of float
    test_threads();
    TEST_END();
}
