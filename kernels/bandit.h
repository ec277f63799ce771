// Which arms learn: probabilities, their update from gradient norms, and exact-size sampling.
//
// The update is JointSpar's (Liu & Mozafari, ICML 2022) as PreBackRazor uses it. Everything is double; arrays are device
// memory; an arm's number is its index.
#ifndef PREBR_BANDIT_H
#define PREBR_BANDIT_H

#include "device.h"

C_BEGIN

// Projects w = exp(log_w) [n] to the capped simplex {p_min <= p <= 1, sum p = budget}; result in p [n] (p may be log_w).
// n*p_min <= budget <= n, else the nearest feasible budget is used. The projection is the one JointSpar takes: p_i =
// clamp(s w_i, p_min, 1) with one s for all (the nearest point in Kullback-Leibler divergence). NaN in log_w counts as the
// least weight.
void capped_simplex(double* p, const double* log_w, double budget, double p_min, int n);

// log_w [n] (may be p) = log p_i - alpha l_i / p_i from squares [n] = squared gradient norms of the arms that learned (sampled
// [n] = 1; the others' entries are not read). g = norm / L with L the largest finite norm; loss l_i = (1/p_min)^2 - (g_i/p_i)^2,
// shifted so that the least over arms with feedback is 0; no feedback: loss 0. A norm that is 0 or not finite gives no feedback;
// when none does, nothing is written and the result is 0, else 1.
int bandit_weights(double* log_w, const double* p, const double* squares, const int* sampled, double alpha, int n);

// One update of p [n] in place: bandit_weights, then capped_simplex; p is left as it was when no arm gave feedback.
void bandit_update(double* p, const double* squares, const int* sampled, double alpha, double p_min, double budget, int n);

// Draws exactly round(sum p) arms with inclusion probability p_i each: systematic sampling (one uniform draw) over a random order.
// Order: Fisher-Yates from the end, for i = n-1 .. 1 swap(i, philox_below(philox(seed, STREAM_SAMPLE, step, (group << 32) + i).v[0], i+1)).
// Offset u = philox_uniform(philox(seed, STREAM_SAMPLE, step, group << 32).v[1]). With c the running sum of p in that order
// (double, last one set to the exact count), an arm is drawn where an integer k has c_before <= k + u < c_after. Where p does not
// sum to a whole number the count is still exact and p_i = 1 still always drawn; the other probabilities are then nearly p_i.
// sampled [n] (int32) = 1 for the arms drawn.
void sample_arms(int* sampled, const double* p, uint64_t seed, uint32_t step, uint32_t group, int n);

// sampled [n] = 1 for the `count` arms of largest score; ties go to the lower index.
void largest_arms(int* sampled, const double* score, int count, int n);

// One more update for every sampled arm: updates [n] (int32) += sampled [n]; counts = those of the sampled arms, one after the other. Nothing where
// *gradient_scale (optimizer.h) is NaN: then there is no update.
void count_updates(int* updates, int* counts, const int* sampled, const float* gradient_scale, int n);

C_END

#endif
