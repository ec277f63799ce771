// GEMM through oneDNN's sgemm.
//
// Left to itself sgemm divides the work by the number of threads, K too, so its last bits depend on that number. Here the
// shape alone divides it into tasks (tiles of C, and pieces of K where C is small), each task is one single-threaded
// sgemm, and any thread may take any task. Pieces of K go to buffers of their own, and whoever finishes the last piece of a
// tile adds them in order.
#include "gemm.h"

#include <dnnl.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

// rows x columns x depth tasks over the m, n and k of a product.
typedef struct { int rows, columns, depth; } Grid;

enum { PARTIAL_FLOATS = 4 << 20 };  // at most 16 MiB of partial sums
enum { MOST_TILES = 256 };          // 16 x 16
enum { LEAST_DEPTH = 384 };         // a piece of K shorter than this would not pay for its partial sums

// sgemm's time for one multiply-add inside a task of m x n, in units of its best. Large tasks are packed into panels first;
// below a size of its own choosing (1/m + 1/n) it reads the matrices where they lie, and then strides that fall on few sets
// of the first-level cache hurt: those of A stored [k, m] and of B stored [k, n], which it walks down the columns.
static double task_cost(double m, double n, int strided_a, int strided_b) {
    double edge = 1 / m + 1 / n;
    if (edge < 0.0038) return 1 + 12 * edge;
    double a[] = {1.07, 1.40, 2.20}, b[] = {1.07, 1.15, 2.20};
    return 3 / n + 1 / m + (a[strided_a] > b[strided_b] ? a[strided_a] : b[strided_b]);
}

// How badly a walk with this stride conflicts in the cache: its 4 KiB period has 64 lines, and a stride that divides into
// few distinct offsets uses few of them. 2: one line, 1: up to four, 0: more.
static int conflict(int stride) {
    int offsets = 1024;
    while (offsets > 1 && stride % 2 == 0) {
        offsets /= 2;
        stride /= 2;
    }
    return offsets <= 1 ? 2 : offsets <= 4 ? 1 : 0;
}

// Time lost to threads that wait, for `tasks` equal tasks: mostly what two threads lose, a little of what 4 and 8 do.
static double waiting(int tasks) {
    double cost = 0;
    static const struct { int threads; double weight; } machine[] = {{2, 0.85}, {4, 0.12}, {8, 0.03}};
    for (int i = 0; i < 3; i++) {
        int rounds = (tasks + machine[i].threads - 1) / machine[i].threads;
        cost += machine[i].weight * rounds * machine[i].threads / tasks;
    }
    return cost;
}

// The grid of least estimated time. Nothing but the shape goes in.
static Grid grid_for(int ta, int tb, int m, int n, int k, int lda, int ldb) {
    static const int parts[] = {1, 2, 3, 4, 6, 8, 12, 16};
    Grid best = {1, 1, 1};
    if ((double)m * n * k < 1 << 16) return best;  // 16,000 cycles or less: no gain from a second thread
    int sa = ta ? conflict(lda) : 0, sb = tb ? 0 : conflict(ldb);
    double least = 1e30;
    for (int d = 1; d <= 4 && (d == 1 || (k / d >= LEAST_DEPTH && (double)(d - 1) * m * n <= PARTIAL_FLOATS)); d *= 2)
        for (int i = 0; i < 8 && (!i || m / parts[i] >= 24); i++)
            for (int j = 0; j < 8 && (!j || n / parts[j] >= 24); j++) {
                int tasks = d * parts[i] * parts[j];
                double cost = task_cost((double)m / parts[i], (double)n / parts[j], sa, sb);
                if (d > 1) cost += 16.0 * d / k;  // writing and adding the partial sums
                cost = cost * waiting(tasks) + 0.001 * tasks;
                if (cost < least) {
                    least = cost;
                    best = (Grid){parts[i], parts[j], d};
                }
            }
    return best;
}

// Where part i of `parts` of a length begins: multiples of `step`, as equal as these allow.
static int bound(int length, int parts, int i, int step) {
    int steps = (length + step - 1) / step, at = (int)((long)steps * i / parts) * step;
    return at < length ? at : length;
}

// c [rows, columns] = bias + residual
static void fill(float* c, int ldc, const float* bias, const float* residual, int rows, int columns) {
    for (int i = 0; i < rows; i++) {
        float* to = c + (size_t)i * ldc;
        const float* from = residual ? residual + (size_t)i * ldc : NULL;
        if (from && bias) for (int j = 0; j < columns; j++) to[j] = from[j] + bias[j];
        else memcpy(to, from ? from : bias, columns * sizeof *to);
    }
}

// Partial sums live as long as their thread; a thread calls gemm with the same few shapes over and over.
static float* partial_sums(size_t floats) {
    static _Thread_local float* buffer;
    static _Thread_local size_t size;
    if (floats > size) {
        free(buffer);
        buffer = aligned_alloc(64, (floats * sizeof *buffer + 63) / 64 * 64);
        if (!buffer) abort();
        size = floats;
    }
    return buffer;
}

// to [rows, columns] += each of the `pieces` partial sums in order; they lie `apart` floats from one another, rows of ldp.
static void add_pieces(float* to, int ldc, const float* from, int ldp, size_t apart, int pieces, int rows, int columns) {
    for (int i = 0; i < rows; i++)
        for (int d = 0; d < pieces; d++) {
            const float* restrict row = from + d * apart + (size_t)i * ldp;
            float* restrict sum = to + (size_t)i * ldc;
            for (int j = 0; j < columns; j++) sum[j] += row[j];
        }
}

// C = op(A) op(B) + beta C, or + bias + residual where one of them is given.
static void product(int ta, int tb, int m, int n, int k, const float* a, int lda, const float* b, int ldb, float beta,
                    const float* bias, const float* residual, float* c, int ldc) {
    Grid g = grid_for(ta, tb, m, n, k, lda, ldb);
    int tasks = g.rows * g.columns * g.depth, done[MOST_TILES] = {0};  // done: finished pieces of K of each tile
    size_t apart = (size_t)m * n;
    float* partial = g.depth > 1 ? partial_sums((g.depth - 1) * apart) : NULL;
    #pragma omp parallel if (tasks > 1)
    {
        omp_set_num_threads(1);  // of this task only: what sgemm may use, in a team of one as well
        #pragma omp for schedule(dynamic, 1) nowait
        for (int task = 0; task < tasks; task++) {
            int d = task % g.depth, tile = task / g.depth, i = tile / g.columns, j = tile % g.columns;
            int i0 = bound(m, g.rows, i, 8), rows = bound(m, g.rows, i + 1, 8) - i0;
            int j0 = bound(n, g.columns, j, 8), columns = bound(n, g.columns, j + 1, 8) - j0;
            int p0 = bound(k, g.depth, d, 8), depth = bound(k, g.depth, d + 1, 8) - p0;
            const float* at = a + (ta ? (size_t)p0 * lda + i0 : (size_t)i0 * lda + p0);
            const float* bt = b + (tb ? (size_t)j0 * ldb + p0 : (size_t)p0 * ldb + j0);
            float *ct = c + (size_t)i0 * ldc + j0, *pt = partial ? partial + (size_t)i0 * n + j0 : NULL;
            float add = d ? 0 : beta;
            if (d == 0 && (bias || (residual && residual != c))) {
                fill(ct, ldc, bias ? bias + j0 : NULL, residual ? residual + (size_t)i0 * ldc + j0 : NULL, rows, columns);
                add = 1;
            }
            dnnl_sgemm(ta ? 'T' : 'N', tb ? 'T' : 'N', rows, columns, depth, 1, at, lda, bt, ldb, add,
                       d ? pt + (d - 1) * apart : ct, d ? n : ldc);
            if (g.depth > 1 && __atomic_add_fetch(&done[tile], 1, __ATOMIC_ACQ_REL) == g.depth)
                add_pieces(ct, ldc, pt, n, apart, g.depth - 1, rows, columns);
        }
    }
}

// C = beta C, for products of no depth.
static void scale(int m, int n, float beta, float* c, int ldc) {
    for (int i = 0; i < m && beta == 0; i++) memset(c + (size_t)i * ldc, 0, n * sizeof *c);
}

void gemm(int ta, int tb, int m, int n, int k, const floatx* a, int lda, const floatx* b, int ldb, float beta, floatx* c,
          int ldc) {
    if (m < 1 || n < 1) return;
    if (k < 1) scale(m, n, beta, c, ldc);
    else product(ta, tb, m, n, k, a, lda, b, ldb, beta, NULL, NULL, c, ldc);
}

void gemm_add(int ta, int tb, int m, int n, int k, const floatx* a, int lda, const floatx* b, int ldb, const float* bias,
              const floatx* residual, floatx* c, int ldc) {
    if (m < 1 || n < 1) return;
    if (k >= 1) product(ta, tb, m, n, k, a, lda, b, ldb, residual == c, bias, residual, c, ldc);
    else if (bias || (residual && residual != c)) fill(c, ldc, bias, residual, m, n);
    else if (!residual) scale(m, n, 0, c, ldc);
}

void gemm_gradient(int ta, int tb, int m, int n, int k, const floatx* a, int lda, const floatx* b, int ldb, float beta, float* c,
                   int ldc) {
    gemm(ta, tb, m, n, k, a, lda, b, ldb, beta, c, ldc);
}

int gemm_gradient_sums(int ta, int tb, int m, int n, int k, const floatx* a, int lda, const floatx* b, int ldb, float* c, int ldc, float* sums) {
    return 0;
}

// Partial sums are kept by each thread for itself.
size_t gemm_workspace_bytes(void) { return 0; }
void gemm_use_workspace(void* workspace) {}
