// Column blocks move in packs of 16 bytes (one column at a time where a block or a row is no multiple of that); neighbouring threads take
// neighbouring packs of the packed side, so a block of 16 floats is a whole 64-byte run on both sides.
//
// Sums of squares: tiles of ROWS rows each leave the sums of their columns in scratch, in double; then the tiles and the columns of a block
// are added in order.
#include "columns.h"

#include "cuda.cuh"

enum { TO_PACKED, FROM_PACKED };

// packed [t, n*width] and x [t, cin], in either direction.
template <int WAY, int N> __global__ void columns_move(floatx* packed, floatx* x, const int* blocks, int n, int width, int t, int cin) {
    size_t all = (size_t)t * n * width, step = (size_t)gridDim.x * blockDim.x * N;
    for (size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * N; i < all; i += step) {
        Source s = source_of(i, blocks, n, width);
        floatx* whole = x + (size_t)s.row * cin + s.column;
        if (WAY == TO_PACKED) store<N>(packed + i, load<N>(whole));
        else store<N>(whole, load<N>(packed + i));
    }
}

template <int WAY> static void columns_go(floatx* packed, floatx* x, const int* blocks, int n, int width, int t, int cin) {
    if (n < 1 || t < 1) return;
    size_t elements = (size_t)t * n * width;
    if (wide(width, packed, x) && cin % WIDE == 0)
        LAUNCH((columns_move<WAY, WIDE>), loop_blocks(elements / WIDE), BLOCK, 0, packed, x, blocks, n, width, t, cin);
    else LAUNCH((columns_move<WAY, 1>), loop_blocks(elements), BLOCK, 0, packed, x, blocks, n, width, t, cin);
}

void columns_gather(floatx* packed, const floatx* x, const int* blocks, int n, int width, int t, int cin) {
    columns_go<TO_PACKED>(packed, (floatx*)x, blocks, n, width, t, cin);
}

void columns_scatter(floatx* x, const floatx* packed, const int* blocks, int n, int width, int t, int cin) {
    columns_go<FROM_PACKED>((floatx*)packed, x, blocks, n, width, t, cin);
}

enum { ROWS = 128 };

static int tiles(int t) { return (t + ROWS - 1) / ROWS; }

size_t columns_squares_scratch(int t, int cin, int width) { return (size_t)tiles(t) * cin * sizeof(double); }

// sums [tiles, columns]; grid: columns x tiles.
template <class T> __global__ void squares_tiles(double* sums, const T* x, int t, int columns) {
    int j = blockIdx.x * blockDim.x + threadIdx.x, end = min(t, (int)(blockIdx.y + 1) * ROWS);
    if (j >= columns) return;
    double sum = 0;
    for (int r = blockIdx.y * ROWS; r < end; r++) {
        double v = (double)(float)x[(size_t)r * columns + j];
        sum += v * v;
    }
    sums[(size_t)blockIdx.y * columns + j] = sum;
}

// A warp takes a block of columns: its lanes share out the tiles' sums, always in the same way.
static __global__ void squares_add_tiles(double* squares, const double* sums, double beta, const int* blocks, int n, int width, int tiles) {
    int j = (blockIdx.x * blockDim.x + threadIdx.x) / WARP, lane = threadIdx.x % WARP;
    if (j >= n) return;
    double sum = 0;
    for (int i = lane; i < tiles * width; i += WARP) sum += sums[(size_t)(i / width) * n * width + j * width + i % width];
    sum = warp_sum(sum);
    double* to = squares + (blocks ? blocks[j] : j);
    if (lane == 0) *to = beta == 0 ? sum : beta * *to + sum;
}

template <class T> static void block_squares(double* squares, const T* x, double beta, const int* blocks, int n, int width, int t, void* scratch) {
    double* sums = (double*)scratch;
    if (n < 1) return;
    if (t > 0) LAUNCH(squares_tiles<T>, dim3(blocks_for((size_t)n * width, BLOCK), tiles(t)), BLOCK, 0, sums, x, t, n * width);
    LAUNCH(squares_add_tiles, blocks_for(n, BLOCK / WARP), BLOCK, 0, squares, sums, beta, blocks, n, width, tiles(t));
}

void columns_squares(double* squares, const floatx* x, double beta, int width, int t, int cin, void* scratch) {
    block_squares(squares, x, beta, NULL, cin / width, width, t, scratch);
}

void columns_gradient_squares(double* squares, const float* dw, const int* blocks, int n, int width, int rows, void* scratch) {
    block_squares(squares, dw, 0, blocks, n, width, rows, scratch);
}

static __global__ void scale_columns(float* dw, const float* scale, int width, int columns, size_t all) {
    size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < all; i += step) dw[i] *= scale[i % columns / width];
}

void columns_scale(float* dw, const float* scale, int width, int rows, int n) {
    size_t all = (size_t)rows * n * width;
    if (all) LAUNCH(scale_columns, loop_blocks(all), BLOCK, 0, dw, scale, width, n * width, all);
}
