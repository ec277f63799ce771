// gemm against a product in double; the same bits with 1, 2, 3, 5 and 16 threads; and the device calls it stands on.
#include "kernels/gemm.h"

#include <omp.h>

#include "test.h"

// Random shape and strides; checks C and that nothing outside of it was written.
static void check(int ta, int tb, int m, int n, int k, int extra, float beta) {
    int lda = (ta ? m : k) + extra, ldb = (tb ? k : n) + 2 * extra, ldc = n + 3 * extra;
    float *a = test_array((size_t)(ta ? k : m) * lda), *b = test_array((size_t)(tb ? n : k) * ldb);
    float *c = test_array((size_t)m * ldc), *before = test_array((size_t)m * ldc);
    for (size_t i = 0; i < (size_t)m * ldc; i++) before[i] = c[i];
    if (beta == 0)
        for (int i = 0; i < m; i++)
            for (int j = 0; j < n; j++) c[(size_t)i * ldc + j] = NAN;
    gemm(ta, tb, m, n, k, a, lda, b, ldb, beta, c, ldc);
    double worst = 0;
    int outside = 0;
    for (int i = 0; i < m; i++)
        for (int j = 0; j < ldc; j++) {
            size_t at = (size_t)i * ldc + j;
            if (j >= n) { outside += c[at] != before[at]; continue; }
            double sum = beta == 0 ? 0 : before[at];
            size_t ia = (size_t)i * (ta ? 1 : lda), ib = (size_t)j * (tb ? ldb : 1);
            for (int p = 0; p < k; p++) sum += (double)a[ia + (size_t)p * (ta ? lda : 1)] * b[ib + (size_t)p * (tb ? 1 : ldb)];
            double d = fabs(c[at] - sum);
            if (!(d <= worst)) worst = isnan(d) ? INFINITY : d;
        }
    CHECK(worst <= 1e-6 * (1 + 4 * sqrt(k)), "%d%d %dx%dx%d beta %g: off by %g", ta, tb, m, n, k, beta, worst);
    CHECK(!outside, "%d%d %dx%dx%d: wrote outside of C", ta, tb, m, n, k);
    free(a);
    free(b);
    free(c);
    free(before);
}

// C = A B + bias + residual, for every choice of the two and the residual in place.
static void check_add(int m, int n, int k) {
    float *a = test_array((size_t)m * k), *b = test_array((size_t)n * k), *bias = test_array(n);
    float *residual = test_array((size_t)m * n), *c = test_array((size_t)m * n);
    double* want = malloc(sizeof(double) * m * n);
    for (int way = 0; way < 6; way++) {
        int with_bias = way & 1, kind = way / 2;  // kind of residual: none, apart, in place
        for (int i = 0; i < m; i++)
            for (int j = 0; j < n; j++) {
                double sum = (with_bias ? bias[j] : 0) + (kind ? residual[(size_t)i * n + j] : 0);
                for (int p = 0; p < k; p++) sum += (double)a[(size_t)i * k + p] * b[(size_t)j * k + p];
                want[(size_t)i * n + j] = sum;
            }
        for (size_t i = 0; i < (size_t)m * n; i++) c[i] = kind == 2 ? residual[i] : NAN;
        gemm_add(0, 1, m, n, k, a, k, b, k, with_bias ? bias : NULL, kind == 2 ? c : kind ? residual : NULL, c, n);
        double d = test_difference(c, want, (size_t)m * n);
        CHECK(d <= 1e-6 * (1 + 4 * sqrt(k)), "%dx%dx%d bias %d residual %d: off by %g", m, n, k, with_bias, kind, d);
    }
    free(a);
    free(b);
    free(bias);
    free(residual);
    free(c);
    free(want);
}

// The same bits on every number of threads, the caller's own parallel region included.
static void check_threads(int ta, int tb, int m, int n, int k) {
    float *a = test_array((size_t)m * k), *b = test_array((size_t)n * k);
    float *one = test_array((size_t)m * n), *many = test_array((size_t)m * n);
    int lda = ta ? m : k, ldb = tb ? k : n, before = device_threads(0);
    device_threads(1);
    gemm(ta, tb, m, n, k, a, lda, b, ldb, 0, one, n);
    int counts[] = {2, 3, 5, 16};
    for (int i = 0; i < 4; i++) {
        device_threads(counts[i]);
        gemm(ta, tb, m, n, k, a, lda, b, ldb, 0, many, n);
        CHECK(!memcmp(one, many, sizeof(float) * m * n), "%d%d %dx%dx%d: %d threads differ from one", ta, tb, m, n, k, counts[i]);
    }
    #pragma omp parallel num_threads(2)
    #pragma omp single
    gemm(ta, tb, m, n, k, a, lda, b, ldb, 0, many, n);
    CHECK(!memcmp(one, many, sizeof(float) * m * n), "%d%d %dx%dx%d: inside a parallel region it differs", ta, tb, m, n, k);
    CHECK(device_threads(0) == 16, "gemm changed the number of threads");
    device_threads(before);
    free(a);
    free(b);
    free(one);
    free(many);
}

static void spend(double seconds) {
    double began = device_seconds();
    while (device_seconds() - began < seconds) {}
}

static void check_device(void) {
    size_t bytes = (3 << 20) + 7;
    unsigned char *p = device_alloc(bytes), *q = device_alloc(bytes), *host = malloc(bytes);
    CHECK(p && q && (uintptr_t)p % 64 == 0, "device_alloc gave %p", (void*)p);
    int bad = 0;
    for (size_t i = 0; i < bytes; i++) bad += p[i] != 0;
    CHECK(!bad, "%d bytes of new memory are not zero", bad);
    for (size_t i = 0; i < bytes; i++) host[i] = (unsigned char)(i * 2654435761u >> 24);
    device_upload(p, host, bytes);
    device_copy(q, p, bytes);
    memset(host, 0, bytes);
    device_download(host, q, bytes);
    for (size_t i = 0; i < bytes; i++) bad += host[i] != (unsigned char)(i * 2654435761u >> 24);
    CHECK(!bad, "%d bytes did not survive upload, copy and download", bad);
    device_zero(q, bytes - 1);
    for (size_t i = 0; i < bytes - 1; i++) bad += q[i] != 0;
    CHECK(!bad && q[bytes - 1] == host[bytes - 1], "device_zero zeroed too little or too much");
    CHECK(!device_alloc((size_t)1 << 60), "an impossible allocation did not give NULL");
    size_t available = device_memory_available();
    CHECK(available > 1 << 20 && available < (size_t)1 << 50, "memory available: %zu", available);
    float* view = host_view_open((float*)p, 16);
    view[3] = 5;
    host_view_close(view, (float*)p, 16, 1);
    CHECK(((float*)p)[3] == 5, "what was written to a view did not arrive");
    device_free(p, bytes);
    device_free(q, bytes);
    free(host);
    CHECK(strstr(device_name(), "oneDNN"), "device_name: %s", device_name());

    timer_start(TIME_GEMM);  // off: counts nothing
    timer_stop();
    CHECK(timer_seconds(TIME_GEMM) == 0, "a timer that is off counted");
    timer_enable(1);
    double began = device_seconds();
    timer_start(TIME_GEMM);
    spend(0.01);
    timer_start(TIME_NORM);
    spend(0.02);
    timer_stop();
    double all = device_seconds() - began, g = timer_seconds(TIME_GEMM), n = timer_seconds(TIME_NORM);
    CHECK(g > 0.009 && n > 0.019 && g + n <= all && timer_seconds(TIME_OTHER) == 0, "parts %g and %g of %g s", g, n, all);
    timer_reset();
    CHECK(timer_seconds(TIME_GEMM) == 0, "a reset timer shows %g", timer_seconds(TIME_GEMM));
    for (int part = 0; part < TIME_PARTS; part++)
        CHECK(timer_part_name(part) && *timer_part_name(part), "part %d has no name", part);
    timer_enable(0);
}

int main(void) {
    check_device();
    static const int edges[] = {1, 2, 3, 7, 8, 13, 16, 17, 31, 64, 97};
    for (int ta = 0; ta < 2; ta++)
        for (int tb = 0; tb < 2; tb++) {
            for (int i = 0; i < 60; i++)
                check(ta, tb, edges[test_int(0, 10)], edges[test_int(0, 10)], edges[test_int(0, 10)], test_int(0, 5), i % 2);
            check(ta, tb, 257, 193, 300, 3, 0);     // several tiles
            check(ta, tb, 61, 50, 1601, 0, 1);      // pieces of K
            check(ta, tb, 1, 300, 400, 0, 0);
            check(ta, tb, 300, 1, 400, 1, 1);
            check(ta, tb, 5, 6, 0, 2, 0);           // no depth: beta C
            check(ta, tb, 5, 6, 0, 2, 1);
            check(ta, tb, 0, 6, 3, 0, 0);
            check(ta, tb, 6, 0, 3, 0, 0);
        }
    check(1, 0, 530, 640, 800, 0, 0);               // tiles and pieces of K
    check_add(5, 7, 3);
    check_add(1, 1, 1);
    check_add(130, 97, 211);
    check_add(6, 9, 0);
    static const int shapes[][5] = {
        {0, 1, 1184, 192, 192}, {0, 1, 1184, 192, 768}, {0, 0, 1184, 192, 576}, {1, 0, 192, 192, 1184}, {1, 0, 768, 192, 1184},
        {0, 1, 1576, 768, 768}, {0, 1, 1576, 768, 1536}, {0, 0, 1576, 768, 2304}, {1, 0, 768, 768, 1576}, {1, 0, 768, 384, 1576},
        {1, 0, 100, 192, 37}, {1, 0, 7, 13, 5000}, {1, 0, 48, 48, 10000}, {1, 0, 192, 16, 6304},
        {0, 1, 1, 1000, 768}, {0, 1, 1000, 1, 768}, {0, 1, 3, 5, 20000}, {0, 1, 32, 10, 192}, {1, 0, 10, 192, 32},
        {0, 0, 331, 257, 509}};
    for (int i = 0; i < (int)(sizeof shapes / sizeof *shapes); i++) {
        const int* s = shapes[i];
        check_threads(s[0], s[1], s[2], s[3], s[4]);
    }
    TEST_END();
}
