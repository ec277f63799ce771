// Element-wise top-k per sample, as BackRazor (Jiang et al., NeurIPS 2022) keeps activations: values + 1-bit mask.
//
// A sample is n consecutive elements (tokens x columns of one batch element). Its threshold is the m-th smallest |x| with
// m = clip((int)(n * prune), 1, n); elements with |x| >= threshold are kept, at most `capacity` of them: where ties at
// the threshold would exceed it, those of highest index are dropped, so that storage is exact.
#ifndef PREBR_TOPK_H
#define PREBR_TOPK_H

#include "device.h"

C_BEGIN

// Elements kept of n when all magnitudes differ: n - m + 1. This is the capacity the arena plans with.
int topk_capacity(int n, double prune);

// threshold [samples] of x [samples, n], by selection (histogram of the float's bits), not by a sort.
void topk_threshold(float* threshold, const floatx* x, double prune, int samples, int n);

// Packs what is kept: values [samples, capacity] in index order, unused places 0; mask [samples, ceil(n/32)] words,
// element i in bit i%32 of word i/32.
void topk_pack(floatx* values, uint32_t* mask, const floatx* x, const float* threshold, int capacity, int samples, int n);

// x [samples, n] = kept values in their places, 0 elsewhere.
void topk_unpack(floatx* x, const floatx* values, const uint32_t* mask, int capacity, int samples, int n);

// unpack(pack(x)) in one pass, in place allowed: x with everything that is not kept set to 0.
void topk_prune(floatx* y, const floatx* x, const float* threshold, int capacity, int samples, int n);

C_END

#endif
