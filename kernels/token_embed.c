// Token embeddings on the CPU. Backward deals out columns, not tokens: a thread owns a strip of columns of all tables and walks over the
// tokens in order, so that duplicates are summed in that order by one thread, without sorting or atomics.
#include "token_embed.h"

#include <string.h>

enum { STRIP = 64 };   // columns: four cache lines

void token_embed_forward(floatx* y, const float* word, const float* position, const float* type, const int* ids, const int* types, int b, int t, int c) {
    #pragma omp parallel for schedule(static)
    for (int i = 0; i < b * t; i++) {
        floatx* restrict out = y + (size_t)i * c;
        const float *restrict w = word + (size_t)ids[i] * c, *restrict p = position + (size_t)(i % t) * c, *restrict s = type + (size_t)types[i] * c;
        #pragma omp simd
        for (int k = 0; k < c; k++) out[k] = w[k] + p[k] + s[k];
    }
}

static void clear(float* table, float beta, size_t n) {
    if (beta != 0) return;
    #pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i += 1 << 14) memset(table + i, 0, (n - i < 1 << 14 ? n - i : 1 << 14) * sizeof *table);
}

// Adds columns [k, k + n) of token i to that row of a table.
static void add_row(float* table, size_t row, const floatx* dy, size_t i, int k, int n, int c) {
    float* restrict to = table + row * c + k;
    const floatx* restrict from = dy + i * c + k;
    #pragma omp simd
    for (int j = 0; j < n; j++) to[j] += from[j];
}

void token_embed_backward(float* dword, float* dposition, float* dtype, const floatx* dy, const int* ids, const int* types, float beta, int b, int t,
                          int c, int vocabulary, int positions, int kinds) {
    if (dword) clear(dword, beta, (size_t)vocabulary * c);
    if (dposition) clear(dposition, beta, (size_t)positions * c);
    if (dtype) clear(dtype, beta, (size_t)kinds * c);
    #pragma omp parallel for schedule(static)
    for (int k = 0; k < c; k += STRIP) {
        int n = c - k < STRIP ? c - k : STRIP;
        for (size_t i = 0; i < (size_t)b * t; i++) {
            if (dword) add_row(dword, ids[i], dy, i, k, n, c);
            if (dposition) add_row(dposition, i % t, dy, i, k, n, c);
        }
        for (int kind = 0; dtype && kind < kinds; kind++) {   // few rows, each the sum of very many: in double
            double sum[STRIP] = {0};
            for (size_t i = 0; i < (size_t)b * t; i++)
                for (int j = 0; types[i] == kind && j < n; j++) sum[j] += dy[i * c + k + j];
            for (int j = 0; j < n; j++) dtype[(size_t)kind * c + k + j] += (float)sum[j];
        }
    }
}
