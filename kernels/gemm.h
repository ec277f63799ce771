// C [m, n] = op(A) op(B) + beta C, all row-major, float accumulation; oneDNN on the CPU, cuBLASLt on CUDA.
//
// The same bits for any number of threads.
#ifndef PREBR_GEMM_H
#define PREBR_GEMM_H

#include "device.h"

C_BEGIN

// ta = 0: A is [m, k] with row stride lda; ta = 1: A is stored [k, m]. Likewise tb: 0 stored [k, n], 1 stored [n, k].
// beta 0 overwrites C (which may hold anything, NaN included), 1 adds. m, n, k >= 0; k = 0 leaves beta C.
void gemm(int ta, int tb, int m, int n, int k, const floatx* a, int lda, const floatx* b, int ldb, float beta, floatx* c, int ldc);

// C = op(A) op(B) + bias + residual in one pass. bias [n] may be NULL; residual [m, n] has C's row stride, may be C itself,
// and may be NULL.
void gemm_add(int ta, int tb, int m, int n, int k, const floatx* a, int lda, const floatx* b, int ldb, const floatx* bias,
              const floatx* residual, floatx* c, int ldc);

// The same as gemm for the gradient of a weight: C is float on every backend.
void gemm_gradient(int ta, int tb, int m, int n, int k, const floatx* a, int lda, const floatx* b, int ldb, float beta, float* c, int ldc);

// That with beta 0, and on the way sums [m] = the sums of op(A)'s rows, which are the gradient of a bias. Returns 1, or 0 with nothing done
// where the library has no such product (on the CPU: always).
int gemm_gradient_sums(int ta, int tb, int m, int n, int k, const floatx* a, int lda, const floatx* b, int ldb, float* c, int ldc, float* sums);

// Memory that products may use on the way: where the library wants none, 0 bytes. Without it (NULL, as at the start) products take algorithms
// that need none. It stays the caller's, who keeps it until another, or NULL, is given.
size_t gemm_workspace_bytes(void);
void gemm_use_workspace(void* workspace);

C_END

#endif
