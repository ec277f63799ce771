// Column blocks: what prebr++ keeps of a linear layer's input, and where its weights learn.
//
// A block is `width` neighbouring columns. blocks [n] (int32, ascending) are numbers of blocks, so block j covers columns
// blocks[j]*width .. +width. Packed matrices hold the blocks side by side: [rows, n*width]. n may be 0.
#ifndef PREBR_COLUMNS_H
#define PREBR_COLUMNS_H

#include "device.h"

C_BEGIN

// packed [t, n*width] = the sampled column blocks of x [t, cin].
void columns_gather(floatx* packed, const floatx* x, const int* blocks, int n, int width, int t, int cin);

// The inverse: x [t, cin] gets the packed columns in their places; its other columns stay as they are.
void columns_scatter(floatx* x, const floatx* packed, const int* blocks, int n, int width, int t, int cin);

// squares [cin / width] = beta squares + sum over rows and over the block's columns of x^2 (policy `norm`).
// Double, in fixed order. scratch: columns_squares_scratch(t, cin, width) bytes.
void columns_squares(double* squares, const floatx* x, double beta, int width, int t, int cin, void* scratch);

// squares[blocks[j]] = the same for block j of a compact gradient dw [rows, n*width] (policy `bandit`); the other entries stay.
// Scratch as for t = rows, cin = n*width.
void columns_gradient_squares(double* squares, const float* dw, const int* blocks, int n, int width, int rows, void* scratch);
size_t columns_squares_scratch(int t, int cin, int width);

// Importance weighting: column block j of dw [rows, n*width] times scale[j] (float, device).
void columns_scale(float* dw, const float* scale, int width, int rows, int n);

C_END

#endif
