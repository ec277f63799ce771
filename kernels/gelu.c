// GELU on the CPU. Work is split into blocks of a fixed size, so that an element meets the same vector code (and gives the same
// bits) for any number of threads.
//
// Phi is computed from its tail: Phi(-|x|) = e^(-x^2/2) t P(t) with t = 1 / (1 + 0.31 |x|), P of degree 7, fitted to a relative
// error of 1.6e-7 for |x| <= 14. So there is no cancellation for negative x, and backward shares the exponential with the
// density phi. Max error in float: 3e-7 absolute in Phi.
#include "gelu.h"
#include "vector_math.h"
#include <math.h>
#include <string.h>

enum { BLOCK = 4096 };   // elements; a multiple of 4, so that every byte of codes belongs to one block

static inline float tail(float gauss, float magnitude) {
    float t = 1.0f / (1.0f + 0.31f * magnitude);
    float p = 0.0358418152f;
    p = p * t - 0.14160493f;
    p = p * t + 0.155068383f;
    p = p * t - 0.0149038332f;
    p = p * t + 0.11011035f;
    p = p * t + 0.107771032f;
    p = p * t + 0.124060348f;
    p = p * t + 0.123656906f;
    return gauss * t * p;
}

static inline float gelu(float x) {
    float phi_tail = tail(vexp(-0.5f * x * x), fabsf(x));
    return x * (x < 0 ? phi_tail : 1.0f - phi_tail);
}

// gelu'(x) = Phi(x) + x phi(x). Past |x| = 15 phi is 0 in float; the clamp keeps infinity from meeting it.
static inline float gelu_slope(float x) {
    x = x > 15.0f ? 15.0f : x;
    x = x < -15.0f ? -15.0f : x;
    float gauss = vexp(-0.5f * x * x), phi_tail = tail(gauss, fabsf(x));
    return (x < 0 ? phi_tail : 1.0f - phi_tail) + x * (0.39894228f * gauss);
}

static size_t block_end(size_t start, size_t n) { return n - start < BLOCK ? n : start + BLOCK; }

static void gelu_block(floatx* y, const floatx* x, size_t n) {
    #pragma omp simd
    for (size_t i = 0; i < n; i++) y[i] = gelu(x[i]);
}

void gelu_forward(floatx* y, const floatx* x, size_t n) {
    #pragma omp parallel for schedule(static)
    for (size_t start = 0; start < n; start += BLOCK) gelu_block(y + start, x + start, block_end(start, n) - start);
}

void gelu_forward_columns(floatx* packed, const floatx* x, const int* blocks, int n, int width, int t, int c) {
    #pragma omp parallel for schedule(static)
    for (int i = 0; i < t; i++) {
        floatx* row = packed + (size_t)i * n * width;
        for (int k = 0; k < n; k++) memcpy(row + (size_t)k * width, x + (size_t)i * c + (size_t)blocks[k] * width, width * sizeof *row);
        gelu_block(row, row, (size_t)n * width);
    }
}

void gelu_backward(floatx* dx, const floatx* dy, const floatx* x, size_t n) {
    #pragma omp parallel for schedule(static)
    for (size_t start = 0; start < n; start += BLOCK) {
        size_t end = block_end(start, n);
        #pragma omp simd
        for (size_t i = start; i < end; i++) dx[i] = dy[i] * gelu_slope(x[i]);
    }
}

// ReGELU2. a and c as published; code = number of thresholds below x, level[code] = slope of that step.
static const float threshold[3] = {-3.1858810036855245f, -0.001178821281161997f, 3.190832613414926f};
static const double step[3] = {-0.04922261145617846, 1.0979632065417297, -0.048740595085551286};

// codes of n elements; those past the end of a last, partial byte are 0.
static void code_block(uint8_t* codes, const floatx* x, size_t n) {
    uint8_t code[BLOCK + 4];
    #pragma omp simd
    for (size_t i = 0; i < n; i++) code[i] = (x[i] > threshold[0]) + (x[i] > threshold[1]) + (x[i] > threshold[2]);
    for (size_t i = n; i < n + 4; i++) code[i] = 0;
    #pragma omp simd
    for (size_t i = 0; i < (n + 3) / 4; i++) {
        codes[i] = code[4 * i] | code[4 * i + 1] << 2 | code[4 * i + 2] << 4 | code[4 * i + 3] << 6;
    }
}

void regelu2_forward(floatx* y, uint8_t* codes, const floatx* x, size_t n) {
    #pragma omp parallel for schedule(static)
    for (size_t start = 0; start < n; start += BLOCK) {
        size_t count = block_end(start, n) - start;
        code_block(codes + start / 4, x + start, count);   // before y, which may be x
        gelu_block(y + start, x + start, count);
    }
}

void regelu2_forward_columns(floatx* y, uint8_t* codes, floatx* packed, const floatx* x, const int* slots, int n, int width, int t, int c) {
    int whole_bytes = c % 4 == 0;   // else rows share bytes of codes
    if (!whole_bytes) regelu2_forward(y, codes, x, (size_t)t * c);
    #pragma omp parallel for schedule(static)
    for (int i = 0; i < t; i++) {
        floatx *row = y + (size_t)i * c, *to = packed + (size_t)i * n * width;
        for (size_t start = 0; whole_bytes && start < (size_t)c; start += BLOCK) {
            size_t at = (size_t)i * c + start, count = block_end(start, c) - start;
            code_block(codes + at / 4, x + at, count);
            gelu_block(y + at, x + at, count);
        }
        for (int k = 0; k < c / width; k++)
            if (slots[k] >= 0) memcpy(to + (size_t)slots[k] * width, row + (size_t)k * width, width * sizeof *row);
    }
}

// The four slopes that a byte stands for, for each of the 256 bytes: backward is one load and one product for four elements.
typedef float Four __attribute__((vector_size(16), aligned(4)));

static void slopes_of_bytes(Four slopes[256]) {
    double level[4] = {0, step[0], step[0] + step[1], step[0] + step[1] + step[2]};
    for (int byte = 0; byte < 256; byte++) {
        for (int i = 0; i < 4; i++) slopes[byte][i] = (float)level[byte >> 2 * i & 3];
    }
}

void regelu2_backward(floatx* dx, const floatx* dy, const uint8_t* codes, size_t n) {
    Four slopes[256];
    slopes_of_bytes(slopes);
    size_t bytes = n / 4;
    #pragma omp parallel for schedule(static)
    for (size_t i = 0; i < bytes; i++) *(Four*)(dx + 4 * i) = *(const Four*)(dy + 4 * i) * slopes[codes[i]];
    for (size_t i = 4 * bytes; i < n; i++) dx[i] = dy[i] * slopes[codes[bytes]][i % 4];
}
