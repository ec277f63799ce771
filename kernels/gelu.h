// GELU: y = x Phi(x), exact (erf), Hendrycks & Gimpel 2016; and its 2-bit backward ReGELU2 (Yang et al., ICML 2024).
#ifndef PREBR_GELU_H
#define PREBR_GELU_H

#include "device.h"

C_BEGIN

// y [n] from x [n]; y may be x. Max abs error against double erf: 1e-6 for |x| <= 10.
void gelu_forward(floatx* y, const floatx* x, size_t n);

// Only some column blocks of y for x [t, c], packed as columns.h packs them: packed [t, n*width], bit for bit what gathering them from y would
// give. blocks [n].
void gelu_forward_columns(floatx* packed, const floatx* x, const int* blocks, int n, int width, int t, int c);

// dx [n] = dy gelu'(x); dx may be dy.
void gelu_backward(floatx* dx, const floatx* dy, const floatx* x, size_t n);

// Forward as above, and codes [ceil(n/4)] bytes: 2 bits an element (element i in bits 2*(i%4) of byte i/4), the number of
// thresholds c that x exceeds (x > c), c = {-3.1858810036855245, -0.001178821281161997, 3.190832613414926}.
void regelu2_forward(floatx* y, uint8_t* codes, const floatx* x, size_t n);

// The same of x [t, c], and packed [t, n*width] = some column blocks of y as columns.h packs them, in the same pass. slots [c / width] (int32): each
// block's place among the n packed ones, or -1.
void regelu2_forward_columns(floatx* y, uint8_t* codes, floatx* packed, const floatx* x, const int* slots, int n, int width, int t, int c);

// dx = dy * level[code]; levels are the cumulative sums {0, a0, a0+a1, a0+a1+a2} of
// a = {-0.04922261145617846, 1.0979632065417297, -0.048740595085551286}. dx may be dy.
void regelu2_backward(floatx* dx, const floatx* dy, const uint8_t* codes, size_t n);

C_END

#endif
