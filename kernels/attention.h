// Multi-head self-attention: o = softmax(scale q k^T) v for each batch element and head, scale = 1 / sqrt(d).
//
// qkv is [b, t, 3, h, d] as the fused projection writes it; o is [b, t, h, d]. lengths [b] (int32) = number of real keys of
// each element, the first ones (padding mask of BERT); NULL = all t. Rows of padding queries are computed like the others;
// an element of length 0 gives zeros in o and in every gradient, never NaN.
//
// dropout: probability p that a softmax weight is dropped (the others divided by 1 - p). The mask is not stored: the weight of
// (batch b, head h, query i, key j) is dropped when philox_uniform(r.v[j % 4]) < p for
// r = philox(seed, STREAM_DROPOUT, step, (site << 40) + ((((b*H + h)*t + i)*((t+3)/4)) + j/4)).
#ifndef PREBR_ATTENTION_H
#define PREBR_ATTENTION_H

#include "device.h"

C_BEGIN

typedef struct { float p; uint64_t seed; uint32_t step, site; } Dropout;   // p = 0: none

// Flash (Dao et al., 2022): tiles of keys with an online softmax; never a t x t matrix. lse [b, h, t] = log of the sum of
// exponentials of the scaled scores, for backward (-inf where there are no keys).
// scratch: attention_flash_scratch() bytes.
void attention_flash_forward(floatx* o, float* lse, const floatx* qkv, const int* lengths, Dropout dropout, int b, int t, int h, int d, void* scratch);

// dqkv [b, t, 3, h, d] from do [b, t, h, d] and what forward read and wrote; every element is written. Deterministic.
void attention_flash_backward(floatx* dqkv, const floatx* d_o, const floatx* o, const float* lse, const floatx* qkv, const int* lengths,
                              Dropout dropout, int b, int t, int h, int d, void* scratch);
size_t attention_flash_scratch(int b, int t, int h, int d);

// Materialized: the softmax weights probs [b, h, t, t] (before dropout) are written by forward and read by backward. Backward
// uses qkv and probs as given, so that pruned copies (BackRazor) take their effect on every product they enter.
// scratch: attention_materialized_scratch() bytes.
void attention_materialized_forward(floatx* o, floatx* probs, const floatx* qkv, const int* lengths, Dropout dropout, int b, int t, int h, int d, void* scratch);
void attention_materialized_backward(floatx* dqkv, const floatx* d_o, const floatx* probs, const floatx* qkv, const int* lengths, Dropout dropout,
                                     int b, int t, int h, int d, void* scratch);
size_t attention_materialized_scratch(int b, int t, int h, int d);

C_END

#endif
