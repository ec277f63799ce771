// The linear layer's products are GEMMs; what is left is the sum of columns for the bias.
//
// Tiles of ROWS rows are summed side by side: in a block, lane x takes a few neighbouring columns and warp y every eighth row, the warps'
// sums are added in order, and each tile's sums go to a row of scratch. A second kernel adds the tiles, in order.
#include "linear.h"

#include "cuda.cuh"
#include "gemm.h"

void linear_forward(floatx* y, const floatx* x, const floatx* w, const floatx* b, const floatx* residual, int t, int cin, int cout) {
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

enum { ROWS = 256, WARPS = BLOCK / WARP };

static int tiles(int t) { return (t + ROWS - 1) / ROWS; }

size_t linear_bias_scratch(int t, int cout) { return (size_t)tiles(t) * cout * sizeof(float); }

// sums [tiles, cout]; grid: groups of 32 N columns x tiles.
template <int N> __global__ void bias_tiles(float* sums, const floatx* dy, int t, int cout) {
    __shared__ float part[WARPS][WARP * N];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, first = (blockIdx.x * WARP + lane) * N, tile = blockIdx.y;
    int end = min(t, (tile + 1) * ROWS);
    float sum[N] = {0};
    if (first < cout)
        for (int r = tile * ROWS + warp; r < end; r += WARPS) {
            Pack<floatx, N> row = load<N>(dy + (size_t)r * cout + first);
            for (int k = 0; k < N; k++) sum[k] += (float)row.v[k];
        }
    for (int k = 0; k < N; k++) part[warp][lane * N + k] = sum[k];
    __syncthreads();
    for (int c = threadIdx.x; c < WARP * N; c += BLOCK) {
        int column = blockIdx.x * WARP * N + c;
        float all = 0;
        for (int w = 0; w < WARPS; w++) all += part[w][c];
        if (column < cout) sums[(size_t)tile * cout + column] = all;
    }
}

static __global__ void bias_add(float* db, const float* sums, float beta, int tiles, int cout) {
    int j = blockIdx.x * blockDim.x + threadIdx.x;
    if (j >= cout) return;
    float sum = beta == 0 ? 0 : beta * db[j];
    for (int i = 0; i < tiles; i++) sum += sums[(size_t)i * cout + j];
    db[j] = sum;
}

void linear_backward_bias(float* db, const floatx* dy, float beta, int t, int cout, void* scratch) {
    float* sums = (float*)scratch;
    if (wide(cout, dy)) LAUNCH(bias_tiles<WIDE>, dim3(blocks_for(cout, WARP * WIDE), tiles(t)), BLOCK, 0, sums, dy, t, cout);
    else LAUNCH(bias_tiles<1>, dim3(blocks_for(cout, WARP), tiles(t)), BLOCK, 0, sums, dy, t, cout);
    LAUNCH(bias_add, blocks_for(cout, 64), 64, 0, db, sums, beta, tiles(t), cout);
}
