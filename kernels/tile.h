// Private to the CPU kernels: a matrix product of small, cache-resident tiles, for one thread, in the style of Goto and van de
// Geijn (2008). A block of C stays in registers while the whole of k passes: TILE_ROWS rows x two vectors fill the register file.
#ifndef PREBR_TILE_H
#define PREBR_TILE_H

#include <stddef.h>
#include <string.h>

#if defined(__AVX512F__)
enum { LANES = 16, TILE_ROWS = 12 };   // 32 registers: 24 sums, 2 of B, the broadcast
#elif defined(__AVX__)
enum { LANES = 8, TILE_ROWS = 6 };     // 16 registers: 12 sums, 2 of B, the broadcast
#else
enum { LANES = 4, TILE_ROWS = 6 };
#endif

typedef float Vector __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

// n rounded up to whole vectors: the width that tiles in scratch are padded to.
static inline int tile_width(int n) { return (n + LANES - 1) / LANES * LANES; }

static inline Vector tile_load(const float* p, int n) {
    Vector v = {0};
    if (n >= LANES) v = *(const Vector*)p;
    else memcpy(&v, p, n * sizeof *p);
    return v;
}

static inline void tile_store(float* p, Vector v, int n) {
    if (n >= LANES) *(Vector*)p = v;
    else memcpy(p, &v, n * sizeof *p);
}

// rows x n of C, n <= vectors * LANES. rows and vectors are constants where this is called, so that sum[][] becomes registers.
static inline __attribute__((always_inline)) void tile_block(const int rows, const int vectors, int n, int k, const float* a, ptrdiff_t a_row,
                                                             ptrdiff_t a_column, const float* b, ptrdiff_t ldb, int add, float* c, ptrdiff_t ldc) {
    Vector sum[TILE_ROWS][2];
    #pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
        #pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) sum[i][v] = add ? tile_load(c + i * ldc + v * LANES, n - v * LANES) : (Vector){0};
    }
    for (int p = 0; p < k; p++, a += a_column, b += ldb) {
        Vector b0 = *(const Vector*)b, b1 = vectors > 1 ? *(const Vector*)(b + LANES) : b0;
        #pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            sum[i][0] += a[i * a_row] * b0;
            if (vectors > 1) sum[i][1] += a[i * a_row] * b1;
        }
    }
    #pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
        #pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) tile_store(c + i * ldc + v * LANES, sum[i][v], n - v * LANES);
    }
}

// A strip of C at most two vectors wide, from top to bottom.
static inline __attribute__((always_inline)) void tile_strip(const int vectors, int m, int n, int k, const float* a, ptrdiff_t a_row,
                                                             ptrdiff_t a_column, const float* b, ptrdiff_t ldb, int add, float* c, ptrdiff_t ldc) {
    int i = 0;
    for (; i + TILE_ROWS <= m; i += TILE_ROWS) tile_block(TILE_ROWS, vectors, n, k, a + i * a_row, a_row, a_column, b, ldb, add, c + i * ldc, ldc);
    for (; i + 4 <= m; i += 4) tile_block(4, vectors, n, k, a + i * a_row, a_row, a_column, b, ldb, add, c + i * ldc, ldc);
    for (; i < m; i++) tile_block(1, vectors, n, k, a + i * a_row, a_row, a_column, b, ldb, add, c + i * ldc, ldc);
}

// C [m, n] = (add ? C : 0) + A B. Element (i, p) of A is a[i * a_row + p * a_column], so A may be transposed as it stands.
// B [k, n] has row stride ldb and can be read up to tile_width(n) columns (zeros or anything finite there). Only n columns
// of C are written.
static inline void tile_product(int m, int n, int k, const float* a, ptrdiff_t a_row, ptrdiff_t a_column, const float* b, ptrdiff_t ldb, int add,
                         float* c, ptrdiff_t ldc) {
    for (int j = 0; j < n; j += 2 * LANES) {
        if (n - j > LANES) tile_strip(2, m, n - j, k, a, a_row, a_column, b + j, ldb, add, c + j, ldc);
        else tile_strip(1, m, n - j, k, a, a_row, a_column, b + j, ldb, add, c + j, ldc);
    }
}

// packed [rows, tile_width(d)] = x [rows, d] of row stride ldx, padded with zeros.
static inline void tile_pack(float* packed, const float* x, ptrdiff_t ldx, int rows, int d) {
    int width = tile_width(d);
    for (int i = 0; i < rows; i++) {
        memcpy(packed + (size_t)i * width, x + i * ldx, d * sizeof *x);
        for (int p = d; p < width; p++) packed[(size_t)i * width + p] = 0;
    }
}

// Four rows of four, transposed.
typedef float Four __attribute__((vector_size(16), aligned(4), may_alias));
typedef int FourIndex __attribute__((vector_size(16)));

static inline void tile_transpose4(float* to, ptrdiff_t ldt, const float* x, ptrdiff_t ldx, float scale) {
    Four r0 = *(const Four*)x * scale, r1 = *(const Four*)(x + ldx) * scale;
    Four r2 = *(const Four*)(x + 2 * ldx) * scale, r3 = *(const Four*)(x + 3 * ldx) * scale;
    FourIndex low = {0, 4, 1, 5}, high = {2, 6, 3, 7}, left = {0, 1, 4, 5}, right = {2, 3, 6, 7};
    Four a = __builtin_shuffle(r0, r1, low), b = __builtin_shuffle(r2, r3, low);
    Four c = __builtin_shuffle(r0, r1, high), e = __builtin_shuffle(r2, r3, high);
    *(Four*)to = __builtin_shuffle(a, b, left);
    *(Four*)(to + ldt) = __builtin_shuffle(a, b, right);
    *(Four*)(to + 2 * ldt) = __builtin_shuffle(c, e, left);
    *(Four*)(to + 3 * ldt) = __builtin_shuffle(c, e, right);
}

// packed [d, width] = scale times the transpose of x [rows, d], padded with zeros to width >= rows columns.
static inline void tile_pack_transposed(float* packed, const float* x, ptrdiff_t ldx, int rows, int d, int width, float scale) {
    int whole_rows = rows / 4 * 4, whole_d = d / 4 * 4;
    for (int i = 0; i < whole_rows; i += 4) {
        for (int p = 0; p < whole_d; p += 4) tile_transpose4(packed + (size_t)p * width + i, width, x + i * ldx + p, ldx, scale);
    }
    for (int p = 0; p < d; p++) {
        for (int i = p < whole_d ? whole_rows : 0; i < rows; i++) packed[(size_t)p * width + i] = scale * x[i * ldx + p];
        for (int i = rows; i < width; i++) packed[(size_t)p * width + i] = 0;
    }
}

#endif
