// The hyperbolic tangent of BERT's pooler.
#ifndef PREBR_TANH_H
#define PREBR_TANH_H

#include "device.h"

C_BEGIN

// y [n] = tanh(x); y may be x.
void tanh_forward(floatx* y, const floatx* x, size_t n);
// dx [n] = dy (1 - y^2) from forward's output; dx may be dy.
void tanh_backward(floatx* dx, const floatx* dy, const floatx* y, size_t n);

C_END

#endif
