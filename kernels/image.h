// From stored bytes to the network's input: crop, resize, flip, normalise, in one pass.
#ifndef PREBR_IMAGE_H
#define PREBR_IMAGE_H

#include "device.h"

C_BEGIN

enum { INTERPOLATE_BILINEAR = 0, INTERPOLATE_BICUBIC = 1 };

typedef struct { float x, y, width, height; int flip; } Crop;   // a box in pixels of the stored image; flip = 1: mirrored

// images [b, 3, size, size] from raw [b, channels, height, width] bytes (planar). channels 1 is replicated to 3.
// Each output pixel is the crop resized with the separable filter of Pillow / torch interpolate(antialias=True): triangle or Keys
// cubic (a = -0.5), widened by the scale on reduction, window clipped to the crop and weights normalised; horizontal pass first,
// float between, then clamped to [0, 255]. Then (v / 255 - mean[ch]) / std[ch] (mean, std: host [3]).
// crops [b]: NULL = the whole image. Crop boxes are whole pixels.
// scratch: image_scratch(b, height, width, size) bytes.
void images_prepare(floatx* images, const uint8_t* raw, const Crop* crops, const float* mean, const float* std, int interpolation, int b,
                    int channels, int height, int width, int size, void* scratch);
size_t image_scratch(int b, int height, int width, int size);

C_END

#endif
