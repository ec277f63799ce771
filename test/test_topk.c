// Element-wise top-k against a sort, the rule for ties beyond the capacity, and the published code's masks.
#include "kernels/topk.h"

#include <cjson/cJSON.h>

#include "kernels/device.h"
#include "test.h"

static int ascending(const void* a, const void* b) {
    float x = *(const float*)a, y = *(const float*)b;
    return (x > y) - (x < y);
}

// The threshold by a sort.
static float sorted_threshold(const float* x, double prune, int n) {
    float* a = malloc(n * sizeof *a);
    for (int i = 0; i < n; i++) a[i] = fabsf(x[i]);
    qsort(a, n, sizeof *a, ascending);
    int m = (int)(n * prune);
    float t = a[(m < 1 ? 1 : m > n ? n : m) - 1];
    free(a);
    return t;
}

// What is kept, from the rule as the header words it: larger ones, then ties from the lowest index.
static void expected(char* kept, const float* x, float threshold, int capacity, int n) {
    int room = capacity;
    for (int i = 0; i < n; i++) room -= fabsf(x[i]) > threshold;
    for (int i = 0; i < n; i++) kept[i] = fabsf(x[i]) > threshold || (fabsf(x[i]) == threshold && room-- > 0);
}

// Rounds to multiples of 1/grid where grid > 0, so that ties occur; capacity -1 is the planned one.
static void check(int samples, int n, double prune, int grid, int capacity) {
    if (capacity < 0) capacity = topk_capacity(n, prune);
    int words = (n + 31) / 32;
    float *x = test_array((size_t)samples * n), *threshold = test_array(samples);
    float* values = test_array((size_t)samples * capacity);
    float *back = test_array((size_t)samples * n), *pruned = test_array((size_t)samples * n);
    uint32_t* mask = malloc(sizeof(uint32_t) * samples * words);
    char* kept = malloc(n);
    for (int i = 0; i < samples * n && grid; i++) x[i] = rintf(x[i] * grid) / grid;
    topk_threshold(threshold, x, prune, samples, n);
    topk_pack(values, mask, x, threshold, capacity, samples, n);
    topk_unpack(back, values, mask, capacity, samples, n);
    topk_prune(pruned, x, threshold, capacity, samples, n);
    int bad = 0;
    for (int s = 0; s < samples; s++) {
        const float* xs = x + (size_t)s * n;
        float want = sorted_threshold(xs, prune, n);
        CHECK(threshold[s] == want, "n %d prune %g: threshold %g, not %g", n, prune, threshold[s], want);
        expected(kept, xs, want, capacity, n);
        int stored = 0;
        for (int i = 0; i < n; i++) {
            bad += (mask[s * words + i / 32] >> i % 32 & 1) != (uint32_t)kept[i];
            bad += kept[i] && values[(size_t)s * capacity + stored++] != xs[i];
            bad += back[(size_t)s * n + i] != (kept[i] ? xs[i] : 0);
        }
        for (int i = n; i < words * 32; i++) bad += mask[s * words + i / 32] >> i % 32 & 1;
        for (int i = stored; i < capacity; i++) bad += values[(size_t)s * capacity + i] != 0;
        CHECK(stored <= capacity, "%d kept, capacity %d", stored, capacity);
    }
    CHECK(!bad, "%d samples of %d, prune %g, grid %d, capacity %d: %d wrong", samples, n, prune, grid, capacity, bad);
    CHECK(!memcmp(pruned, back, sizeof(float) * samples * n), "prune differs from pack and unpack");
    topk_prune(x, x, threshold, capacity, samples, n);
    CHECK(!memcmp(x, back, sizeof(float) * samples * n), "prune in place differs");
    free(x); free(threshold); free(values); free(back); free(pruned); free(mask); free(kept);
}

// Zeros of both signs, infinities and NaN: NaN counts as the largest and is kept.
static void check_special(void) {
    float x[8] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1e-42f, -1e-42f, 3.0f}, threshold[1], y[8];
    topk_threshold(threshold, x, 0.5, 1, 8);  // in order: 0 0 1e-42 1e-42 3 inf inf nan; the 4th
    CHECK(threshold[0] == 1e-42f, "threshold %g", threshold[0]);
    topk_prune(y, x, threshold, topk_capacity(8, 0.5), 1, 8);  // room for 5: one of the two ties
    CHECK(y[2] == INFINITY && y[3] == -INFINITY && isnan(y[4]) && y[5] == 1e-42f && y[6] == 0 && y[7] == 3,
          "special values pruned wrongly");
    for (int i = 0; i < 8; i++) x[i] = i % 2 ? -0.0f : 0.0f;
    topk_threshold(threshold, x, 0.9, 1, 8);
    CHECK(threshold[0] == 0, "threshold of zeros %g", threshold[0]);
    CHECK(topk_capacity(8, 0) == 8 && topk_capacity(8, 1) == 1 && topk_capacity(1, 0.9) == 1 && topk_capacity(1000, 0.9) == 101,
          "capacities");
}

static void check_threads(void) {
    enum { SAMPLES = 7, N = 5003 };
    float *x = test_array(SAMPLES * N), first[SAMPLES], again[SAMPLES];
    int before = device_threads(0), capacity = topk_capacity(N, 0.8);
    float* values[2] = {test_array((size_t)SAMPLES * capacity), test_array((size_t)SAMPLES * capacity)};
    uint32_t* mask = malloc(sizeof(uint32_t) * SAMPLES * ((N + 31) / 32));
    for (int threads = 1; threads <= 3; threads++) {
        float *t = threads == 1 ? first : again, *v = values[threads > 1];
        device_threads(threads);
        topk_threshold(t, x, 0.8, SAMPLES, N);
        topk_pack(v, mask, x, t, capacity, SAMPLES, N);
        CHECK(threads == 1 || !memcmp(first, again, sizeof first), "thresholds differ with %d threads", threads);
        CHECK(threads == 1 || !memcmp(values[0], values[1], sizeof(float) * SAMPLES * capacity),
              "values differ with %d threads", threads);
    }
    device_threads(before);
    free(x); free(values[0]); free(values[1]); free(mask);
}

// The masks of the published code, which keeps all ties: capacity n.
static int check_published(const char* folder) {
    char path[1024];
    snprintf(path, sizeof path, "%s/golden/backrazor_mask.json", folder);
    FILE* f = fopen(path, "rb");
    if (!f) return 0;
    fseek(f, 0, SEEK_END);
    long size = ftell(f);
    rewind(f);
    char* text = calloc(size + 1, 1);
    CHECK(fread(text, 1, size, f) == (size_t)size, "%s: cannot read", path);
    fclose(f);
    cJSON *json = cJSON_Parse(text), *item;
    int cases = 0;
    cJSON_ArrayForEach(item, cJSON_GetObjectItem(json, "cases")) {
        cJSON *x = cJSON_GetObjectItem(item, "x"), *kept = cJSON_GetObjectItem(item, "kept");
        int all = cJSON_GetArraySize(x), samples = cJSON_GetObjectItem(item, "shape")->child->valueint, n = all / samples;
        double prune = cJSON_GetObjectItem(item, "prune")->valuedouble;
        float *a = test_array(all), *threshold = test_array(samples), *values = test_array(all);
        uint32_t* mask = malloc(sizeof(uint32_t) * samples * ((n + 31) / 32));
        cJSON* number = x->child;
        for (int i = 0; i < all; i++, number = number->next) a[i] = (float)number->valuedouble;
        topk_threshold(threshold, a, prune, samples, n);
        topk_pack(values, mask, a, threshold, n, samples, n);
        int wrong = 0;
        number = kept->child;
        for (int i = 0; i < all; i++, number = number->next)
            wrong += (int)(mask[i / n * ((n + 31) / 32) + i % n / 32] >> i % n % 32 & 1) != number->valueint;
        CHECK(!wrong, "case %d, prune %g: %d of %d differ from the published mask", cases, prune, wrong, all);
        cases++;
        free(a); free(threshold); free(values); free(mask);
    }
    CHECK(cases > 0, "%s: no cases", path);
    cJSON_Delete(json);
    free(text);
    return cases;
}

int main(void) {
    static const double prunes[] = {0, 0.3, 0.5, 0.9, 0.95, 1};
    for (int i = 0; i < 120; i++) check(test_int(1, 4), test_int(1, 200), prunes[i % 6], i % 2 ? test_int(1, 30) : 0, -1);
    check(3, 32, 0.5, 4, -1);
    check(2, 64, 0.5, 2, 64);   // all ties fit
    check(2, 97, 0.5, 1, 97);
    check(2, 40003, 0.7, 0, -1);
    check(2, 40003, 0.7, 50, -1);
    check_special();
    check_threads();
    const char* folder = getenv("PREBR_TEST_DATA");
    if (!folder || !check_published(folder)) {
        if (test_failures) return 1;
        TEST_SKIP("no golden/backrazor_mask.json in $PREBR_TEST_DATA; all other checks passed");
    }
    TEST_END();
}
