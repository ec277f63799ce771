// Linear layer Y = X W^T + b with X [t, cin], W [cout, cin], b [cout], Y [t, cout]; t = batch x tokens.
//
// Backward comes in the three pieces that sheared backpropagation needs apart: dX never needs X, db never needs X, and
// dW needs only those columns of X whose weights learn (PreBackRazor, Yu et al., CVPR 2024).
#ifndef PREBR_LINEAR_H
#define PREBR_LINEAR_H

#include "device.h"

C_BEGIN

// y = x w^T + b + residual. b [cout] may be NULL; residual [t, cout] may be NULL and may be y itself.
void linear_forward(floatx* y, const floatx* x, const floatx* w, const floatx* b, const floatx* residual, int t, int cin, int cout);

// dx [t, cin] = dy w; beta 0 overwrites dx, 1 adds to it.
void linear_backward_input(floatx* dx, const floatx* dy, const floatx* w, float beta, int t, int cin, int cout);

// db [cout] = beta db + column sums of dy, summed in an order that does not depend on the number of threads.
// scratch: linear_bias_scratch(t, cout) bytes.
void linear_backward_bias(float* db, const floatx* dy, float beta, int t, int cout, void* scratch);
size_t linear_bias_scratch(int t, int cout);

// dw [cout, k] = beta dw + dy^T x for x [t, k]: the whole input (k = cin), or the packed columns that learn.
void linear_backward_weight(float* dw, const floatx* dy, const floatx* x, float beta, int t, int k, int cout);

// Both with beta 0, in one pass over dy. Returns 1, or 0 with nothing done where that cannot be had: then call the two above.
int linear_backward_weight_bias(float* dw, float* db, const floatx* dy, const floatx* x, int t, int k, int cout);

C_END

#endif
