// GELU, one pack of 16 bytes to a thread, bound by memory: Phi from the toolkit's normal distribution function.
#include "gelu.h"

#include "cuda.cuh"

__device__ __forceinline__ float gelu(float x) { return x * normcdff(x); }

// gelu'(x) = Phi(x) + x phi(x). Past |x| = 15 phi is 0 in float; the clamp keeps infinity from meeting it.
__device__ __forceinline__ float gelu_slope(float x) {
    x = x > 15.0f ? 15.0f : x;
    x = x < -15.0f ? -15.0f : x;
    return normcdff(x) + x * (0.39894228f * expf(-0.5f * x * x));
}

// ReGELU2. a and c as published; code = number of thresholds below x, level = slope of that step.
__device__ __forceinline__ unsigned code_of(float x) {
    return (x > -3.1858810036855245f) + (x > -0.001178821281161997f) + (x > 3.190832613414926f);
}

__device__ __forceinline__ float level_of(unsigned code) {
    const double a0 = -0.04922261145617846, a1 = 1.0979632065417297, a2 = -0.048740595085551286;
    return code < 2 ? (code ? (float)a0 : 0.0f) : code == 2 ? (float)(a0 + a1) : (float)(a0 + a1 + a2);
}

enum { GELU_FORWARD, GELU_BACKWARD, REGELU2_FORWARD, REGELU2_BACKWARD };

// The elements i .. i+N: x becomes y, or dy becomes dx, which is also returned. N is a multiple of 4 where there are codes, or the group is the last one of n % 4.
template <int OP, int N> __device__ Pack<floatx, N> pack_op(floatx* out, const floatx* in, const floatx* x, uint8_t* codes, size_t i) {
    Pack<floatx, N> v = load<N>(in + i), at = {};
    if (OP == GELU_BACKWARD) at = load<N>(x + i);
    unsigned bits = 0;
    for (int k = 0; k < N && OP == REGELU2_BACKWARD; k += 4) bits |= (unsigned)codes[(i + k) / 4] << 2 * k;
    for (int k = 0; k < N; k++) {
        float f = (float)v.v[k];
        if (OP == REGELU2_FORWARD) bits |= code_of(f) << 2 * k;
        if (OP == GELU_BACKWARD) f *= gelu_slope((float)at.v[k]);
        else if (OP == REGELU2_BACKWARD) f *= level_of(bits >> 2 * k & 3);
        else f = gelu(f);
        v.v[k] = (floatx)f;
    }
    store<N>(out + i, v);
    for (int k = 0; k < N && OP == REGELU2_FORWARD; k += 4) codes[(i + k) / 4] = (uint8_t)(bits >> 2 * k);
    return v;
}

// Packs while they last (none where a pointer is not aligned: then `packs` is 0), the rest in groups of four elements, which share a byte.
template <int OP> __global__ void gelu_op(floatx* out, const floatx* in, const floatx* x, uint8_t* codes, size_t packs, size_t n) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < packs) {
        pack_op<OP, WIDE>(out, in, x, codes, i * WIDE);
        return;
    }
    size_t first = packs * WIDE + (i - packs) * 4;
    unsigned byte = OP == REGELU2_BACKWARD && first < n ? codes[first / 4] : 0;
    for (size_t k = first; k < first + 4 && k < n; k++) {
        float f = (float)in[k];
        if (OP == REGELU2_FORWARD) byte |= code_of(f) << 2 * (k - first);
        if (OP == GELU_BACKWARD) f *= gelu_slope((float)x[k]);
        else if (OP == REGELU2_BACKWARD) f *= level_of(byte >> 2 * (k - first) & 3);
        else f = gelu(f);
        out[k] = (floatx)f;
    }
    if (OP == REGELU2_FORWARD && first < n) codes[first / 4] = (uint8_t)byte;
}

template <int OP> static void run(floatx* out, const floatx* in, const floatx* x, uint8_t* codes, size_t n) {
    size_t packs = wide(0, out, in, x) ? n / WIDE : 0, threads = packs + (n - packs * WIDE + 3) / 4;
    if (n) LAUNCH(gelu_op<OP>, blocks_for(threads, BLOCK), BLOCK, 0, out, in, x, codes, packs, n);
}

void gelu_forward(floatx* y, const floatx* x, size_t n) { run<GELU_FORWARD>(y, x, NULL, NULL, n); }
void gelu_backward(floatx* dx, const floatx* dy, const floatx* x, size_t n) { run<GELU_BACKWARD>(dx, dy, x, NULL, n); }
void regelu2_forward(floatx* y, uint8_t* codes, const floatx* x, size_t n) { run<REGELU2_FORWARD>(y, x, NULL, codes, n); }
void regelu2_backward(floatx* dx, const floatx* dy, const uint8_t* codes, size_t n) { run<REGELU2_BACKWARD>(dx, dy, NULL, (uint8_t*)codes, n); }

template <int N> __global__ void gelu_columns(floatx* packed, const floatx* x, const int* blocks, int n, int width, int t, int c) {
    size_t all = (size_t)t * n * width, step = (size_t)gridDim.x * blockDim.x * N;
    for (size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * N; i < all; i += step) {
        Source s = source_of(i, blocks, n, width);
        Pack<floatx, N> v = load<N>(x + (size_t)s.row * c + s.column);
        for (int k = 0; k < N; k++) v.v[k] = (floatx)gelu((float)v.v[k]);
        store<N>(packed + i, v);
    }
}

void gelu_forward_columns(floatx* packed, const floatx* x, const int* blocks, int n, int width, int t, int c) {
    size_t all = (size_t)t * n * width;
    if (!all) return;
    if (wide(width, packed, x) && c % WIDE == 0) LAUNCH(gelu_columns<WIDE>, loop_blocks(all / WIDE), BLOCK, 0, packed, x, blocks, n, width, t, c);
    else LAUNCH(gelu_columns<1>, loop_blocks(all), BLOCK, 0, packed, x, blocks, n, width, t, c);
}

// y, codes and the packed columns of x [t, c]: a thread takes a pack, which lies in one row and one block, or four elements wherever they lie.
template <int N> __global__ void regelu2_columns(floatx* y, uint8_t* codes, floatx* packed, const floatx* x, const int* slots, int n, int width, int c, size_t all) {
    size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * (N > 1 ? N : 4);
    if (i >= all) return;
    if (N > 1) {
        Pack<floatx, N> v = pack_op<REGELU2_FORWARD, N>(y, x, NULL, codes, i);
        int column = (int)(i % c), slot = slots[column / width];
        if (slot >= 0) store<N>(packed + (i / c * n + slot) * width + column % width, v);
        return;
    }
    unsigned byte = 0;
    for (size_t k = i; k < i + 4 && k < all; k++) {
        float f = (float)x[k];
        int column = (int)(k % c), slot = slots[column / width];
        byte |= code_of(f) << 2 * (k - i);
        y[k] = (floatx)gelu(f);
        if (slot >= 0) packed[(k / c * n + slot) * width + column % width] = y[k];
    }
    codes[i / 4] = (uint8_t)byte;
}

void regelu2_forward_columns(floatx* y, uint8_t* codes, floatx* packed, const floatx* x, const int* slots, int n, int width, int t, int c) {
    size_t all = (size_t)t * c;
    if (!all) return;
    if (wide(width, y, packed, x) && c % WIDE == 0)
        LAUNCH(regelu2_columns<WIDE>, blocks_for(all / WIDE, BLOCK), BLOCK, 0, y, codes, packed, x, slots, n, width, c, all);
    else LAUNCH(regelu2_columns<1>, blocks_for((all + 3) / 4, BLOCK), BLOCK, 0, y, codes, packed, x, slots, n, width, c, all);
}
