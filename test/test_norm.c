// norm.h against double references; backward also against central differences; odd shapes; in place; beta; equal bits for
// 1, 2 and 3 threads.
#include "test.h"
#include "kernels/norm.h"
#include <omp.h>

static const float EPS = 1e-5f;

static void forward_reference(double* y, double* mean, double* rstd, const double* x, const float* gamma, const float* beta, int t, int c) {
    for (int i = 0; i < t; i++) {
        double sum = 0, squares = 0;
        for (int j = 0; j < c; j++) sum += x[i * c + j];
        mean[i] = sum / c;
        for (int j = 0; j < c; j++) squares += pow(x[i * c + j] - mean[i], 2);
        rstd[i] = 1 / sqrt(squares / c + (double)EPS);
        for (int j = 0; j < c; j++) y[i * c + j] = (x[i * c + j] - mean[i]) * rstd[i] * gamma[j] + beta[j];
    }
}

static void backward_reference(double* dx, double* dgamma, double* dbeta, const float* dy, const double* x, const double* mean, const double* rstd,
                               const float* gamma, int t, int c) {
    for (int j = 0; j < c; j++) dgamma[j] = dbeta[j] = 0;
    for (int i = 0; i < t; i++) {
        double a = 0, b = 0;
        for (int j = 0; j < c; j++) {
            double x_hat = (x[i * c + j] - mean[i]) * rstd[i], g = (double)dy[i * c + j] * gamma[j];
            a += g / c, b += g * x_hat / c;
            dgamma[j] += dy[i * c + j] * x_hat;
            dbeta[j] += dy[i * c + j];
        }
        for (int j = 0; j < c; j++) {
            dx[i * c + j] = rstd[i] * ((double)dy[i * c + j] * gamma[j] - a - (x[i * c + j] - mean[i]) * rstd[i] * b);
        }
    }
}

// The loss whose gradient is dy: sum of dy y.
static double loss(const float* dy, const double* x, const float* gamma, const float* beta, int t, int c) {
    double *y = malloc(sizeof *y * t * c), *mean = malloc(sizeof *mean * t), *rstd = malloc(sizeof *rstd * t), sum = 0;
    forward_reference(y, mean, rstd, x, gamma, beta, t, c);
    for (int i = 0; i < t * c; i++) sum += dy[i] * y[i];
    free(y), free(mean), free(rstd);
    return sum;
}

// The columns made again are those of y, bit for bit: every block, every other one, none; the widest blocks that there are, and single columns.
static void test_columns(const float* y, const float* x, const float* mean, const float* rstd, const float* gamma, const float* beta, int t, int c) {
    int widths[] = {1, 16, c, c % 3 ? 1 : c / 3};
    for (int w = 0; w < 4; w++) {
        int width = widths[w], all = c / width, *blocks = malloc((all + 1) * sizeof *blocks);
        for (int step = 1; step <= 2 && c % width == 0; step++) {
            int n = 0, bad = 0;
            for (int j = 0; j < all; j += step) blocks[n++] = j;
            float* packed = malloc(sizeof(float) * t * n * width);
            layernorm_remake_columns(packed, x, mean, rstd, gamma, beta, blocks, n, width, t, c);
            for (int i = 0; i < t; i++)
                for (int k = 0; k < n; k++) bad += memcmp(packed + ((size_t)i * n + k) * width, y + (size_t)i * c + blocks[k] * width, width * sizeof *y) != 0;
            CHECK(!bad, "%d blocks of columns differ from forward, t = %d, c = %d, width = %d", bad, t, c, width);
            free(packed);
        }
        float none = 7;
        layernorm_remake_columns(&none, x, mean, rstd, gamma, beta, blocks, 0, width, t, c);
        CHECK(none == 7, "no columns, but one was written");
        free(blocks);
    }
}

static double worst_forward = 0, worst_dx = 0, worst_parameters = 0;

static void test_shape(int t, int c, double offset) {
    size_t n = (size_t)t * c;
    float *x = test_array(n), *gamma = test_array(c), *beta = test_array(c), *dy = test_array(n);
    double *xd = calloc(n, 8), *y_ref = malloc(n * 8), *mean_ref = malloc(t * 8), *rstd_ref = malloc(t * 8);
    double *dx_ref = malloc(n * 8), *dgamma_ref = malloc(c * 8), *dbeta_ref = malloc(c * 8);
    for (int j = 0; j < c; j++) gamma[j] += 1.5f;
    for (size_t i = 0; i < n; i++) x[i] = (float)(2 * x[i] + offset), xd[i] = x[i];
    forward_reference(y_ref, mean_ref, rstd_ref, xd, gamma, beta, t, c);
    backward_reference(dx_ref, dgamma_ref, dbeta_ref, dy, xd, mean_ref, rstd_ref, gamma, t, c);

    float *y = malloc(n * 4), *mean = malloc(t * 4), *rstd = malloc(t * 4), *again = malloc(n * 4);
    layernorm_forward(y, mean, rstd, x, gamma, beta, EPS, t, c);
    layernorm_remake(again, x, mean, rstd, gamma, beta, t, c);
    CHECK(memcmp(y, again, n * 4) == 0, "remake differs from forward, t = %d, c = %d", t, c);
    memcpy(again, x, n * 4);
    layernorm_forward(again, NULL, NULL, again, gamma, beta, EPS, t, c);
    CHECK(memcmp(y, again, n * 4) == 0, "in place differs from forward, t = %d, c = %d", t, c);
    test_columns(y, x, mean, rstd, gamma, beta, t, c);
    double spread = c < 17 ? 0.02 : 1;   // two nearly equal values: rstd is large and magnifies the rounding of x - mean
    worst_forward = fmax(worst_forward, test_difference(y, y_ref, n) * spread);
    CHECK(test_difference(mean, mean_ref, t) < 1e-6, "mean, t = %d, c = %d", t, c);
    CHECK(test_difference(rstd, rstd_ref, t) < 1e-6, "rstd, t = %d, c = %d", t, c);

    // dx on top of what is there; parameters likewise
    float *dx = test_array(n), *dgamma = test_array(c), *dbeta = test_array(c), *first = malloc(n * 4);
    double *dx_sum = malloc(n * 8), *dgamma_sum = malloc(c * 8), *dbeta_sum = malloc(c * 8);
    void* scratch = malloc(layernorm_scratch(t, c));
    for (size_t i = 0; i < n; i++) dx_sum[i] = dx_ref[i] + 1.0 * dx[i];
    for (int j = 0; j < c; j++) dgamma_sum[j] = dgamma_ref[j] + 0.5 * dgamma[j], dbeta_sum[j] = dbeta_ref[j] + 0.5 * dbeta[j];
    layernorm_backward(dx, dgamma, dbeta, dy, x, mean, rstd, gamma, 1, 0.5f, t, c, scratch);
    worst_dx = fmax(worst_dx, test_difference(dx, dx_sum, n) * spread);
    worst_parameters = fmax(worst_parameters, fmax(test_difference(dgamma, dgamma_sum, c) * spread, test_difference(dbeta, dbeta_sum, c)));

    // overwriting, whatever was there; without parameters; in place
    for (size_t i = 0; i < n; i++) first[i] = NAN;
    for (int j = 0; j < c; j++) dgamma[j] = dbeta[j] = NAN;
    layernorm_backward(first, dgamma, dbeta, dy, x, mean, rstd, gamma, 0, 0, t, c, scratch);
    worst_dx = fmax(worst_dx, test_difference(first, dx_ref, n) * spread);
    worst_parameters = fmax(worst_parameters, fmax(test_difference(dgamma, dgamma_ref, c) * spread, test_difference(dbeta, dbeta_ref, c)));
    layernorm_backward(dx, NULL, NULL, dy, x, mean, rstd, gamma, 0, 0, t, c, scratch);
    CHECK(memcmp(dx, first, n * 4) == 0, "dx without parameters differs, t = %d, c = %d", t, c);
    float *in_place = malloc(n * 4), *dgamma_in_place = malloc(c * 4), *dbeta_in_place = malloc(c * 4);
    memcpy(in_place, dy, n * 4);
    layernorm_backward(in_place, dgamma_in_place, dbeta_in_place, in_place, x, mean, rstd, gamma, 0, 0, t, c, scratch);
    CHECK(memcmp(in_place, first, n * 4) == 0, "dx in place differs, t = %d, c = %d", t, c);
    CHECK(memcmp(dgamma_in_place, dgamma, c * 4) == 0, "dgamma in place differs, t = %d, c = %d", t, c);
    CHECK(memcmp(dbeta_in_place, dbeta, c * 4) == 0, "dbeta in place differs, t = %d, c = %d", t, c);
    memset(dbeta_in_place, 0, c * 4);
    layernorm_backward(dx, NULL, dbeta_in_place, dy, x, mean, rstd, gamma, 0, 0, t, c, scratch);
    CHECK(memcmp(dbeta_in_place, dbeta, c * 4) == 0, "dbeta alone differs, t = %d, c = %d", t, c);

    // central differences of the reference
    for (int k = 0; k < 10; k++) {
        int i = test_int(0, (int)n - 1), j = test_int(0, c - 1);
        double keep = xd[i], up, down, h = 1e-4;
        xd[i] = keep + h, up = loss(dy, xd, gamma, beta, t, c);
        xd[i] = keep - h, down = loss(dy, xd, gamma, beta, t, c);
        xd[i] = keep;
        double slope = (up - down) / (2 * h);
        if (c > 2) CHECK(fabs(first[i] - slope) < 1e-5 * (1 + fabs(slope)), "dx[%d] %g, central difference %g (t %d, c %d)", i, first[i], slope, t, c);
        float saved = gamma[j];
        gamma[j] = saved + 0.125f, up = loss(dy, xd, gamma, beta, t, c);
        gamma[j] = saved - 0.125f, down = loss(dy, xd, gamma, beta, t, c);
        gamma[j] = saved;
        slope = (up - down) / (double)((saved + 0.125f) - (saved - 0.125f));
        CHECK(fabs(dgamma[j] - slope) < 1e-5 * (1 + fabs(slope)), "dgamma[%d] %g, central difference %g", j, dgamma[j], slope);
    }
    free(x), free(gamma), free(beta), free(dy), free(xd), free(y_ref), free(mean_ref), free(rstd_ref), free(dx_ref), free(dgamma_ref);
    free(dbeta_ref), free(y), free(mean), free(rstd), free(again), free(dx), free(dgamma), free(dbeta), free(first), free(dx_sum);
    free(dgamma_sum), free(dbeta_sum), free(scratch), free(in_place), free(dgamma_in_place), free(dbeta_in_place);
}

static void test_threads(int t, int c) {
    size_t n = (size_t)t * c, all = 2 * n + 2 * t + 2 * c;
    float *x = test_array(n), *gamma = test_array(c), *beta = test_array(c), *dy = test_array(n), *first = NULL;
    void* scratch = malloc(layernorm_scratch(t, c));
    for (int threads = 1; threads <= 3; threads++) {
        omp_set_num_threads(threads);
        float *out = malloc(all * sizeof *out), *y = out, *dx = y + n, *mean = dx + n, *rstd = mean + t, *dgamma = rstd + t, *dbeta = dgamma + c;
        layernorm_forward(y, mean, rstd, x, gamma, beta, EPS, t, c);
        layernorm_backward(dx, dgamma, dbeta, dy, x, mean, rstd, gamma, 0, 0, t, c, scratch);
        if (!first) first = out;
        else {
            CHECK(memcmp(first, out, all * 4) == 0, "bits differ with %d threads, t = %d, c = %d", threads, t, c);
            free(out);
        }
    }
    free(x), free(gamma), free(beta), free(dy), free(first), free(scratch);
}

int main(void) {
    int columns[] = {1, 2, 3, 7, 8, 17, 64, 65, 127, 192, 384, 768, 1280}, rows[] = {1, 2, 5, 37, 131};
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
        for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) test_shape(rows[k], columns[i], k % 2 ? 0.3 : -0.5);
    }
    test_shape(400, 67, 0.1);
    printf("worst error: forward %.2g, dx %.2g, dgamma and dbeta %.2g\n", worst_forward, worst_dx, worst_parameters);
    CHECK(worst_forward < 1.5e-6, "%g", worst_forward);
    CHECK(worst_dx < 1.5e-6, "%g", worst_dx);
    CHECK(worst_parameters < 2.5e-6, "%g", worst_parameters);   // the rounding of x^ alone: 131 of them, the worst of 1280 columns
    int shapes[][2] = {{1, 1}, {3, 7}, {131, 192}, {300, 769}};
    for (int i = 0; i < 4; i++) test_threads(shapes[i][0], shapes[i][1]);
    TEST_END();
}
