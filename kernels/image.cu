// Crop, resize, flip and normalise. One kernel makes the filter's weights of both axes for every image; another gives each thread an output
// pixel, which it adds up over the filter's window, along x first. Neighbouring threads read neighbouring source bytes, which stay in the
// first-level cache for the rows of output that share them, so nothing is stored between the two passes.
#include "image.h"

#include "cuda.cuh"

// Triangle and Keys cubic (a = -0.5) around 0; their supports are 1 and 2.
__device__ double filter(int interpolation, double x) {
    x = fabs(x);
    if (interpolation == INTERPOLATE_BILINEAR) return x < 1 ? 1 - x : 0;
    if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
    return x < 2 ? ((-0.5 * x + 2.5) * x - 4) * x + 2 : 0;
}

static __host__ __device__ double widening(int n, int size) { return n > size ? (double)n / size : 1; }

// The most source pixels that one output pixel can look at.
static __host__ __device__ int tap_count(int interpolation, int n, int size) {
    return (int)ceil((interpolation == INTERPOLATE_BILINEAR ? 2 : 4) * widening(n, size));
}

// One image's scratch: weights along x and y [taps, size] each, then the first source pixels along x and y [size] each.
static size_t bench_floats(int height, int width, int size) {
    size_t taps_x = tap_count(INTERPOLATE_BICUBIC, width, size), taps_y = tap_count(INTERPOLATE_BICUBIC, height, size);
    return ((taps_x + taps_y + 2) * size + 15) / 16 * 16;
}

size_t image_scratch(int b, int height, int width, int size) { return b * bench_floats(height, width, size) * sizeof(float); }

typedef struct {
    const Crop* crops;
    float* scratch;
    size_t bench;            // floats of an image's scratch
    int interpolation, channels, height, width, size, taps_x, taps_y;   // taps: room for the widest
} Resize;

typedef struct { float *weight; int* start; int n, taps; } Axis;

__device__ Axis axis_of(const Resize& r, const Crop& crop, int image, int vertical) {
    float* at = r.scratch + image * r.bench;
    int* starts = (int*)(at + (size_t)(r.taps_x + r.taps_y) * r.size);
    Axis a;
    a.weight = vertical ? at + (size_t)r.taps_x * r.size : at;
    a.start = vertical ? starts + r.size : starts;
    a.n = (int)(vertical ? crop.height : crop.width);
    a.taps = tap_count(r.interpolation, a.n, r.size);
    return a;
}

__device__ Crop crop_of(const Resize& r, int image) {
    Crop whole = {0, 0, (float)r.width, (float)r.height, 0};
    return r.crops ? r.crops[image] : whole;
}

// Output pixel i of an axis (n pixels to size) = sum over k of weight[k*size + i] * source pixel start[i] + k. Its window is that of the
// pixels whose centres lie within the support around its own centre, cut at the border; unused taps weigh 0. Grid: pixels x 2 x images.
static __global__ void make_weights(Resize r) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, image = blockIdx.z;
    if (i >= r.size) return;
    Axis a = axis_of(r, crop_of(r, image), image, blockIdx.y);
    double wide = widening(a.n, r.size), support = (r.interpolation == INTERPOLATE_BILINEAR ? 1 : 2) * wide, centre = (i + 0.5) * a.n / r.size, sum = 0;
    int from = (int)fmax(centre - support + 0.5, 0.0);
    int count = (int)fmin(fmin(centre + support + 0.5, (double)a.n) - from, (double)a.taps);
    for (int k = 0; k < count; k++) sum += filter(r.interpolation, (from + k + 0.5 - centre) / wide);
    for (int k = 0; k < a.taps; k++)
        a.weight[(size_t)k * r.size + i] = k < count ? (float)(filter(r.interpolation, (from + k + 0.5 - centre) / wide) / sum) : 0;
    a.start[i] = from;
}

typedef struct { float scale[3], shift[3]; } Normal;

// Grid: output pixels x stored channels x images.
static __global__ void resize(floatx* images, const uint8_t* raw, Resize r, Normal normal) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, channel = blockIdx.y, image = blockIdx.z, size = r.size;
    if (i >= size * size) return;
    Crop crop = crop_of(r, image);
    Axis across = axis_of(r, crop, image, 0), down = axis_of(r, crop, image, 1);
    int y = i / size, x = crop.flip ? size - 1 - i % size : i % size, x0 = across.start[x], y0 = down.start[y];
    int taps_x = min(across.taps, across.n - x0), taps_y = min(down.taps, down.n - y0);
    const uint8_t* from = raw + ((size_t)(image * r.channels + channel) * r.height + (int)crop.y + y0) * r.width + (int)crop.x + x0;
    float sum = 0;
    for (int v = 0; v < taps_y; v++) {
        float row = 0;
        for (int u = 0; u < taps_x; u++) row += across.weight[u * size + x] * from[(size_t)v * r.width + u];
        sum += down.weight[v * size + y] * row;
    }
    sum = fminf(fmaxf(sum, 0.0f), 255.0f);
    for (int c = channel; c < (r.channels == 1 ? 3 : channel + 1); c++)
        images[((size_t)image * 3 + c) * size * size + i] = (floatx)(sum * normal.scale[c] + normal.shift[c]);
}

void images_prepare(floatx* images, const uint8_t* raw, const Crop* crops, const float* mean, const float* std, int interpolation, int b, int channels,
                    int height, int width, int size, void* scratch) {
    if (b < 1) return;
    Resize r = {crops, (float*)scratch, bench_floats(height, width, size), interpolation, channels, height, width, size,
                tap_count(INTERPOLATE_BICUBIC, width, size), tap_count(INTERPOLATE_BICUBIC, height, size)};
    Normal normal;
    for (int c = 0; c < 3; c++) {
        normal.scale[c] = 1 / (255 * std[c]);
        normal.shift[c] = -mean[c] / std[c];
    }
    LAUNCH(make_weights, dim3(blocks_for(size, 64), 2, b), 64, 0, r);
    LAUNCH(resize, dim3(blocks_for((size_t)size * size, BLOCK), channels, b), BLOCK, 0, images, raw, r, normal);
}
