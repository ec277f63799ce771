// Losses, forward and backward in one kernel. Cross-entropy: a warp takes a row, in double: rows are few and short beside any GEMM, and loss
// and gradient stay good where the softmax is nearly 0 or 1.
#include "loss.h"

#include "cuda.cuh"

enum { WARPS = 4 };

static __global__ void cross_entropy_rows(float* losses, int* correct, floatx* dlogits, const floatx* logits, const int* labels, float scale, int b, int n) {
    int s = blockIdx.x * WARPS + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (s >= b) return;
    const floatx* x = logits + (size_t)s * n;
    double largest = -INFINITY, sum = 0;
    int best = n, label = labels[s];
    for (int i = lane; i < n; i += WARP)
        if ((double)(float)x[i] > largest || best == n) {
            largest = (double)(float)x[i];
            best = i;
        }
    for (int other = 16; other > 0; other /= 2) {   // of equal ones the first
        double value = __shfl_xor_sync(ALL_LANES, largest, other);
        int index = __shfl_xor_sync(ALL_LANES, best, other);
        if (value > largest || (value == largest && index < best)) {
            largest = value;
            best = index;
        }
    }
    for (int i = lane; i < n; i += WARP) sum += exp((double)(float)x[i] - largest);
    double log_sum = largest + log(warp_sum(sum));
    if (lane == 0) {
        losses[s] = (float)(log_sum - (double)(float)x[label]);
        correct[s] = best == label;
    }
    if (!dlogits) return;
    for (int i = lane; i < n; i += WARP) dlogits[(size_t)s * n + i] = (floatx)(float)(scale * (exp((double)(float)x[i] - log_sum) - (i == label)));
}

void cross_entropy(float* losses, int* correct, floatx* dlogits, const floatx* logits, const int* labels, float scale, int b, int n) {
    if (b > 0) LAUNCH(cross_entropy_rows, blocks_for(b, WARPS), WARPS * WARP, 0, losses, correct, dlogits, logits, labels, scale, b, n);
}

static __global__ void squared_errors(float* losses, floatx* dy, const floatx* y, const float* targets, float scale, int b) {
    int s = blockIdx.x * blockDim.x + threadIdx.x;
    if (s >= b) return;
    float error = (float)y[s] - targets[s];
    losses[s] = error * error;
    if (dy) dy[s] = (floatx)(2 * scale * error);
}

void squared_error(float* losses, floatx* dy, const floatx* y, const float* targets, float scale, int b) {
    if (b > 0) LAUNCH(squared_errors, blocks_for(b, BLOCK), BLOCK, 0, losses, dy, y, targets, scale, b);
}
