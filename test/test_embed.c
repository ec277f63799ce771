// Patches, tokens and pooling against loops in double, their backwards against central differences, and bits for 1, 2, 3 threads.
#include "kernels/embed.h"

#include <omp.h>

#include "test.h"

static double* widen(const float* a, size_t n) {
    double* d = malloc(n * sizeof *d);
    for (size_t i = 0; i < n; i++) d[i] = a[i];
    return d;
}

static double dot(const double* a, const float* b, size_t n) {
    double s = 0;
    for (size_t i = 0; i < n; i++) s += a[i] * b[i];
    return s;
}

static void reference_tokens(double* y, const double* embedded, const double* cls, const double* position, int b, int n, int prefix,
                             int c) {
    for (int s = 0; s < b; s++)
        for (int i = 0; i < prefix + n; i++)
            for (int k = 0; k < c; k++) {
                double x = i < prefix ? cls[k] : embedded[((size_t)s * n + i - prefix) * c + k];
                y[((size_t)s * (prefix + n) + i) * c + k] = x + position[i * c + k];
            }
}

static void reference_pool(double* y, const double* x, int mean, int prefix, int b, int t, int c) {
    for (int s = 0; s < b; s++)
        for (int k = 0; k < c; k++) {
            double sum = 0;
            for (int i = prefix; i < t; i++) sum += x[((size_t)s * t + i) * c + k];
            y[(size_t)s * c + k] = mean ? sum / (t - prefix) : x[(size_t)s * t * c + k];
        }
}

static void test_patches(int b, int channels, int size, int patch) {
    int grid = size / patch, columns = channels * patch * patch;
    size_t n = (size_t)b * grid * grid * columns;
    float *images = test_array((size_t)b * channels * size * size), *patches = test_array(n);
    patches_gather(patches, images, b, channels, size, patch);
    int wrong = 0;
    for (size_t i = 0; i < n; i++) {
        int column = i % columns, p = i / columns % (grid * grid), s = i / columns / (grid * grid);
        int x = column % patch + p % grid * patch, y = column / patch % patch + p / grid * patch, ch = column / (patch * patch);
        wrong += patches[i] != images[(((size_t)s * channels + ch) * size + y) * size + x];
    }
    CHECK(wrong == 0, "%d of %zu elements wrong for b %d channels %d size %d patch %d", wrong, n, b, channels, size, patch);
    free(images), free(patches);
}

static void test_tokens(int b, int n, int prefix, int c, float beta) {
    int t = prefix + n;
    size_t ne = (size_t)b * n * c, nt = (size_t)b * t * c, np = (size_t)t * c;
    float *embedded = test_array(ne), *cls = test_array(c), *position = test_array(np);
    float *tokens = test_array(nt), *dtokens = test_array(nt);
    double *e = widen(embedded, ne), *k = widen(cls, c), *p = widen(position, np), *y = malloc(nt * sizeof *y);
    tokens_forward(tokens, embedded, prefix ? cls : NULL, position, b, n, prefix, c);
    reference_tokens(y, e, k, p, b, n, prefix, c);
    CHECK(test_difference(tokens, y, nt) < 1e-6, "forward");

    float *dembedded = test_array(ne), *dcls = test_array(c), *dposition = test_array(np);
    double *old_cls = widen(dcls, c), *old_position = widen(dposition, np);
    if (beta == 0) dcls[0] = dposition[0] = NAN;   // must be overwritten, not multiplied by 0
    tokens_backward(dembedded, prefix ? dcls : NULL, dposition, dtokens, beta, b, n, prefix, c);
    float* alone = test_array(ne);
    tokens_backward(alone, NULL, NULL, dtokens, beta, b, n, prefix, c);   // bitfit: neither learns
    CHECK(memcmp(alone, dembedded, ne * sizeof *alone) == 0, "dembedded depends on what learns");
    free(alone);

    struct { double *x, *before; float* dx; size_t n; const char* name; } of[] = {
        {e, NULL, dembedded, ne, "dembedded"},
        {k, old_cls, dcls, prefix ? c : 0, "dcls"},
        {p, old_position, dposition, np, "dposition"},
    };
    for (int a = 0; a < 3; a++)
        for (int probe = 0; probe < 20 && of[a].n; probe++) {
            size_t i = probe == 0 ? 0 : (size_t)test_int(0, (int)of[a].n - 1);
            double h = 1e-3, x = of[a].x[i], loss[2];
            for (int side = 0; side < 2; side++) {
                of[a].x[i] = side ? x - h : x + h;
                reference_tokens(y, e, k, p, b, n, prefix, c);
                loss[side] = dot(y, dtokens, nt);
            }
            of[a].x[i] = x;
            double expected = (loss[0] - loss[1]) / (2 * h) + (of[a].before && beta ? beta * of[a].before[i] : 0), got = of[a].dx[i];
            CHECK(fabs(got - expected) < 1e-5 * (1 + fabs(expected)), "%s[%zu] = %g, not %g (b %d n %d prefix %d c %d beta %g)",
                  of[a].name, i, got, expected, b, n, prefix, c, beta);
        }
    free(embedded), free(cls), free(position), free(tokens), free(dtokens), free(dembedded), free(dcls), free(dposition);
    free(e), free(k), free(p), free(y), free(old_cls), free(old_position);
}

static void test_pool(int mean, int prefix, int b, int t, int c) {
    size_t nt = (size_t)b * t * c, np = (size_t)b * c;
    float *tokens = test_array(nt), *pooled = test_array(np), *dpooled = test_array(np), *dtokens = test_array(nt);
    double *x = widen(tokens, nt), *y = malloc(np * sizeof *y);
    pool_forward(pooled, tokens, mean, prefix, b, t, c);
    reference_pool(y, x, mean, prefix, b, t, c);
    CHECK(test_difference(pooled, y, np) < 1e-6, "forward, mean %d prefix %d b %d t %d c %d", mean, prefix, b, t, c);
    for (size_t i = 0; i < nt; i++) dtokens[i] = NAN;
    pool_backward(dtokens, dpooled, mean, prefix, b, t, c);
    for (int probe = 0; probe < 40; probe++) {
        size_t i = probe == 0 ? 0 : (size_t)test_int(0, (int)nt - 1);
        double h = 1e-3, at = x[i], loss[2];
        for (int side = 0; side < 2; side++) {
            x[i] = side ? at - h : at + h;
            reference_pool(y, x, mean, prefix, b, t, c);
            loss[side] = dot(y, dpooled, np);
        }
        x[i] = at;
        double expected = (loss[0] - loss[1]) / (2 * h);
        CHECK(fabs(dtokens[i] - expected) < 1e-6, "dtokens[%zu] = %g, not %g", i, dtokens[i], expected);
    }
    for (size_t i = 0; i < nt; i++) CHECK(!isnan(dtokens[i]), "dtokens[%zu] not written", i);
    free(tokens), free(pooled), free(dpooled), free(dtokens), free(x), free(y);
}

static void test_threads(void) {
    enum { B = 13, N = 49, C = 67, T = N + 1 };
    float *dtokens = test_array(B * T * C), *dembedded = test_array(B * N * C);
    float *grad[2] = {test_array((T + 1) * C), test_array((T + 1) * C)};   // dposition, then dcls
    float *pooled[2] = {test_array(B * C), test_array(B * C)};
    for (int threads = 1; threads <= 3; threads++) {
        int to = threads > 1;
        omp_set_num_threads(threads);
        tokens_backward(dembedded, grad[to] + T * C, grad[to], dtokens, 0, B, N, 1, C);
        pool_forward(pooled[to], dtokens, 1, 1, B, T, C);
        CHECK(!to || memcmp(grad[0], grad[1], (T + 1) * C * sizeof(float)) == 0, "tokens_backward with %d threads", threads);
        CHECK(!to || memcmp(pooled[0], pooled[1], B * C * sizeof(float)) == 0, "pool_forward with %d threads", threads);
    }
    omp_set_num_threads(2);
    free(dtokens), free(dembedded), free(grad[0]), free(grad[1]), free(pooled[0]), free(pooled[1]);
}

int main(void) {
    omp_set_num_threads(2);
    test_patches(1, 1, 1, 1);
    test_patches(2, 3, 32, 16);
    test_patches(3, 3, 37, 7);     // a border of 2 pixels is not used
    test_patches(1, 2, 23, 23);
    test_tokens(1, 1, 0, 1, 0);
    test_tokens(2, 5, 1, 17, 0);
    test_tokens(7, 13, 1, 33, 1);
    test_tokens(3, 4, 0, 31, 0.5f);
    for (int mean = 0; mean < 2; mean++) {
        test_pool(mean, 1, 3, 11, 37);
        test_pool(mean, 0, 1, 1, 1);
        test_pool(mean, 1, 2, 2, 16);
    }
    test_threads();
    TEST_END();
}
