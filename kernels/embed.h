// From an image to tokens: patches, class token, position embedding (ViT, Dosovitskiy et al., 2021).
#ifndef PREBR_EMBED_H
#define PREBR_EMBED_H

#include "device.h"

C_BEGIN

// patches [b * (size/patch)^2, channels*patch*patch] from images [b, channels, size, size]: row = one patch (row-major over the
// grid), columns ordered channel, y, x, as a convolution weight [c, channels, patch, patch] is stored. size % patch may leave
// a border, which is not used.
void patches_gather(floatx* patches, const floatx* images, int b, int channels, int size, int patch);

// tokens [b, prefix + n, c]: the class token [c] first when prefix = 1 (cls NULL when 0), then the n embedded patches
// [b, n, c]; position embedding [prefix + n, c] added to all.
void tokens_forward(floatx* tokens, const floatx* embedded, const float* cls, const float* position, int b, int n, int prefix, int c);

// dembedded [b, n, c] = the patch rows of dtokens; dcls [c] (NULL when prefix = 0) and dposition [prefix + n, c] = beta *
// themselves + sums over the batch in fixed order; either NULL: does not learn.
void tokens_backward(floatx* dembedded, float* dcls, float* dposition, const floatx* dtokens, float beta, int b, int n, int prefix, int c);

// What the head reads: pooled [b, c] = the first token (mean = 0), or the mean of tokens from `prefix` on (mean = 1).
void pool_forward(floatx* pooled, const floatx* tokens, int mean, int prefix, int b, int t, int c);
// dtokens [b, t, c]: every element written (zeros where pooling does not look).
void pool_backward(floatx* dtokens, const floatx* dpooled, int mean, int prefix, int b, int t, int c);

C_END

#endif
