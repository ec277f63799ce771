// The rate of our GEMM beside that of plain dnnl_sgemm, called in turn, on the products of ViT-Ti/16 and ViT-B/16 at 224 px.
// The ratio
// is the median over rounds of calls that follow one another. With one thread, seconds are processor time, which other load on the
// machine disturbs least. Usage: build/test/bench_gemm [threads] [rounds].
#include <dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "kernels/gemm.h"

static int ascending(const void* a, const void* b) {
    double x = *(const double*)a, y = *(const double*)b;
    return (x > y) - (x < y);
}

static double median(double* a, int n) {
    qsort(a, n, sizeof *a, ascending);
    return n % 2 ? a[n / 2] : (a[n / 2 - 1] + a[n / 2]) / 2;
}

static float* numbers(size_t n) {
    float* a = malloc(n * sizeof *a);
    for (size_t i = 0; i < n; i++) a[i] = (float)(i * 2654435761u % 1024) / 1024 - 0.5f;
    return a;
}

static int threads;

static double seconds(void) {
    struct timespec t;
    clock_gettime(threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

static double total_ours, total_theirs;  // seconds

// One product, ta and tb as in gemm.h. Prints GFLOP/s of both (medians) and the median of the rounds' ratios.
static void bench(const char* name, int ta, int tb, int m, int n, int k, int rounds) {
    enum { MOST = 101 };
    double ours[MOST], theirs[MOST], ratio[MOST], flops = 2.0 * m * n * k;
    float *a = numbers((size_t)m * k), *b = numbers((size_t)n * k), *c = numbers((size_t)m * n);
    int lda = ta ? m : k, ldb = tb ? k : n, calls = 1 + (int)(2e8 / flops);
    for (int r = -1; r < rounds; r++) {  // round -1 warms up
        double t0 = seconds();
        for (int i = 0; i < calls; i++) gemm(ta, tb, m, n, k, a, lda, b, ldb, 0, c, n);
        double t1 = seconds();
        for (int i = 0; i < calls; i++) dnnl_sgemm(ta ? 'T' : 'N', tb ? 'T' : 'N', m, n, k, 1, a, lda, b, ldb, 0, c, n);
        double t2 = seconds();
        if (r < 0) continue;
        ours[r] = (t1 - t0) / calls;
        theirs[r] = (t2 - t1) / calls;
        ratio[r] = theirs[r] / ours[r];
    }
    double mine = median(ours, rounds), plain = median(theirs, rounds);
    total_ours += mine;
    total_theirs += plain;
    printf("%-8s %5d %5d %5d %8.1f %8.1f %6.2f\n", name, m, n, k, flops / mine * 1e-9, flops / plain * 1e-9,
           median(ratio, rounds));
    fflush(stdout);
    free(a);
    free(b);
    free(c);
}

int main(int argc, char** argv) {
    int rounds = argc > 2 ? atoi(argv[2]) : 15;
    if (rounds < 1 || rounds > 101) rounds = 15;
    threads = device_threads(argc > 1 ? atoi(argv[1]) : 0);
    printf("%s\n", device_name());
    static const struct { const char* model; int width, batch; } runs[] = {
        {"ViT-Ti/16", 192, 8}, {"ViT-Ti/16", 192, 32}, {"ViT-B/16", 768, 8}, {"ViT-B/16", 768, 32}};
    static const struct { const char* name; int in, out; } layers[] = {
        {"qkv", 1, 3}, {"proj", 1, 1}, {"fc1", 1, 4}, {"fc2", 4, 1}};
    for (int r = 0; r < 4; r++) {
        int t = runs[r].batch * 197;
        total_ours = total_theirs = 0;
        printf("\n%s, batch %d\n", runs[r].model, runs[r].batch);
        printf("%-8s %5s %5s %5s %8s %8s %6s\n", "product", "m", "n", "k", "GFLOP/s", "oneDNN", "ratio");
        for (int l = 0; l < 4; l++) {
            int cin = layers[l].in * runs[r].width, cout = layers[l].out * runs[r].width;
            char name[32];
            snprintf(name, sizeof name, "%s Y", layers[l].name);
            bench(name, 0, 1, t, cout, cin, rounds);
            snprintf(name, sizeof name, "%s dX", layers[l].name);
            bench(name, 0, 0, t, cin, cout, rounds);
            snprintf(name, sizeof name, "%s dW", layers[l].name);
            bench(name, 1, 0, cout, cin, t, rounds);
        }
        printf("all twelve: %.2f of plain oneDNN's speed\n", total_theirs / total_ours);
    }
    return 0;
}
