// AdamW (Loshchilov & Hutter, 2019) and SGD with momentum, on whole tensors and on column blocks; global norm and clipping.
//
// All parameters, gradients and moments are float. copy: where the linear layers' rounding of w lies, element for element, written as w is;
// NULL where they read w itself, which is always so on the CPU. gradient_scale (device) multiplies every gradient first (clipping); where it is
// NaN nothing is changed. The settings are double, as PyTorch's are: 1 - 0.999f is 1.3e-5 away from 1 - 0.999.
#ifndef PREBR_OPTIMIZER_H
#define PREBR_OPTIMIZER_H

#include "device.h"

C_BEGIN

typedef struct {
    double lr, beta1, beta2, eps, weight_decay;   // decay is decoupled: w -= lr * weight_decay * w
    const float* gradient_scale;
} AdamW;

typedef struct {
    double lr, momentum, weight_decay;   // decay is added to the gradient, as in PyTorch
    const float* gradient_scale;
} SGD;

// w, m, v [n] are updated from g [n]; t >= 1 is the number of this update (bias correction). The order of operations is
// PyTorch's: w *= 1 - lr wd; m += (1-b1)(g-m); v = b2 v + (1-b2) g^2; w -= (lr / (1-b1^t)) m / (sqrt(v) / sqrt(1-b2^t) + eps).
void adamw_dense(float* w, floatx* copy, float* m, float* v, const float* g, AdamW o, int t, size_t n);

// The same on column blocks of w, m, v [rows, cin] from compact g [rows, n*width]; t [n] (int32) is each block's own number of
// updates including this one. All other columns stay bit for bit as they are.
void adamw_columns(float* w, floatx* copy, float* m, float* v, const float* g, AdamW o, const int* t, const int* blocks, int n, int width, int rows, int cin);

// velocity = momentum velocity + (g + wd w); w -= lr velocity. first = 1 (for a block, t = 1): velocity = g + wd w, PyTorch's first step.
void sgd_dense(float* w, floatx* copy, float* velocity, const float* g, SGD o, int first, size_t n);
void sgd_columns(float* w, floatx* copy, float* velocity, const float* g, SGD o, const int* t, const int* blocks, int n, int width, int rows, int cin);

// Sum of squares of g [n] in double, in fixed order, added to *sum (device). scratch: squares_scratch(n) bytes.
void squares_add(double* sum, const float* g, size_t n, void* scratch);
size_t squares_scratch(size_t n);

// *scale = what clipping to the norm `clip` (0: none) multiplies gradients with, from their sum of squares: 1, or clip / (norm + 1e-6) where the norm is
// larger; NaN where the norm is not finite.
void clip_scale(float* scale, const double* squares, double clip);

C_END

#endif
