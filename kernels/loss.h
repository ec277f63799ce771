// Softmax cross-entropy and squared error, forward and backward in one.
#ifndef PREBR_LOSS_H
#define PREBR_LOSS_H

#include "device.h"

C_BEGIN

// losses [b] = -log softmax(logits)[label] (float, stable); correct [b] (int32) = 1 where the first largest logit is the label;
// dlogits [b, n] = scale (softmax - onehot), or not written when NULL (evaluation). labels [b] int32 in [0, n).
void cross_entropy(float* losses, int* correct, floatx* dlogits, const floatx* logits, const int* labels, float scale, int b, int n);

// losses [b] = (y - target)^2; dy [b] = 2 scale (y - target), or not written when NULL. A regression's one number a sample.
void squared_error(float* losses, floatx* dy, const floatx* y, const float* targets, float scale, int b);

C_END

#endif
