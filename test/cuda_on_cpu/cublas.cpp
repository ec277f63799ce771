// cuBLAS and cuBLASLt on the host: column-major products through oneDNN's sgemm, on one thread. Layouts are checked as the library
// would (a leading dimension shorter than a column, dimensions that do not fit together, pointers below the promised alignment).
#include <dnnl.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

#include "cublasLt.h"

struct CublasOnCpu { int unused; };
struct CublasLtOnCpu { int unused; };

// Column-major C = alpha op(A) op(B) + beta C is row-major C^T = op(B)^T op(A)^T.
static void product(cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, float alpha, const void* a, int64_t lda, const void* b, int64_t ldb,
                    float beta, void* c, int64_t ldc) {
    int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    dnnl_sgemm(tb == CUBLAS_OP_T ? 'T' : 'N', ta == CUBLAS_OP_T ? 'T' : 'N', n, m, k, alpha, (const float*)b, ldb, (const float*)a, lda, beta, (float*)c, ldc);
    omp_set_num_threads(threads);
}

cublasStatus_t cublasCreate(cublasHandle_t* h) { *h = new CublasOnCpu; return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasSetStream(cublasHandle_t h, cudaStream_t s) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasSetWorkspace(cublasHandle_t h, void* p, size_t bytes) { return (uintptr_t)p % 256 ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_SUCCESS; }
const char* cublasGetStatusString(cublasStatus_t s) { return s == CUBLAS_STATUS_SUCCESS ? "success" : s == CUBLAS_STATUS_INVALID_VALUE ? "invalid value" : "not supported"; }

cublasStatus_t cublasGemmEx(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const void* alpha, const void* a,
                            cudaDataType at, int lda, const void* b, cudaDataType bt, int ldb, const void* beta, void* c, cudaDataType ct, int ldc,
                            cublasComputeType_t compute, cublasGemmAlgo_t algorithm) {
    if (at != CUDA_R_32F || bt != CUDA_R_32F || ct != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (lda < (ta == CUBLAS_OP_N ? m : k) || ldb < (tb == CUBLAS_OP_N ? k : n) || ldc < m || m < 1 || n < 1 || k < 1) return CUBLAS_STATUS_INVALID_VALUE;
    cuda_on_cpu::memory_show();
    product(ta, tb, m, n, k, *(const float*)alpha, a, lda, b, ldb, *(const float*)beta, c, ldc);
    cuda_on_cpu::memory_hide();
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* h) { *h = new CublasLtOnCpu; return CUBLAS_STATUS_SUCCESS; }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* d, cublasComputeType_t compute, cudaDataType scale) {
    *d = new CublasLtDesc{CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, NULL, -1};
    return compute == CUBLAS_COMPUTE_32F && scale == CUDA_R_32F ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) { delete d; return CUBLAS_STATUS_SUCCESS; }

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t a, const void* v, size_t bytes) {
    void* at = a == CUBLASLT_MATMUL_DESC_TRANSA ? (void*)&d->ta : a == CUBLASLT_MATMUL_DESC_TRANSB ? (void*)&d->tb
             : a == CUBLASLT_MATMUL_DESC_EPILOGUE ? (void*)&d->epilogue : a == CUBLASLT_MATMUL_DESC_BIAS_POINTER ? (void*)&d->bias : (void*)&d->bias_type;
    if (bytes != (a == CUBLASLT_MATMUL_DESC_BIAS_POINTER ? 8 : 4)) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(at, v, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* l, cudaDataType type, uint64_t rows, uint64_t cols, int64_t ld) {
    *l = new CublasLtLayout{type, rows, cols, ld};
    return rows < 1 || cols < 1 || ld < (int64_t)rows ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l) { delete l; return CUBLAS_STATUS_SUCCESS; }

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* p) {
    *p = new CublasLtPreference{0, 7, {256, 256, 256, 256}};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) { delete p; return CUBLAS_STATUS_SUCCESS; }

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p, cublasLtMatmulPreferenceAttributes_t a, const void* v, size_t bytes) {
    if (a == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) p->workspace = *(const size_t*)v;
    else if (a == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) p->reduction = *(const uint32_t*)v;
    else p->alignment[a - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES] = *(const uint32_t*)v;
    return bytes == (a == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES ? sizeof(size_t) : 4) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

// Reductions that leave the order of additions open must have been excluded. The alignments are kept in the algorithm, to be checked.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t h, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t to, cublasLtMatmulPreference_t p, int wanted,
                                              cublasLtMatmulHeuristicResult_t* result, int* found) {
    *found = 0;
    if (p->reduction & 1) return CUBLAS_STATUS_INVALID_VALUE;
    if (a->type != CUDA_R_32F || b->type != CUDA_R_32F || to->type != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (d->epilogue == CUBLASLT_EPILOGUE_BIAS && p->alignment[3] < 16) return CUBLAS_STATUS_NOT_SUPPORTED;
    memset(result, 0, sizeof *result);
    for (int i = 0; i < 4; i++) result->algo.data[i] = p->alignment[i];
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t d, const void* alpha, const void* a, cublasLtMatrixLayout_t la, const void* b,
                              cublasLtMatrixLayout_t lb, const void* beta, const void* c, cublasLtMatrixLayout_t lc, void* to, cublasLtMatrixLayout_t lt,
                              const cublasLtMatmulAlgo_t* algo, void* workspace, size_t bytes, cudaStream_t s) {
    int m = (int)lt->rows, n = (int)lt->cols, k = (int)(d->ta == CUBLAS_OP_N ? la->cols : la->rows);
    const void* pointer[4] = {a, b, c, to};
    for (int i = 0; i < 4; i++)
        if ((uintptr_t)pointer[i] % algo->data[i]) return CUBLAS_STATUS_INVALID_VALUE;
    if ((int)(d->ta == CUBLAS_OP_N ? la->rows : la->cols) != m || (int)(d->tb == CUBLAS_OP_N ? lb->rows : lb->cols) != k ||
        (int)(d->tb == CUBLAS_OP_N ? lb->cols : lb->rows) != n || lc->rows != lt->rows || lc->cols != lt->cols) return CUBLAS_STATUS_INVALID_VALUE;
    float add = *(const float*)beta, *out = (float*)to;
    cuda_on_cpu::memory_show();
    for (int64_t j = 0; add != 0 && c != to && j < n; j++) memcpy(out + j * lt->ld, (const float*)c + j * lc->ld, (size_t)m * sizeof(float));
    product(d->ta, d->tb, m, n, k, *(const float*)alpha, a, la->ld, b, lb->ld, add, to, lt->ld);
    for (int64_t j = 0; d->epilogue == CUBLASLT_EPILOGUE_BIAS && j < n; j++)
        for (int i = 0; i < m; i++) out[j * lt->ld + i] += ((const float*)d->bias)[i];
    cuda_on_cpu::memory_hide();
    return CUBLAS_STATUS_SUCCESS;
}
