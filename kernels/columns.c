// Column blocks are copied row by row; sums of squares go over row tiles of fixed size.
#include "columns.h"

#include <string.h>

// One block; the default width of 16 floats (a cache line) compiles to two or four vector moves.
static inline void copy_block(float* to, const float* from, int width) {
    if (width == 16) memcpy(to, from, 16 * sizeof *to);
    else if (width == 1) *to = *from;
    else memcpy(to, from, width * sizeof *to);
}

void columns_gather(floatx* packed, const floatx* x, const int* blocks, int n, int width, int t, int cin) {
    #pragma omp parallel for
    for (int i = 0; i < t; i++) {
        const floatx* from = x + (size_t)i * cin;
        floatx* to = packed + (size_t)i * n * width;
        for (int j = 0; j < n; j++) copy_block(to + (size_t)j * width, from + (size_t)blocks[j] * width, width);
    }
}

void columns_scatter(floatx* x, const floatx* packed, const int* blocks, int n, int width, int t, int cin) {
    #pragma omp parallel for
    for (int i = 0; i < t; i++) {
        const floatx* from = packed + (size_t)i * n * width;
        floatx* to = x + (size_t)i * cin;
        for (int j = 0; j < n; j++) copy_block(to + (size_t)blocks[j] * width, from + (size_t)j * width, width);
    }
}

// Each tile of rows has the sums of its columns in a row of scratch [tiles, cin]; the number of tiles depends on t alone.
enum { TILE = 128 };

static int tiles(int t) { return (t + TILE - 1) / TILE; }

size_t columns_squares_scratch(int t, int cin, int width) { return (size_t)tiles(t) * cin * sizeof(double); }

static void add_squares(double* restrict sums, const float* restrict x, int n) {
    for (int j = 0; j < n; j++) sums[j] += (double)x[j] * x[j];
}

// Block j of x [t, n*width] goes to squares[blocks[j]], or to squares[j] where blocks is NULL.
static void block_squares(double* squares, const float* x, double beta, const int* blocks, int n, int width, int t,
                          void* scratch) {
    double* sums = scratch;
    int parts = tiles(t), columns = n * width;
    #pragma omp parallel if (parts > 1)
    {
        #pragma omp for
        for (int i = 0; i < parts; i++) {
            int end = (i + 1) * TILE < t ? (i + 1) * TILE : t;
            memset(sums + (size_t)i * columns, 0, columns * sizeof *sums);
            for (int r = i * TILE; r < end; r++) add_squares(sums + (size_t)i * columns, x + (size_t)r * columns, columns);
        }
        #pragma omp for
        for (int j = 0; j < n; j++) {
            double* to = squares + (blocks ? blocks[j] : j);
            double s = beta == 0 ? 0 : beta * *to;
            for (int i = 0; i < parts; i++)
                for (int c = j * width; c < (j + 1) * width; c++) s += sums[(size_t)i * columns + c];
            *to = s;
        }
    }
}

void columns_squares(double* squares, const floatx* x, double beta, int width, int t, int cin, void* scratch) {
    block_squares(squares, x, beta, NULL, cin / width, width, t, scratch);
}

void columns_gradient_squares(double* squares, const float* dw, const int* blocks, int n, int width, int rows, void* scratch) {
    block_squares(squares, dw, 0, blocks, n, width, rows, scratch);
}

void columns_scale(float* dw, const float* scale, int width, int rows, int n) {
    #pragma omp parallel for
    for (int i = 0; i < rows; i++) {
        float* row = dw + (size_t)i * n * width;
        for (int j = 0; j < n; j++)
            for (int c = j * width; c < (j + 1) * width; c++) row[c] *= scale[j];
    }
}
