// One vector a sample: a thread takes an element.
#include "tanh.h"

#include "cuda.cuh"

static __global__ void tanh_of(floatx* y, const floatx* x, size_t n) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = (floatx)tanhf((float)x[i]);
}

static __global__ void tanh_slope(floatx* dx, const floatx* dy, const floatx* y, size_t n) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) dx[i] = (floatx)((float)dy[i] * (1 - (float)y[i] * (float)y[i]));
}

void tanh_forward(floatx* y, const floatx* x, size_t n) {
    if (n) LAUNCH(tanh_of, blocks_for(n, BLOCK), BLOCK, 0, y, x, n);
}

void tanh_backward(floatx* dx, const floatx* dy, const floatx* y, size_t n) {
    if (n) LAUNCH(tanh_slope, blocks_for(n, BLOCK), BLOCK, 0, dx, dy, y, n);
}
