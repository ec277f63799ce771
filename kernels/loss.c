// Softmax cross-entropy on the CPU. Rows are few and short beside any GEMM, so a row is done in double by one thread: then
// loss and gradient stay good where the softmax is nearly 0 or 1.
#include "loss.h"

#include <math.h>

static int first_largest(const floatx* x, int n) {
    int best = 0;
    for (int i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

void cross_entropy(float* losses, int* correct, floatx* dlogits, const floatx* logits, const int* labels, float scale, int b,
                   int n) {
    #pragma omp parallel for schedule(static)
    for (int s = 0; s < b; s++) {
        const floatx* x = logits + (size_t)s * n;
        int label = labels[s], best = first_largest(x, n);
        double sum = 0, largest = x[best];
        for (int i = 0; i < n; i++) sum += exp(x[i] - largest);
        double log_sum = largest + log(sum);
        losses[s] = (float)(log_sum - x[label]);
        correct[s] = best == label;
        if (!dlogits) continue;
        floatx* dx = dlogits + (size_t)s * n;
        for (int i = 0; i < n; i++) dx[i] = (floatx)(scale * (exp(x[i] - log_sum) - (i == label)));
    }
}

void squared_error(float* losses, floatx* dy, const floatx* y, const float* targets, float scale, int b) {
    for (int s = 0; s < b; s++) {
        float error = y[s] - targets[s];
        losses[s] = error * error;
        if (dy) dy[s] = 2 * scale * error;
    }
}
