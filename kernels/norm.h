// LayerNorm over the last axis: y = (x - mean) rstd gamma + beta, rstd = 1 / sqrt(var + eps), var biased (Ba et al., 2016).
#ifndef PREBR_NORM_H
#define PREBR_NORM_H

#include "device.h"

C_BEGIN

// y [t, c] from x [t, c]; mean [t] and rstd [t] are written for backward (both may be NULL). y may be x.
// Mean and variance in two passes over the row (no cancellation).
void layernorm_forward(floatx* y, float* mean, float* rstd, const floatx* x, const float* gamma, const float* beta, float eps, int t, int c);

// The same output again from x and its kept statistics: y is the next linear's input, remade rather than kept.
void layernorm_remake(floatx* y, const floatx* x, const float* mean, const float* rstd, const float* gamma, const float* beta, int t, int c);

// Only some column blocks of it, packed as columns.h packs them: packed [t, n*width], bit for bit what gathering them from y would give. blocks [n].
void layernorm_remake_columns(floatx* packed, const floatx* x, const float* mean, const float* rstd, const float* gamma, const float* beta,
                              const int* blocks, int n, int width, int t, int c);

// dx [t, c] = beta_dx * dx + gradient through the norm. dgamma and dbeta [c] = beta_dp * themselves + their gradients,
// summed in fixed order (each may be NULL: not computed). dx may be dy only if beta_dx is 0.
// scratch: layernorm_scratch(t, c) bytes.
void layernorm_backward(floatx* dx, float* dgamma, float* dbeta, const floatx* dy, const floatx* x, const float* mean, const float* rstd,
                        const float* gamma, float beta_dx, float beta_dp, int t, int c, void* scratch);
size_t layernorm_scratch(int t, int c);

C_END

#endif
