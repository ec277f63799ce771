// Column blocks: gather, scatter, squares and scale against plain loops; the same bits on any number of threads.
#include "kernels/columns.h"

#include "test.h"

// n ascending block numbers out of `all`.
static void choose(int* blocks, int n, int all) {
    for (int i = 0, taken = 0; i < all && taken < n; i++)
        if (test_int(0, all - i - 1) < n - taken) blocks[taken++] = i;
}

static void check(int t, int width, int all, int n) {
    int cin = width * all, k = n * width;
    int* blocks = malloc((n + 1) * sizeof *blocks);
    choose(blocks, n, all);
    float *x = test_array((size_t)t * cin), *packed = test_array((size_t)t * k), *back = test_array((size_t)t * cin);
    float* untouched = malloc(sizeof(float) * t * cin);
    memcpy(untouched, back, sizeof(float) * t * cin);
    columns_gather(packed, x, blocks, n, width, t, cin);
    columns_scatter(back, packed, blocks, n, width, t, cin);
    int bad = 0;
    for (int i = 0; i < t; i++)
        for (int c = 0, j = 0; c < all; c++) {
            int here = j < n && blocks[j] == c;
            for (int p = 0; p < width; p++) {
                size_t at = (size_t)i * cin + c * width + p;
                bad += back[at] != (here ? x[at] : untouched[at]);
                bad += here && packed[(size_t)i * k + j * width + p] != x[at];
            }
            j += here;
        }
    CHECK(!bad, "gather and scatter of %d x %d blocks of %d, %d taken: %d wrong", t, all, width, n, bad);

    double *squares = malloc(all * sizeof *squares), *want = malloc(all * sizeof *want);
    void* scratch = malloc(columns_squares_scratch(t, cin, width));
    for (int with = 0; with < 2; with++) {
        for (int c = 0; c < all; c++) {
            want[c] = with ? c : 0;
            squares[c] = with ? c : NAN;
            for (int i = 0; i < t; i++)
                for (int p = 0; p < width; p++) want[c] += pow(x[(size_t)i * cin + c * width + p], 2);
        }
        columns_squares(squares, x, with, width, t, cin, scratch);
        for (int c = 0; c < all; c++)
            CHECK(fabs(squares[c] - want[c]) <= 1e-12 * (1 + want[c]), "squares[%d] = %g, not %g", c, squares[c], want[c]);
    }
    for (int c = 0; c < all; c++) squares[c] = -1;
    columns_gradient_squares(squares, packed, blocks, n, width, t, scratch);
    for (int c = 0, j = 0; c < all; c++) {
        int here = j < n && blocks[j] == c;
        double sum = here ? 0 : -1;
        for (int i = 0; i < t && here; i++)
            for (int p = 0; p < width; p++) sum += pow(packed[(size_t)i * k + j * width + p], 2);
        CHECK(fabs(squares[c] - sum) <= 1e-12 * (1 + fabs(sum)), "gradient squares[%d] = %g, not %g", c, squares[c], sum);
        j += here;
    }

    float* scale = test_array(n);
    float* scaled = malloc(sizeof(float) * (t * k + 1));
    memcpy(scaled, packed, sizeof(float) * t * k);
    columns_scale(scaled, scale, width, t, n);
    bad = 0;
    for (int i = 0; i < t * k; i++) bad += scaled[i] != packed[i] * scale[i % k / width];
    CHECK(!bad, "scale: %d wrong", bad);
    free(blocks); free(x); free(packed); free(back); free(untouched);
    free(squares); free(want); free(scratch); free(scale); free(scaled);
}

static void check_threads(void) {
    enum { T = 1009, CIN = 192, WIDTH = 16, ALL = CIN / WIDTH };
    float* x = test_array(T * CIN);
    void* scratch = malloc(columns_squares_scratch(T, CIN, WIDTH));
    double first[ALL], squares[ALL];
    int before = device_threads(0);
    for (int threads = 1; threads <= 3; threads++) {
        device_threads(threads);
        columns_squares(threads == 1 ? first : squares, x, 0, WIDTH, T, CIN, scratch);
        CHECK(threads == 1 || !memcmp(first, squares, sizeof first), "squares differ with %d threads", threads);
    }
    device_threads(before);
    free(x);
    free(scratch);
}

int main(void) {
    check(1, 1, 1, 1);
    check(1, 16, 12, 0);
    check(129, 16, 12, 12);
    check(300, 1, 37, 11);
    check(257, 16, 48, 24);
    for (int i = 0; i < 40; i++) {
        int all = test_int(1, 20);
        check(test_int(1, 260), test_int(1, 19), all, test_int(0, all));
    }
    check_threads();
    TEST_END();
}
