// The linear layer's products are GEMMs; what is left is the sum of columns for the bias.
#include "linear.h"

#include <string.h>

#include "gemm.h"

void linear_forward(floatx* y, const floatx* x, const floatx* w, const float* b, const floatx* residual, int t, int cin,
                    int cout) {
    gemm_add(0, 1, t, cout, cin, x, cin, w, cin, b, residual, y, cout);
}

void linear_backward_input(floatx* dx, const floatx* dy, const floatx* w, float beta, int t, int cin, int cout) {
    gemm(0, 0, t, cin, cout, dy, cout, w, cin, beta, dx, cin);
}

void linear_backward_weight(float* dw, const floatx* dy, const floatx* x, float beta, int t, int k, int cout) {
    gemm_gradient(1, 0, cout, k, t, dy, cout, x, k, beta, dw, k);
}

int linear_backward_weight_bias(float* dw, float* db, const floatx* dy, const floatx* x, int t, int k, int cout) {
    return gemm_gradient_sums(1, 0, cout, k, t, dy, cout, x, k, dw, k, db);
}

// The rows are summed in tiles of TILE, each by one thread into its own row of scratch; then the tiles' sums are added in
// order. The number of tiles depends on t alone.
enum { TILE = 64 };

static int tiles(int t) { return (t + TILE - 1) / TILE; }

size_t linear_bias_scratch(int t, int cout) { return (size_t)tiles(t) * cout * sizeof(float); }

void linear_backward_bias(float* db, const floatx* dy, float beta, int t, int cout, void* scratch) {
    float* sums = scratch;  // [tiles, cout]
    int n = tiles(t);
    #pragma omp parallel for if (n > 1)
    for (int i = 0; i < n; i++) {
        float* s = sums + (size_t)i * cout;
        int end = (i + 1) * TILE < t ? (i + 1) * TILE : t;
        memset(s, 0, cout * sizeof *s);
        for (int r = i * TILE; r < end; r++) {
            const floatx* row = dy + (size_t)r * cout;
            for (int j = 0; j < cout; j++) s[j] += row[j];
        }
    }
    for (int j = 0; j < cout; j++) db[j] = beta == 0 ? 0 : beta * db[j];
    for (int i = 0; i < n; i++)
        for (int j = 0; j < cout; j++) db[j] += sums[(size_t)i * cout + j];
}
