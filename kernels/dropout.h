// Dropout (Srivastava et al., 2014) whose mask is never stored: it is drawn again, by number, wherever it is needed.
//
// Element i of a site is dropped when philox_uniform(r.v[i % 4]) < p for r = philox(seed, STREAM_DROPOUT, step, (site << 40) + i / 4); the
// others are divided by 1 - p. Attention has its own numbering (attention.h) under the same Dropout.
#ifndef PREBR_DROPOUT_H
#define PREBR_DROPOUT_H

#include "attention.h"

C_BEGIN

// y [n] = residual [n] + dropout(x [n]). residual NULL: nothing is added, which is also the gradient: dx = dropout_apply(dy).
// p = 0 draws nothing: y = residual + x. y may be x or residual.
void dropout_apply(floatx* y, const floatx* x, const floatx* residual, Dropout dropout, size_t n);

C_END

#endif
