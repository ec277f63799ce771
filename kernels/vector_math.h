// Private to the CPU kernels: functions of one float that GCC vectorises when they are called in a simd loop (no branch, no
// table, no call).
#ifndef PREBR_VECTOR_MATH_H
#define PREBR_VECTOR_MATH_H

#include <stdint.h>

static inline float float_from_bits(uint32_t bits) { union { uint32_t u; float f; } v = {.u = bits}; return v.f; }
static inline uint32_t bits_from_float(float f) { union { float f; uint32_t u; } v = {.f = f}; return v.u; }

// e^x to 2 ulp. Below -87.33 (where the result would be denormal) exactly 0, from 88.38 on inf, NaN stays NaN.
//
// x = n ln 2 + r with integer n and |r| <= ln 2 / 2. Adding 1.5 * 2^23 leaves n in the low bits of the float, from where it is
// shifted into the exponent of 2^n. e^r = 1 + r + r^2 g(r), g a minimax polynomial (relative error of e^r 3e-9). ln 2 is
// split in two so that n * high part is exact.
static inline float vexp(float x) {
    float low = x > 88.8f ? 88.8f : x;
    float shifted = low * 1.44269504f + 12582912.0f;
    float n = shifted - 12582912.0f;
    float r = low - n * 0.693359375f + n * 2.12194440e-4f;
    float g = 0.00138146069f;
    g = g * r + 0.00836871751f;
    g = g * r + 0.041668389f;
    g = g * r + 0.166665211f;
    g = g * r + 0.49999994f;
    float power = float_from_bits((bits_from_float(shifted) << 23) + 0x3f800000u);
    float e = (g * r * r + r + 1.0f) * power;
    return x < -87.33f ? 0.0f : e;
}

#endif
