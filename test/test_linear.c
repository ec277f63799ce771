// The linear layer against references in double, the references' gradients against central differences, and the same bits on
// any number of threads.
#include "kernels/linear.h"

#include "test.h"

// loss = sum of weight * (x w^T + b), everything in double: what backward differentiates.
static double loss(const double* x, const double* w, const double* b, const float* weight, int t, int cin, int cout) {
    double sum = 0;
    for (int i = 0; i < t; i++)
        for (int j = 0; j < cout; j++) {
            double y = b[j];
            for (int p = 0; p < cin; p++) y += x[(size_t)i * cin + p] * w[(size_t)j * cin + p];
            sum += y * weight[(size_t)i * cout + j];
        }
    return sum;
}

static double* doubles(const float* a, size_t n) {
    double* d = malloc(n * sizeof *d);
    for (size_t i = 0; i < n; i++) d[i] = a[i];
    return d;
}

// Every gradient of a small layer, element by element, against a central difference.
static void check_differences(int t, int cin, int cout) {
    float *x = test_array((size_t)t * cin), *w = test_array((size_t)cout * cin);
    float *b = test_array(cout), *dy = test_array((size_t)t * cout);
    float *dx = test_array((size_t)t * cin), *dw = test_array((size_t)cout * cin), *db = test_array(cout);
    double *xd = doubles(x, (size_t)t * cin), *wd = doubles(w, (size_t)cout * cin), *bd = doubles(b, cout);
    void* scratch = malloc(linear_bias_scratch(t, cout));
    linear_backward_input(dx, dy, w, 0, t, cin, cout);
    linear_backward_weight(dw, dy, x, 0, t, cin, cout);
    linear_backward_bias(db, dy, 0, t, cout, scratch);
    struct { double* at; const float* got; size_t n; const char* name; } parts[] = {
        {xd, dx, (size_t)t * cin, "dx"}, {wd, dw, (size_t)cout * cin, "dw"}, {bd, db, cout, "db"}};
    for (int p = 0; p < 3; p++)
        for (size_t i = 0; i < parts[p].n; i++) {
            double at = parts[p].at[i], h = 1e-3;
            parts[p].at[i] = at + h;
            double up = loss(xd, wd, bd, dy, t, cin, cout);
            parts[p].at[i] = at - h;
            double down = loss(xd, wd, bd, dy, t, cin, cout);
            parts[p].at[i] = at;
            double want = (up - down) / (2 * h);
            CHECK(fabs(parts[p].got[i] - want) < 1e-5, "%dx%dx%d: %s[%zu] = %g, difference %g", t, cin, cout, parts[p].name, i,
                  parts[p].got[i], want);
        }
    free(x); free(w); free(b); free(dy); free(dx); free(dw); free(db); free(xd); free(wd); free(bd); free(scratch);
}

static void check_forward(int t, int cin, int cout, int with_bias, int kind) {
    float *x = test_array((size_t)t * cin), *w = test_array((size_t)cout * cin), *b = test_array(cout);
    float *r = test_array((size_t)t * cout), *y = test_array((size_t)t * cout);
    double* want = malloc(sizeof(double) * t * cout);
    for (int i = 0; i < t; i++)
        for (int j = 0; j < cout; j++) {
            double sum = (with_bias ? b[j] : 0) + (kind ? r[(size_t)i * cout + j] : 0);
            for (int p = 0; p < cin; p++) sum += (double)x[(size_t)i * cin + p] * w[(size_t)j * cin + p];
            want[(size_t)i * cout + j] = sum;
        }
    if (kind == 2) memcpy(y, r, sizeof(float) * t * cout);
    linear_forward(y, x, w, with_bias ? b : NULL, kind == 2 ? y : kind ? r : NULL, t, cin, cout);
    double d = test_difference(y, want, (size_t)t * cout);
    CHECK(d < 1e-5, "forward %dx%dx%d bias %d residual %d: off by %g", t, cin, cout, with_bias, kind, d);
    free(x); free(w); free(b); free(r); free(y); free(want);
}

// Weight and bias in one call: as in two where the backend has it, else nothing is touched.
static int both_in_one = 0;
static void check_both(const float* x, const float* dy, int t, int cout, int k) {
    size_t n = (size_t)cout * k;
    float *dw = test_array(n), *db = test_array(cout), *dw_before = malloc(n * 4), *db_before = malloc(cout * 4);
    memcpy(dw_before, dw, n * 4);
    memcpy(db_before, db, cout * 4);
    if (linear_backward_weight_bias(dw, db, dy, x, t, k, cout)) {
        double *want_w = calloc(n, 8), *want_b = calloc(cout, 8);
        for (int i = 0; i < t; i++)
            for (int j = 0; j < cout; j++) {
                want_b[j] += dy[(size_t)i * cout + j];
                for (int p = 0; p < k; p++) want_w[(size_t)j * k + p] += (double)dy[(size_t)i * cout + j] * x[(size_t)i * k + p];
            }
        CHECK(test_difference(dw, want_w, n) < 1e-5 && test_difference(db, want_b, cout) < 1e-5, "dw and db in one, %dx%d, k %d", t, cout, k);
        both_in_one++;
        free(want_w), free(want_b);
    } else {
        CHECK(!memcmp(dw, dw_before, n * 4) && !memcmp(db, db_before, cout * 4), "dw or db was touched, %dx%d, k %d", t, cout, k);
    }
    free(dw), free(db), free(dw_before), free(db_before);
}

// Gradients that add to what is there (beta 1), and the packed columns of x.
static void check_accumulation(int t, int cin, int cout, int k) {
    float *x = test_array((size_t)t * k), *w = test_array((size_t)cout * cin), *dy = test_array((size_t)t * cout);
    float *dx = test_array((size_t)t * cin), *dw = test_array((size_t)cout * k), *db = test_array(cout);
    double *want_x = doubles(dx, (size_t)t * cin), *want_w = doubles(dw, (size_t)cout * k), *want_b = doubles(db, cout);
    for (int i = 0; i < t; i++)
        for (int j = 0; j < cout; j++) {
            double g = dy[(size_t)i * cout + j];
            want_b[j] += g;
            for (int p = 0; p < cin; p++) want_x[(size_t)i * cin + p] += g * w[(size_t)j * cin + p];
            for (int p = 0; p < k; p++) want_w[(size_t)j * k + p] += g * x[(size_t)i * k + p];
        }
    void* scratch = malloc(linear_bias_scratch(t, cout));
    linear_backward_input(dx, dy, w, 1, t, cin, cout);
    linear_backward_weight(dw, dy, x, 1, t, k, cout);
    linear_backward_bias(db, dy, 1, t, cout, scratch);
    double ex = test_difference(dx, want_x, (size_t)t * cin), ew = test_difference(dw, want_w, (size_t)cout * k);
    double eb = test_difference(db, want_b, cout);
    CHECK(ex < 1e-5 && ew < 1e-5 && eb < 1e-5, "beta 1, %dx%dx%d, k %d: off by %g %g %g", t, cin, cout, k, ex, ew, eb);
    check_both(x, dy, t, cout, k);
    free(x); free(w); free(dy); free(dx); free(dw); free(db); free(want_x); free(want_w); free(want_b); free(scratch);
}

// Forward and every gradient with 1, 2 and 3 threads. db overwrites NaN where beta is 0.
static void check_threads(int t, int cin, int cout) {
    float *x = test_array((size_t)t * cin), *w = test_array((size_t)cout * cin);
    float *b = test_array(cout), *dy = test_array((size_t)t * cout);
    size_t sizes[] = {(size_t)t * cout, (size_t)t * cin, (size_t)cout * cin, cout};
    float *first[4], *out[4];
    for (int i = 0; i < 4; i++) {
        first[i] = test_array(sizes[i]);
        out[i] = test_array(sizes[i]);
    }
    void* scratch = malloc(linear_bias_scratch(t, cout));
    int before = device_threads(0);
    for (int threads = 1; threads <= 3; threads++) {
        float** to = threads == 1 ? first : out;
        device_threads(threads);
        for (int j = 0; j < cout; j++) to[3][j] = NAN;
        linear_forward(to[0], x, w, b, dy, t, cin, cout);
        linear_backward_input(to[1], dy, w, 0, t, cin, cout);
        linear_backward_weight(to[2], dy, x, 0, t, cin, cout);
        linear_backward_bias(to[3], dy, 0, t, cout, scratch);
        CHECK(!isnan(to[3][0]) && !isnan(to[3][cout - 1]), "db kept a NaN");
        for (int i = 0; i < 4 && threads > 1; i++)
            CHECK(!memcmp(first[i], out[i], sizes[i] * sizeof(float)), "%dx%dx%d: result %d differs with %d threads",
                  t, cin, cout, i, threads);
    }
    device_threads(before);
    for (int i = 0; i < 4; i++) {
        free(first[i]);
        free(out[i]);
    }
    free(x); free(w); free(b); free(dy); free(scratch);
}

int main(void) {
    check_differences(1, 1, 1);
    check_differences(5, 3, 7);
    check_differences(13, 17, 11);
    for (int i = 0; i < 30; i++) check_forward(test_int(1, 90), test_int(1, 70), test_int(1, 70), i % 2, i % 3);
    for (int i = 0; i < 6; i++) check_forward(197 + i, 97, 131, i % 2, i % 3);  // several tiles
    for (int i = 0; i < 20; i++) check_accumulation(test_int(1, 300), test_int(1, 50), test_int(1, 50), test_int(1, 50));
    for (int t = 14; t < 18; t++) check_accumulation(t, 9, 24, 7);
    printf("weight and bias in one product: %d times\n", both_in_one);
    check_threads(1, 5, 3);
    check_threads(131, 67, 101);
    check_threads(788, 192, 576);
    TEST_END();
}
