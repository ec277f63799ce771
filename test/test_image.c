// Crop, resize, flip and normalise against a direct sum over the whole crop in double.
#include "kernels/image.h"

#include <omp.h>

#include "test.h"

static double kernel(int cubic, double x) {
    x = fabs(x);
    if (!cubic) return fmax(0, 1 - x);
    if (x >= 2) return 0;
    return x < 1 ? 1.5 * x * x * x - 2.5 * x * x + 1 : -0.5 * (x * x * x - 5 * x * x + 8 * x - 4);
}

// The weight of source pixel j of n for output pixel i of size, not normalised.
static double weight(int cubic, int i, int j, int n, int size) {
    double ratio = (double)n / size;
    return kernel(cubic, (j + 0.5 - (i + 0.5) * ratio) / fmax(ratio, 1));
}

static double reference(const uint8_t* plane, int stride, Crop c, int cubic, int size, int oy, int ox) {
    double sum = 0, total = 0;
    for (int y = 0; y < c.height; y++) {
        double down = weight(cubic, oy, y, (int)c.height, size);
        for (int x = 0; x < c.width && down != 0; x++) {
            double both = down * weight(cubic, ox, x, (int)c.width, size);
            sum += both * plane[(y + (int)c.y) * stride + x + (int)c.x];
            total += both;
        }
    }
    return fmin(fmax(sum / total, 0), 255);
}

static const float MEAN[3] = {0.485f, 0.456f, 0.406f}, STD[3] = {0.229f, 0.224f, 0.225f};

// Random bytes; half of the pixels are 0 or 255, so that the cubic overshoots both ends.
static uint8_t* random_bytes(size_t n) {
    uint8_t* raw = malloc(n);
    for (size_t i = 0; i < n; i++) raw[i] = test_int(0, 1) ? 255 * test_int(0, 1) : test_int(0, 255);
    return raw;
}

static Crop random_crop(int height, int width) {
    int w = test_int(1, width), h = test_int(1, height);
    return (Crop){test_int(0, width - w), test_int(0, height - h), w, h, test_int(0, 1)};
}

static void test_images(int b, int channels, int height, int width, int size, int cubic, int cropped) {
    size_t plane = (size_t)size * size;
    uint8_t* raw = random_bytes((size_t)b * channels * height * width);
    float* images = test_array(b * 3 * plane);
    Crop* crops = malloc(b * sizeof *crops);
    for (int s = 0; s < b; s++) crops[s] = cropped ? random_crop(height, width) : (Crop){0, 0, width, height, 0};
    void* scratch = malloc(image_scratch(b, height, width, size));
    memset(scratch, 0xff, image_scratch(b, height, width, size));   // NaN: nothing may be read before it is written
    images_prepare(images, raw, cropped ? crops : NULL, MEAN, STD, cubic, b, channels, height, width, size, scratch);
    double worst = 0;
    for (size_t i = 0; i < b * 3 * plane; i += plane > 5000 ? 7 : 1) {
        int x = i % size, y = i / size % size, ch = i / plane % 3, s = (int)(i / plane / 3);
        const uint8_t* from = raw + ((size_t)s * channels + (channels == 1 ? 0 : ch)) * height * width;
        double v = reference(from, width, crops[s], cubic, size, y, crops[s].flip ? size - 1 - x : x);
        double d = fabs(images[i] - (v / 255 - MEAN[ch]) / STD[ch]);
        if (!(d <= worst)) worst = isnan(d) ? INFINITY : d;
    }
    CHECK(worst < 1e-5, "off by %g: b %d channels %d, %d x %d to %d, cubic %d, cropped %d", worst, b, channels, height, width, size,
          cubic, cropped);
    free(raw), free(images), free(crops), free(scratch);
}

static void test_threads(void) {
    enum { B = 5, H = 41, W = 67, SIZE = 37, N = B * 3 * SIZE * SIZE };
    uint8_t* raw = random_bytes(B * 3 * H * W);
    float* out[2] = {test_array(N), test_array(N)};
    Crop crops[B];
    for (int s = 0; s < B; s++) crops[s] = random_crop(H, W);
    void* scratch = malloc(image_scratch(B, H, W, SIZE));
    for (int threads = 1; threads <= 3; threads++) {
        omp_set_num_threads(threads);
        images_prepare(out[threads > 1], raw, crops, MEAN, STD, INTERPOLATE_BICUBIC, B, 3, H, W, SIZE, scratch);
        CHECK(threads == 1 || memcmp(out[0], out[1], N * sizeof(float)) == 0, "%d threads", threads);
    }
    omp_set_num_threads(2);
    free(raw), free(out[0]), free(out[1]), free(scratch);
}

int main(void) {
    omp_set_num_threads(2);
    for (int cubic = 0; cubic < 2; cubic++) {
        test_images(2, 3, 32, 32, 96, cubic, 0);      // enlarged
        test_images(2, 1, 28, 28, 28, cubic, 0);      // as it is, grey
        test_images(1, 3, 97, 61, 32, cubic, 0);      // reduced, by different factors
        test_images(1, 3, 23, 90, 47, cubic, 0);      // enlarged along one axis, reduced along the other
        test_images(1, 1, 1, 1, 7, cubic, 0);
        test_images(1, 3, 50, 33, 1, cubic, 0);
        test_images(6, 3, 41, 67, 37, cubic, 1);      // crops and flips
        test_images(6, 1, 19, 13, 33, cubic, 1);
        test_images(1, 3, 300, 400, 31, cubic, 1);
    }
    test_threads();
    TEST_END();
}
