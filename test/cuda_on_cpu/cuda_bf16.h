// Stands in for the toolkit's <cuda_bf16.h>: bfloat16 as the upper half of a float, rounded to nearest even, NaN kept a (quiet) NaN.
// There is no arithmetic in it: a kernel converts to float, computes, and rounds once.
#ifndef CUDA_ON_CPU_BF16_H
#define CUDA_ON_CPU_BF16_H

#include "cuda_runtime.h"

struct alignas(2) __nv_bfloat16 {
    unsigned short bits;
    __nv_bfloat16() = default;
    __nv_bfloat16(float v) {
        unsigned u = __float_as_uint(v);
        bits = (unsigned short)(v != v ? 0x7fff : (u + 0x7fff + (u >> 16 & 1)) >> 16);
    }
    operator float() const { return __uint_as_float((unsigned)bits << 16); }
};
struct alignas(4) __nv_bfloat162 { __nv_bfloat16 x, y; };   // x is the lower half of the 32-bit word

static inline __nv_bfloat16 __float2bfloat16_rn(float v) { return __nv_bfloat16(v); }
static inline __nv_bfloat16 __float2bfloat16(float v) { return __nv_bfloat16(v); }
static inline float __bfloat162float(__nv_bfloat16 v) { return (float)v; }
static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {__nv_bfloat16(x), __nv_bfloat16(y)}; }
static inline float2 __bfloat1622float2(__nv_bfloat162 v) { return {(float)v.x, (float)v.y}; }

#endif
