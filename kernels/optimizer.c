// AdamW and SGD on the CPU: one pass over weights, moments and gradients, bound by memory.
//
// There are no copies to write: floatx is float. Scalars of a step are made in double and rounded once, and the arithmetic of an element follows PyTorch's order. Work is cut
// into fixed tiles, each done by one thread, so that the same vector code meets the same element for any number of threads.
#include "optimizer.h"

#include <math.h>

enum {
    TILE = 4096,     // elements of a dense tensor that one thread takes at a time
    ROWS = 32,       // rows of a column-sparse tensor, likewise
    BLOCKS = 64,     // column blocks whose step scalars are at hand at once
    CACHE_LINE = 16  // floats; the default width of a block, compiled as one vector
};

static inline size_t least(size_t a, size_t b) { return a < b ? a : b; }

typedef struct { float decay, rest1, beta2, rest2, step, root, eps, scale; } AdamWStep;   // what elements of one t share

static AdamWStep adamw_step(AdamW o, int t) {
    return (AdamWStep){
        .decay = (float)(1 - o.lr * o.weight_decay),
        .rest1 = (float)(1 - o.beta1),
        .beta2 = (float)o.beta2,
        .rest2 = (float)(1 - o.beta2),
        .step = (float)(o.lr / (1 - pow(o.beta1, t))),
        .root = (float)sqrt(1 - pow(o.beta2, t)),
        .eps = (float)o.eps,
        .scale = *o.gradient_scale,
    };
}

static inline void adamw(float* restrict w, float* restrict m, float* restrict v, const float* restrict g, AdamWStep s, int n) {
    #pragma omp simd
    for (int i = 0; i < n; i++) {
        float gi = g[i] * s.scale;
        float mi = m[i] + s.rest1 * (gi - m[i]);
        float vi = v[i] * s.beta2 + s.rest2 * gi * gi;
        w[i] = w[i] * s.decay - s.step * mi / (sqrtf(vi) / s.root + s.eps);
        m[i] = mi;
        v[i] = vi;
    }
}

void adamw_dense(float* w, floatx* copy, float* m, float* v, const float* g, AdamW o, int t, size_t n) {
    if (isnan(*o.gradient_scale)) return;
    AdamWStep s = adamw_step(o, t);
    #pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i += TILE) adamw(w + i, m + i, v + i, g + i, s, (int)least(TILE, n - i));
}

// The scalars of up to BLOCKS blocks are made once for ROWS rows; neighbours mostly share their t.
void adamw_columns(float* w, floatx* copy, float* m, float* v, const float* g, AdamW o, const int* t, const int* blocks, int n, int width, int rows,
                   int cin) {
    if (isnan(*o.gradient_scale)) return;
    #pragma omp parallel for schedule(static)
    for (int row = 0; row < rows; row += ROWS)
        for (int first = 0; first < n; first += BLOCKS) {
            int last = (int)least(n, first + BLOCKS);
            AdamWStep s[BLOCKS];
            for (int j = first; j < last; j++)
                s[j - first] = j > first && t[j] == t[j - 1] ? s[j - first - 1] : adamw_step(o, t[j]);
            for (int r = row; r < rows && r < row + ROWS; r++)
                for (int j = first; j < last; j++) {
                    size_t at = (size_t)r * cin + (size_t)blocks[j] * width;
                    const float* gj = g + ((size_t)r * n + j) * width;
                    if (width == CACHE_LINE) adamw(w + at, m + at, v + at, gj, s[j - first], CACHE_LINE);
                    else adamw(w + at, m + at, v + at, gj, s[j - first], width);
                }
        }
}

static inline void sgd(float* restrict w, float* restrict velocity, const float* restrict g, SGD o, int first, int n) {
    float scale = *o.gradient_scale, lr = (float)o.lr, decay = (float)o.weight_decay, momentum = (float)o.momentum;
    #pragma omp simd
    for (int i = 0; i < n; i++) {
        float gi = g[i] * scale + decay * w[i];
        float vi = first ? gi : momentum * velocity[i] + gi;
        w[i] -= lr * vi;
        velocity[i] = vi;
    }
}

void sgd_dense(float* w, floatx* copy, float* velocity, const float* g, SGD o, int first, size_t n) {
    if (isnan(*o.gradient_scale)) return;
    #pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i += TILE) sgd(w + i, velocity + i, g + i, o, first, (int)least(TILE, n - i));
}

void sgd_columns(float* w, floatx* copy, float* velocity, const float* g, SGD o, const int* t, const int* blocks, int n, int width, int rows,
                 int cin) {
    if (isnan(*o.gradient_scale)) return;
    #pragma omp parallel for schedule(static)
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < n; j++) {
            size_t at = (size_t)r * cin + (size_t)blocks[j] * width;
            const float* gj = g + ((size_t)r * n + j) * width;
            if (width == CACHE_LINE) sgd(w + at, velocity + at, gj, o, t[j] == 1, CACHE_LINE);
            else sgd(w + at, velocity + at, gj, o, t[j] == 1, width);
        }
}

// A partial sum for each tile, then the partial sums in order.
void squares_add(double* sum, const float* g, size_t n, void* scratch) {
    double* partial = scratch;
    #pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i += TILE) {
        int count = (int)least(TILE, n - i);
        double s = 0;
        #pragma omp simd reduction(+ : s)
        for (int k = 0; k < count; k++) s += (double)g[i + k] * g[i + k];
        partial[i / TILE] = s;
    }
    for (size_t i = 0; i < n; i += TILE) *sum += partial[i / TILE];
}

size_t squares_scratch(size_t n) { return (n + TILE - 1) / TILE * sizeof(double); }

void clip_scale(float* scale, const double* squares, double clip) {
    double norm = sqrt(*squares);
    *scale = !isfinite(norm) ? NAN : clip > 0 && norm > clip ? (float)(clip / (norm + 1e-6)) : 1;
}
