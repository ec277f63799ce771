// One vector a sample: nothing here is worth a vectorised tanh.
#include "tanh.h"

#include <math.h>

void tanh_forward(floatx* y, const floatx* x, size_t n) {
    #pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i++) y[i] = tanhf(x[i]);
}

void tanh_backward(floatx* dx, const floatx* dy, const floatx* y, size_t n) {
    #pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i++) dx[i] = dy[i] * (1 - y[i] * y[i]);
}
