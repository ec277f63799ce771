// Patches, tokens and pooling on the CPU: copies and short sums, bound by memory.
//
// Every output row is written by one thread; sums over the batch run over it in order.
#include "embed.h"

#include <string.h>

// y [n] += x [n].
static void add(float* restrict y, const float* restrict x, int n) {
    #pragma omp simd
    for (int i = 0; i < n; i++) y[i] += x[i];
}

// One band of patches at a time: an image row is read once from left to right, a run of `patch` pixels to each patch.
void patches_gather(floatx* patches, const floatx* images, int b, int channels, int size, int patch) {
    int grid = size / patch;
    size_t row = (size_t)channels * patch * patch;
    #pragma omp parallel for collapse(2) schedule(static)
    for (int s = 0; s < b; s++)
        for (int gy = 0; gy < grid; gy++) {
            floatx* band = patches + ((size_t)s * grid + gy) * grid * row;
            for (int ch = 0; ch < channels; ch++)
                for (int y = 0; y < patch; y++) {
                    const floatx* line = images + (((size_t)s * channels + ch) * size + gy * patch + y) * size;
                    for (int gx = 0; gx < grid; gx++)
                        memcpy(band + gx * row + ((size_t)ch * patch + y) * patch, line + gx * patch, patch * sizeof *line);
                }
        }
}

void tokens_forward(floatx* tokens, const floatx* embedded, const float* cls, const float* position, int b, int n, int prefix,
                    int c) {
    int t = prefix + n;
    #pragma omp parallel for collapse(2) schedule(static)
    for (int s = 0; s < b; s++)
        for (int i = 0; i < t; i++) {
            floatx* restrict y = tokens + ((size_t)s * t + i) * c;
            const float* restrict x = i < prefix ? cls : embedded + ((size_t)s * n + i - prefix) * c;
            const float* restrict p = position + (size_t)i * c;
            #pragma omp simd
            for (int k = 0; k < c; k++) y[k] = x[k] + p[k];
        }
}

// y [c] = beta y + the rows x [b, stride] summed over b; beta = 0 overwrites whatever was there.
static void sum_batch(float* y, const floatx* x, float beta, int b, size_t stride, int c) {
    for (int k = 0; k < c; k++) y[k] = beta == 0 ? 0 : beta * y[k];
    for (int s = 0; s < b; s++) add(y, x + s * stride, c);
}

// One thread takes a token's place in the sequence, over the whole batch.
void tokens_backward(floatx* dembedded, float* dcls, float* dposition, const floatx* dtokens, float beta, int b, int n, int prefix,
                     int c) {
    int t = prefix + n;
    size_t stride = (size_t)t * c;
    #pragma omp parallel for schedule(static)
    for (int i = 0; i < t; i++) {
        const floatx* dy = dtokens + (size_t)i * c;
        if (dposition) sum_batch(dposition + (size_t)i * c, dy, beta, b, stride, c);
        if (i < prefix && dcls) sum_batch(dcls, dy, beta, b, stride, c);
        if (i >= prefix)
            for (int s = 0; s < b; s++) memcpy(dembedded + ((size_t)s * n + i - prefix) * c, dy + s * stride, c * sizeof *dy);
    }
}

void pool_forward(floatx* pooled, const floatx* tokens, int mean, int prefix, int b, int t, int c) {
    #pragma omp parallel for schedule(static)
    for (int s = 0; s < b; s++) {
        floatx* y = pooled + (size_t)s * c;
        const floatx* x = tokens + (size_t)s * t * c;
        if (!mean) {
            memcpy(y, x, c * sizeof *y);
            continue;
        }
        memset(y, 0, c * sizeof *y);
        for (int i = prefix; i < t; i++) add(y, x + (size_t)i * c, c);
        for (int k = 0; k < c; k++) y[k] /= t - prefix;
    }
}

void pool_backward(floatx* dtokens, const floatx* dpooled, int mean, int prefix, int b, int t, int c) {
    #pragma omp parallel for collapse(2) schedule(static)
    for (int s = 0; s < b; s++)
        for (int i = 0; i < t; i++) {
            floatx* restrict dx = dtokens + ((size_t)s * t + i) * c;
            const floatx* restrict dy = dpooled + (size_t)s * c;
            float share = mean ? (i >= prefix ? 1.0f / (t - prefix) : 0) : i == 0;
            for (int k = 0; k < c; k++) dx[k] = share == 0 ? 0 : share * dy[k];
        }
}
