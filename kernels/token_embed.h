// From token numbers to vectors: word, position and segment embeddings (BERT, Devlin et al., 2019).
#ifndef PREBR_TOKEN_EMBED_H
#define PREBR_TOKEN_EMBED_H

#include "device.h"

C_BEGIN

// y [b, t, c] = word[ids] + position[place in the sequence] + type[types]; ids and types [b, t] int32, known to be within
// word [vocabulary, c] and type [kinds, c]; position has at least t rows.
void token_embed_forward(floatx* y, const float* word, const float* position, const float* type, const int* ids, const int* types, int b, int t, int c);

// The gradients of the three tables from dy [b, t, c] (each NULL: not computed). beta 0 overwrites a table, 1 adds to it; rows that no
// token names get zero or stay. A row that several tokens name sums them in the order of the batch, so that the bits are always the same.
// dposition has `positions` >= t rows.
void token_embed_backward(float* dword, float* dposition, float* dtype, const floatx* dy, const int* ids, const int* types, float beta, int b, int t,
                          int c, int vocabulary, int positions, int kinds);

C_END

#endif
