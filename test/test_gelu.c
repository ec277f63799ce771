// gelu.h and vector_math.h against double: values, slopes, 2-bit codes, special values, odd sizes, in place, equal bits for
// 1, 2 and 3 threads.
#include "test.h"
#include "kernels/gelu.h"
#include "kernels/vector_math.h"
#include <omp.h>

static double gelu_reference(double x) { return 0.5 * x * erfc(-x / sqrt(2.0)); }

static double slope_reference(double x) { return (gelu_reference(x + 1e-5) - gelu_reference(x - 1e-5)) / 2e-5; }

static double slope_formula(double x) { return 0.5 * erfc(-x / sqrt(2.0)) + x * exp(-0.5 * x * x) / sqrt(2 * M_PI); }

static float* vexp_all(const float* x, size_t n) {
    float* y = malloc(n * sizeof *y);
    #pragma omp simd
    for (size_t i = 0; i < n; i++) y[i] = vexp(x[i]);
    return y;
}

static void test_exp(void) {
    size_t n = 2000001;
    float* x = malloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = (float)(-87.3 + i * (175.6 / (n - 1)));
    float* y = vexp_all(x, n);
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        double exact = exp((double)x[i]), ulp = ldexp(1.0, ilogb(exact) - 23), error = fabs(y[i] - exact) / ulp;
        worst = error > worst ? error : worst;
    }
    printf("exp: worst error %.2f ulp\n", worst);
    CHECK(worst < 2, "%g ulp", worst);
    float special[] = {-INFINITY, -1e30f, -1000, -88, 0, -0.0f, 89, 1e30f, INFINITY, NAN, 1e-30f, -87.33f};
    float want[] = {0, 0, 0, 0, 1, 1, INFINITY, INFINITY, INFINITY, NAN, 1, (float)exp(-87.33f)};
    float* got = vexp_all(special, 12);
    for (int i = 0; i < 11; i++) CHECK(isnan(want[i]) ? isnan(got[i]) : got[i] == want[i], "exp(%g) = %g", special[i], got[i]);
    CHECK(fabs(got[11] / want[11] - 1) < 3e-7, "%g", got[11]);
    free(x), free(y), free(got);
}

static void test_values(void) {
    size_t n = 400001;
    float *x = malloc(n * sizeof *x), *y = malloc(n * sizeof *y), *dx = malloc(n * sizeof *dx), *dy = test_array(n);
    for (size_t i = 0; i < n; i++) x[i] = (float)(-10 + i * (20.0 / (n - 1)));
    gelu_forward(y, x, n);
    gelu_backward(dx, dy, x, n);
    double forward = 0, relative = 0, backward = 0;
    for (size_t i = 0; i < n; i++) {
        double exact = gelu_reference(x[i]);
        forward = fmax(forward, fabs(y[i] - exact));
        if (x[i] > -5) relative = fmax(relative, fabs(y[i] - exact) / (fabs(exact) + 1e-30));
        backward = fmax(backward, fabs(dx[i] - dy[i] * slope_formula(x[i])));
        if (i % 1000 == 0) CHECK(fabs(slope_formula(x[i]) - slope_reference(x[i])) < 1e-8, "slope at %g", x[i]);
    }
    printf("gelu: worst error %.2g (relative, x > -5: %.2g), of the slope %.2g\n", forward, relative, backward);
    CHECK(forward < 1e-6, "%g", forward);
    CHECK(relative < 3e-6, "%g", relative);
    CHECK(backward < 5e-7, "%g", backward);
    free(x), free(y), free(dx), free(dy);
}

static void test_special(void) {
    float x[] = {0, -0.0f, 30, -30, 1e10f, -1e10f, INFINITY, NAN}, y[8], dx[8];
    float dy[] = {1, 1, 1, 1, 1, 1, 1, 1};
    gelu_forward(y, x, 8);
    gelu_backward(dx, dy, x, 8);
    float want[] = {0, 0, 30, 0, 1e10f, 0, INFINITY}, slope[] = {0.5f, 0.5f, 1, 0, 1, 0, 1};
    for (int i = 0; i < 7; i++) {
        CHECK(y[i] == want[i], "gelu(%g) = %g", x[i], y[i]);
        CHECK(fabs(dx[i] - slope[i]) < 2e-7, "gelu'(%g) = %g", x[i], dx[i]);
    }
    CHECK(isnan(y[7]) && isnan(dx[7]), "NaN gives %g, %g", y[7], dx[7]);
    float down[1] = {-INFINITY}, one[1] = {1}, out[1];
    gelu_backward(out, one, down, 1);
    CHECK(out[0] == 0, "%g", out[0]);
}

static void test_regelu2(size_t n) {
    const double c[] = {-3.1858810036855245, -0.001178821281161997, 3.190832613414926};
    const double a[] = {-0.04922261145617846, 1.0979632065417297, -0.048740595085551286};
    size_t bytes = (n + 3) / 4;
    float *x = test_array(n), *dy = test_array(n), *y = malloc(n * 4 + 4), *plain = malloc(n * 4 + 4), *dx = malloc(n * 4 + 4);
    uint8_t* codes = malloc(bytes + 1);
    codes[bytes] = 0xa5;
    for (size_t i = 0; i < n; i++) x[i] *= 5;
    for (size_t i = 0; i < n && i < 3; i++) x[i] = (float)c[i];   // the float next to a threshold does not exceed itself
    gelu_forward(plain, x, n);
    regelu2_forward(y, codes, x, n);
    regelu2_backward(dx, dy, codes, n);
    CHECK(memcmp(y, plain, n * 4) == 0, "forward is not exact GELU, n = %zu", n);
    CHECK(codes[bytes] == 0xa5, "written past the end");
    for (size_t i = 0; i < n; i++) {
        double level = 0;
        int count = 0;
        for (int k = 0; k < 3; k++) {
            if (x[i] > (float)c[k]) level += a[k], count++;
        }
        int code = codes[i / 4] >> 2 * (i % 4) & 3;
        CHECK(code == count, "x = %g: code %d, want %d", x[i], code, count);
        CHECK(fabs(dx[i] - dy[i] * level) < 1e-7, "dx %g, want %g", dx[i], dy[i] * level);
    }
    if (n % 4) CHECK(codes[bytes - 1] >> 2 * (n % 4) == 0, "the last byte's unused bits are not 0");
    regelu2_forward(x, codes, x, n);
    regelu2_backward(dy, dy, codes, n);
    CHECK(memcmp(x, y, n * 4) == 0 && memcmp(dy, dx, n * 4) == 0, "in place differs, n = %zu", n);
    free(x), free(dy), free(y), free(plain), free(dx), free(codes);
}

// Every second block of columns, bit for bit as forward has them; a block's columns, then the blocks, need not fill vectors.
static void test_columns(int t, int width, int all) {
    int c = width * all, n = 0, bad = 0, *blocks = malloc((all + 1) * sizeof *blocks);
    float *x = test_array((size_t)t * c), *y = malloc(sizeof(float) * t * c);
    for (int j = 0; j < all; j += 2) blocks[n++] = j;
    float* packed = malloc(sizeof(float) * t * n * width + 4);
    packed[(size_t)t * n * width] = 7;
    for (int i = 0; i < t * c; i++) x[i] *= 4;
    gelu_forward(y, x, (size_t)t * c);
    gelu_forward_columns(packed, x, blocks, n, width, t, c);
    for (int i = 0; i < t; i++)
        for (int k = 0; k < n; k++) bad += memcmp(packed + ((size_t)i * n + k) * width, y + (size_t)i * c + blocks[k] * width, width * sizeof *y) != 0;
    CHECK(!bad, "%d blocks of columns differ from forward, t = %d, width = %d, %d blocks", bad, t, width, all);
    float *y2 = malloc(sizeof(float) * t * c), *packed2 = malloc(sizeof(float) * t * n * width + 4);
    size_t bytes = ((size_t)t * c + 3) / 4;
    uint8_t *codes = malloc(bytes), *codes2 = malloc(bytes + 1);
    int* slots = malloc(all * sizeof *slots);
    codes2[bytes] = 0xa5;
    packed2[(size_t)t * n * width] = 7;
    for (int j = 0; j < all; j++) slots[j] = j % 2 ? -1 : j / 2;
    regelu2_forward(y2, codes, x, (size_t)t * c);
    for (int i = 0; i < t * c; i++) y2[i] = NAN;
    regelu2_forward_columns(y2, codes2, packed2, x, slots, n, width, t, c);
    CHECK(!memcmp(y, y2, sizeof(float) * t * c) && !memcmp(codes, codes2, bytes) && !memcmp(packed, packed2, sizeof(float) * t * n * width),
          "ReGELU2 with packing differs, t = %d, width = %d, %d blocks", t, width, all);
    CHECK(codes2[bytes] == 0xa5 && packed2[(size_t)t * n * width] == 7, "written past the end");
    free(y2), free(packed2), free(codes), free(codes2), free(slots);
    gelu_forward_columns(packed, x, blocks, 0, width, t, c);
    CHECK(packed[(size_t)t * n * width] == 7, "written past the end");
    free(blocks), free(x), free(y), free(packed);
}

// Forward and backward, in place and not, for every number of threads.
static void test_threads(size_t n) {
    float *x = test_array(n), *dy = test_array(n), *first = NULL;
    for (size_t i = 0; i < n; i++) x[i] *= 4;
    for (int threads = 1; threads <= 3; threads++) {
        omp_set_num_threads(threads);
        float* out = malloc((2 * n + 1) * sizeof *out);
        gelu_forward(out, x, n);
        memcpy(out + n, dy, n * 4);
        gelu_backward(out + n, out + n, x, n);
        if (!first) first = out;
        else {
            CHECK(memcmp(first, out, 2 * n * 4) == 0, "bits differ with %d threads, n = %zu", threads, n);
            free(out);
        }
    }
    for (size_t i = 0; i < n; i++) {
        CHECK(fabs(first[i] - gelu_reference(x[i])) < 1e-6, "n = %zu, i = %zu", n, i);
        CHECK(fabs(first[n + i] - dy[i] * slope_formula(x[i])) < 1e-6, "n = %zu, i = %zu", n, i);
    }
    gelu_forward(x, x, n);
    CHECK(memcmp(first, x, n * 4) == 0, "in place differs, n = %zu", n);
    free(x), free(dy), free(first);
}

int main(void) {
    test_exp();
    test_values();
    test_special();
    size_t sizes[] = {0, 1, 2, 3, 4, 5, 7, 17, 31, 1021, 4096, 4097, 4099, 20011};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        test_threads(sizes[i]);
        test_regelu2(sizes[i]);
    }
    int shapes[][3] = {{1, 1, 1}, {37, 16, 12}, {5, 3, 7}, {129, 1, 65}, {64, 48, 4}, {3, 16, 320}};
    for (int i = 0; i < 6; i++) test_columns(shapes[i][0], shapes[i][1], shapes[i][2]);
    TEST_END();
}
