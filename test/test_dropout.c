// Dropout draw by draw against its formula, its share and mean, its gradient; tanh against the C library and central differences.
#include "kernels/dropout.h"

#include "kernels/philox.h"
#include "kernels/tanh.h"
#include "test.h"

static void test_draws(size_t n, float p, int with_residual, int in_place) {
    Dropout d = {p, 0x123456789abcdefull, 77, 13};
    float *x = test_array(n), *residual = test_array(n), *y = in_place ? malloc(n * sizeof *y) : test_array(n);
    if (in_place) memcpy(y, x, n * sizeof *y);
    dropout_apply(y, in_place ? y : x, with_residual ? residual : NULL, d, n);
    size_t dropped = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = philox(d.seed, STREAM_DROPOUT, d.step, ((uint64_t)d.site << 40) + i / 4).v[i % 4];
        int drop = p > 0 && (double)(bits >> 8) / 16777216 < p;
        double expected = (with_residual ? residual[i] : 0) + (drop ? 0 : x[i] / (1 - (double)p));
        dropped += (size_t)drop;
        CHECK(fabs(y[i] - expected) < 1e-6 * (1 + fabs(expected)), "element %zu of %zu: %g, not %g", i, n, y[i], expected);
    }
    CHECK(n < 10000 || fabs((double)dropped / (double)n - p) < 4 * sqrt(p * (1 - p) / (double)n) + 1e-12, "%zu of %zu dropped at %g", dropped, n, p);
    free(x), free(residual), free(y);
}

static void test_sites(void) {
    enum { N = 4096 };
    float *ones = malloc(N * sizeof *ones), *a = malloc(N * sizeof *a), *b = malloc(N * sizeof *b);
    for (int i = 0; i < N; i++) ones[i] = 1;
    Dropout base = {0.5f, 9, 3, 2};
    for (int change = 0; change < 3; change++) {
        Dropout other = base;
        if (change == 0) other.seed++;
        if (change == 1) other.step++;
        if (change == 2) other.site++;
        dropout_apply(a, ones, NULL, base, N);
        dropout_apply(b, ones, NULL, other, N);
        int same = 0;
        for (int i = 0; i < N; i++) same += a[i] == b[i];
        CHECK(abs(same - N / 2) < 200, "masks that should not be related agree in %d of %d places", same, N);
    }
    for (int threads = 1; threads <= 3; threads++) {
        omp_set_num_threads(threads);
        dropout_apply(b, ones, NULL, base, N - 3);
        CHECK(!memcmp(a, b, (N - 3) * sizeof *a), "%d threads", threads);
    }
    free(ones), free(a), free(b);
}

static void test_tanh(void) {
    enum { N = 1009 };
    float *x = test_array(N), *y = malloc(N * sizeof *y), *dy = test_array(N), *dx = malloc(N * sizeof *dx);
    for (int i = 0; i < N; i++) x[i] *= 6;
    tanh_forward(y, x, N);
    tanh_backward(dx, dy, y, N);
    for (int i = 0; i < N; i++) {
        double h = 1e-4, slope = (tanh(x[i] + h) - tanh(x[i] - h)) / (2 * h);
        CHECK(fabs(y[i] - tanh(x[i])) < 1e-6 && fabs(dx[i] - dy[i] * slope) < 1e-6, "tanh(%g) = %g, gradient %g, not %g", x[i], y[i], dx[i], dy[i] * slope);
    }
    free(x), free(y), free(dy), free(dx);
}

int main(void) {
    test_draws(1, 0.5f, 0, 0);
    test_draws(67, 0.1f, 1, 0);
    test_draws(100003, 0.1f, 1, 1);
    test_draws(64, 0, 1, 0);
    test_draws(130, 0, 0, 1);
    test_sites();
    test_tanh();
    TEST_END();
}
