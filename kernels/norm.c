// LayerNorm on the CPU. Rows are independent, so forward and dx are parallel over rows. dgamma and dbeta are sums over all
// rows: each fixed tile of rows adds up its own partial sums, and the tiles are added in order.
#include "norm.h"
#include "tile.h"
#include <math.h>

enum { MAX_TILES = 128, COLUMNS = 64 };

// Sums over a row run in four vectors side by side (short chains of additions: fast, and the rounding error stays small).
enum { STEP = 4 * LANES };

static inline float total(const Vector sum[4]) {
    Vector v = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    float all = 0;
    for (int i = 0; i < LANES; i++) all += v[i];
    return all;
}

static float row_mean(const float* x, int c) {
    Vector sum[4] = {0};
    int j = 0;
    for (; j + STEP <= c; j += STEP) {
        #pragma GCC unroll 4
        for (int v = 0; v < 4; v++) sum[v] += *(const Vector*)(x + j + v * LANES);
    }
    float rest = 0;
    for (; j < c; j++) rest += x[j];
    return (total(sum) + rest) / c;
}

static float row_variance(const float* x, float mean, int c) {
    Vector sum[4] = {0};
    int j = 0;
    for (; j + STEP <= c; j += STEP) {
        #pragma GCC unroll 4
        for (int v = 0; v < 4; v++) {
            Vector centred = *(const Vector*)(x + j + v * LANES) - mean;
            sum[v] += centred * centred;
        }
    }
    float rest = 0;
    for (; j < c; j++) rest += (x[j] - mean) * (x[j] - mean);
    return (total(sum) + rest) / c;
}

// mean_g and mean_gx of row_backward.
static void row_gradient_means(float* mean_g, float* mean_gx, const float* dy, const float* x, float mean, float rstd, const float* gamma, int c) {
    Vector sum_g[4] = {0}, sum_gx[4] = {0};
    int j = 0;
    for (; j + STEP <= c; j += STEP) {
        #pragma GCC unroll 4
        for (int v = 0; v < 4; v++) {
            int at = j + v * LANES;
            Vector g = *(const Vector*)(dy + at) * *(const Vector*)(gamma + at);
            sum_g[v] += g;
            sum_gx[v] += g * (*(const Vector*)(x + at) - mean);
        }
    }
    float rest_g = 0, rest_gx = 0;
    for (; j < c; j++) {
        rest_g += dy[j] * gamma[j];
        rest_gx += dy[j] * gamma[j] * (x[j] - mean);
    }
    *mean_g = (total(sum_g) + rest_g) / c;
    *mean_gx = (total(sum_gx) + rest_gx) * rstd / c;
}

static void row_output(float* y, const float* x, float mean, float rstd, const float* gamma, const float* beta, int c) {
    #pragma omp simd
    for (int j = 0; j < c; j++) y[j] = (x[j] - mean) * rstd * gamma[j] + beta[j];
}

void layernorm_forward(floatx* y, float* mean, float* rstd, const floatx* x, const float* gamma, const float* beta, float eps, int t, int c) {
    #pragma omp parallel for schedule(static)
    for (int i = 0; i < t; i++) {
        const float* row = x + (size_t)i * c;
        float m = row_mean(row, c);
        float r = 1.0f / sqrtf(row_variance(row, m, c) + eps);
        row_output(y + (size_t)i * c, row, m, r, gamma, beta, c);
        if (mean) mean[i] = m;
        if (rstd) rstd[i] = r;
    }
}

void layernorm_remake(floatx* y, const floatx* x, const float* mean, const float* rstd, const float* gamma, const float* beta, int t, int c) {
    #pragma omp parallel for schedule(static)
    for (int i = 0; i < t; i++) row_output(y + (size_t)i * c, x + (size_t)i * c, mean[i], rstd[i], gamma, beta, c);
}

void layernorm_remake_columns(floatx* packed, const floatx* x, const float* mean, const float* rstd, const float* gamma, const float* beta,
                              const int* blocks, int n, int width, int t, int c) {
    #pragma omp parallel for schedule(static)
    for (int i = 0; i < t; i++) {
        for (int k = 0; k < n; k++) {
            size_t first = (size_t)blocks[k] * width;
            row_output(packed + ((size_t)i * n + k) * width, x + (size_t)i * c + first, mean[i], rstd[i], gamma + first, beta + first, width);
        }
    }
}

// With x^ = (x - mean) rstd and g = dy gamma: dx = rstd (g - mean(g) - x^ mean(g x^)), means over the row.
static void row_backward(float* dx, const float* dy, const float* x, float mean, float rstd, const float* gamma, float beta_dx, int c) {
    float mean_g, mean_gx;
    row_gradient_means(&mean_g, &mean_gx, dy, x, mean, rstd, gamma, c);
    if (beta_dx == 0) {   // dx may hold anything
        #pragma omp simd
        for (int j = 0; j < c; j++) dx[j] = rstd * (dy[j] * gamma[j] - mean_g - (x[j] - mean) * rstd * mean_gx);
    } else {
        #pragma omp simd
        for (int j = 0; j < c; j++) {
            dx[j] = beta_dx * dx[j] + rstd * (dy[j] * gamma[j] - mean_g - (x[j] - mean) * rstd * mean_gx);
        }
    }
}

static void row_parameters(float* dgamma, float* dbeta, const float* dy, const float* x, float mean, float rstd, int c) {
    #pragma omp simd
    for (int j = 0; j < c; j++) {
        dgamma[j] += dy[j] * ((x[j] - mean) * rstd);
        dbeta[j] += dy[j];
    }
}

// out [c] = beta out + the sum over tiles of partial [tiles][2][c] (stride 2c), in order, in double.
static void add_tiles(float* out, const float* partial, float beta, int tiles, int c) {
    #pragma omp parallel for schedule(static)
    for (int start = 0; start < c; start += COLUMNS) {
        int n = c - start < COLUMNS ? c - start : COLUMNS;
        double sum[COLUMNS] = {0};
        for (int k = 0; k < tiles; k++) {
            for (int j = 0; j < n; j++) sum[j] += partial[(size_t)k * 2 * c + start + j];
        }
        for (int j = 0; j < n; j++) out[start + j] = (float)(beta == 0 ? sum[j] : (double)beta * out[start + j] + sum[j]);
    }
}

static int tiles_of(int t) { return t < MAX_TILES ? t : MAX_TILES; }

size_t layernorm_scratch(int t, int c) { return (size_t)tiles_of(t) * 2 * c * sizeof(float); }

void layernorm_backward(floatx* dx, float* dgamma, float* dbeta, const floatx* dy, const floatx* x, const float* mean, const float* rstd,
                        const float* gamma, float beta_dx, float beta_dp, int t, int c, void* scratch) {
    int learns = dgamma || dbeta;
    int tiles = tiles_of(t);
    #pragma omp parallel for schedule(static)
    for (int k = 0; k < tiles; k++) {
        float* partial = (float*)scratch + (size_t)k * 2 * c;
        if (learns) memset(partial, 0, 2 * (size_t)c * sizeof(float));
        int end = (int)((int64_t)t * (k + 1) / tiles);
        for (int i = (int)((int64_t)t * k / tiles); i < end; i++) {
            size_t at = (size_t)i * c;
            if (learns) row_parameters(partial, partial + c, dy + at, x + at, mean[i], rstd[i], c);   // before dx, which may be dy
            row_backward(dx + at, dy + at, x + at, mean[i], rstd[i], gamma, beta_dx, c);
        }
    }
    if (dgamma) add_tiles(dgamma, scratch, beta_dp, tiles, c);
    if (dbeta) add_tiles(dbeta, (float*)scratch + c, beta_dp, tiles, c);
}
