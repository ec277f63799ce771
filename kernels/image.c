// Crop, resize, flip and normalise on the CPU.
//
// The filter is separable: along x first, one source row at a time, then along y. Only the few filtered rows that the next
// output row looks at are kept, in a ring, so an image needs a few kilobytes whatever its size. Both passes run over the output
// row with the taps outermost, so every inner loop is a vector loop. One thread takes an image.
#include "image.h"

#include <math.h>

// Triangle and Keys cubic (a = -0.5) around 0; their supports are 1 and 2.
static double filter(int interpolation, double x) {
    x = fabs(x);
    if (interpolation == INTERPOLATE_BILINEAR) return x < 1 ? 1 - x : 0;
    if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
    return x < 2 ? ((-0.5 * x + 2.5) * x - 4) * x + 2 : 0;
}

static double widening(int n, int size) { return n > size ? (double)n / size : 1; }

// The most source pixels that one output pixel can look at.
static int tap_count(int interpolation, int n, int size) {
    return (int)ceil((interpolation == INTERPOLATE_BILINEAR ? 2 : 4) * widening(n, size));
}

// Output pixel i of an axis (n pixels to size) = sum over k of weight[k*size + i] * source pixel start[i] + k. Its window is that
// of the pixels whose centres lie within the support around its own centre, cut at the border; unused taps weigh 0.
static void windows(float* weight, int* start, int interpolation, int n, int size, int taps) {
    double wide = widening(n, size), support = (interpolation == INTERPOLATE_BILINEAR ? 1 : 2) * wide;
    for (int i = 0; i < size; i++) {
        double centre = (i + 0.5) * n / size, sum = 0;
        int from = (int)fmax(centre - support + 0.5, 0);
        int count = (int)fmin(fmin(centre + support + 0.5, n) - from, taps);
        for (int k = 0; k < count; k++) sum += filter(interpolation, (from + k + 0.5 - centre) / wide);
        for (int k = 0; k < taps; k++)
            weight[(size_t)k * size + i] = k < count ? (float)(filter(interpolation, (from + k + 0.5 - centre) / wide) / sum) : 0;
        start[i] = from;
    }
}

// One image's scratch. Widths are those of the widest crop and filter.
typedef struct {
    float *across, *down;      // filter weights along x and y, [taps, size] each
    float *ring;               // source rows after the pass along x: row y at ring[y % taps_y], [taps_y, size]
    float *source, *out;       // one source row with zeros after it for the unused taps, one output row
    int *start_x, *start_y;    // [size] each
} Bench;

static size_t bench_floats(int height, int width, int size) {
    size_t taps_x = tap_count(INTERPOLATE_BICUBIC, width, size), taps_y = tap_count(INTERPOLATE_BICUBIC, height, size);
    size_t n = (taps_x + 2 * taps_y + 3) * size + width + taps_x;
    return (n + 15) / 16 * 16;
}

static Bench bench_at(float* scratch, int height, int width, int size) {
    size_t taps_x = tap_count(INTERPOLATE_BICUBIC, width, size), taps_y = tap_count(INTERPOLATE_BICUBIC, height, size);
    Bench b;
    b.across = scratch;
    b.down = b.across + taps_x * size;
    b.ring = b.down + taps_y * size;
    b.out = b.ring + taps_y * size;
    b.start_x = (int*)(b.out + size);
    b.start_y = b.start_x + size;
    b.source = (float*)(b.start_y + size);
    return b;
}

size_t image_scratch(int b, int height, int width, int size) { return b * bench_floats(height, width, size) * sizeof(float); }

// out [size] = the source row filtered along x.
static void filter_row(float* restrict out, const float* restrict source, const float* restrict weight, const int* restrict start,
                       int taps, int size) {
    for (int i = 0; i < size; i++) out[i] = 0;
    for (int k = 0; k < taps; k++) {
        #pragma omp simd
        for (int i = 0; i < size; i++) out[i] += weight[k * size + i] * source[start[i] + k];
    }
}

// out [size] += weight * row, the pass along y.
static void add_row(float* restrict out, const float* restrict row, float weight, int size) {
    #pragma omp simd
    for (int i = 0; i < size; i++) out[i] += weight * row[i];
}

static inline float clamp_byte(float v) { return v < 0 ? 0 : v > 255 ? 255 : v; }

// to [size] = the clamped row, normalised, mirrored where flip.
static void store_row(floatx* restrict to, const float* restrict row, float mean, float std, int flip, int size) {
    float scale = 1 / (255 * std), shift = -mean / std;
    if (flip) {
        #pragma omp simd
        for (int i = 0; i < size; i++) to[i] = clamp_byte(row[size - 1 - i]) * scale + shift;
    } else {
        #pragma omp simd
        for (int i = 0; i < size; i++) to[i] = clamp_byte(row[i]) * scale + shift;
    }
}

// One plane of the stored image to `copies` planes of the network's input, which differ in mean and std only.
static void resize_plane(floatx* planes, int copies, const uint8_t* raw, int stride, int height, int width, int flip,
                         const float* mean, const float* std, Bench b, int taps_x, int taps_y, int size) {
    int ready = 0;   // source rows already filtered along x
    for (int i = 0; i < taps_x; i++) b.source[width + i] = 0;
    for (int y = 0; y < size; y++) {
        int from = b.start_y[y], to = from + taps_y < height ? from + taps_y : height;
        if (ready < from) ready = from;
        for (; ready < to; ready++) {
            const uint8_t* row = raw + (size_t)ready * stride;
            for (int i = 0; i < width; i++) b.source[i] = row[i];
            filter_row(b.ring + (size_t)(ready % taps_y) * size, b.source, b.across, b.start_x, taps_x, size);
        }
        for (int i = 0; i < size; i++) b.out[i] = 0;
        for (int k = from; k < to; k++)
            add_row(b.out, b.ring + (size_t)(k % taps_y) * size, b.down[(size_t)(k - from) * size + y], size);
        for (int ch = 0; ch < copies; ch++)
            store_row(planes + ((size_t)ch * size + y) * size, b.out, mean[ch], std[ch], flip, size);
    }
}

void images_prepare(floatx* images, const uint8_t* raw, const Crop* crops, const float* mean, const float* std, int interpolation,
                    int b, int channels, int height, int width, int size, void* scratch) {
    size_t plane = (size_t)size * size, raw_plane = (size_t)height * width;
    #pragma omp parallel for schedule(static)
    for (int s = 0; s < b; s++) {
        Crop crop = crops ? crops[s] : (Crop){0, 0, width, height, 0};
        const uint8_t* corner = raw + s * channels * raw_plane + (size_t)crop.y * width + (size_t)crop.x;
        Bench bench = bench_at((float*)scratch + s * bench_floats(height, width, size), height, width, size);
        int w = (int)crop.width, h = (int)crop.height;
        int taps_x = tap_count(interpolation, w, size), taps_y = tap_count(interpolation, h, size);
        windows(bench.across, bench.start_x, interpolation, w, size, taps_x);
        windows(bench.down, bench.start_y, interpolation, h, size, taps_y);
        for (int ch = 0; ch < channels; ch++)
            resize_plane(images + ((size_t)s * 3 + ch) * plane, channels == 1 ? 3 : 1, corner + ch * raw_plane, width, h, w, crop.flip,
                         mean + ch, std + ch, bench, taps_x, taps_y, size);
    }
}
