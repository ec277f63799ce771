// cuBLAS and cuBLASLt on the host: column-major products through oneDNN's sgemm in float, on one thread, of float or bfloat16. Layouts are checked as the library
// would (a leading dimension shorter than a column, dimensions that do not fit together, pointers below the promised alignment).
#include <dnnl.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

#include <vector>

#include "cublasLt.h"
#include "cuda_bf16.h"

struct CublasOnCpu { int unused; };
struct CublasLtOnCpu { int unused; };

// The cases in use: operands of one type, float or bfloat16; the result of the same type or float.
static bool supported(cudaDataType a, cudaDataType b, cudaDataType c) {
    return a == b && (a == CUDA_R_32F || a == CUDA_R_16BF) && (c == a || c == CUDA_R_32F);
}

// A column-major matrix as packed floats, and back.
static std::vector<float> widened(const void* from, cudaDataType type, int64_t rows, int64_t cols, int64_t ld) {
    std::vector<float> to((size_t)(rows * cols));
    for (int64_t j = 0; j < cols; j++)
        for (int64_t i = 0; i < rows; i++)
            to[(size_t)(j * rows + i)] = type == CUDA_R_32F ? ((const float*)from)[j * ld + i] : (float)((const __nv_bfloat16*)from)[j * ld + i];
    return to;
}
static void narrow(void* to, cudaDataType type, const std::vector<float>& from, int64_t rows, int64_t cols, int64_t ld) {
    for (int64_t j = 0; j < cols; j++)
        for (int64_t i = 0; i < rows; i++)
            if (type == CUDA_R_32F) ((float*)to)[j * ld + i] = from[(size_t)(j * rows + i)];
            else ((__nv_bfloat16*)to)[j * ld + i] = __nv_bfloat16(from[(size_t)(j * rows + i)]);
}

// Column-major to = alpha op(A) op(B) + beta C + bias (NULL: none) of each row, in float, rounded once. It is row-major to^T = op(B)^T op(A)^T.
static void product(cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, float alpha, const void* a, cudaDataType at, int64_t lda, const void* b,
                    int64_t ldb, float beta, const void* c, int64_t ldc, const void* bias, void* to, cudaDataType type, int64_t ld) {
    std::vector<float> x = widened(a, at, ta == CUBLAS_OP_T ? k : m, ta == CUBLAS_OP_T ? m : k, lda);
    std::vector<float> y = widened(b, at, tb == CUBLAS_OP_T ? n : k, tb == CUBLAS_OP_T ? k : n, ldb);
    std::vector<float> z = beta != 0 ? widened(c, type, m, n, ldc) : std::vector<float>((size_t)m * n);
    int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    dnnl_sgemm(tb == CUBLAS_OP_T ? 'T' : 'N', ta == CUBLAS_OP_T ? 'T' : 'N', n, m, k, alpha, y.data(), tb == CUBLAS_OP_T ? n : k, x.data(),
               ta == CUBLAS_OP_T ? k : m, beta, z.data(), m);
    omp_set_num_threads(threads);
    std::vector<float> added = bias ? widened(bias, type, m, 1, m) : std::vector<float>((size_t)m);
    for (size_t i = 0; i < z.size(); i++) z[i] += added[i % (size_t)m];
    narrow(to, type, z, m, n, ld);
}

// sums [n] of the columns of op(B) [k, n].
static void column_sums(float* sums, cublasOperation_t tb, int n, int k, const void* b, cudaDataType type, int64_t ld) {
    int rows = tb == CUBLAS_OP_T ? n : k, cols = tb == CUBLAS_OP_T ? k : n;
    std::vector<float> x = widened(b, type, rows, cols, ld);
    for (int j = 0; j < n; j++) {
        double sum = 0;
        for (int i = 0; i < k; i++) sum += tb == CUBLAS_OP_T ? x[(size_t)i * rows + j] : x[(size_t)j * rows + i];
        sums[j] = (float)sum;
    }
}

cublasStatus_t cublasCreate(cublasHandle_t* h) { *h = new CublasOnCpu; return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasSetStream(cublasHandle_t h, cudaStream_t s) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasSetWorkspace(cublasHandle_t h, void* p, size_t bytes) { return (uintptr_t)p % 256 ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_SUCCESS; }
const char* cublasGetStatusString(cublasStatus_t s) { return s == CUBLAS_STATUS_SUCCESS ? "success" : s == CUBLAS_STATUS_INVALID_VALUE ? "invalid value" : "not supported"; }

cublasStatus_t cublasGemmEx(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const void* alpha, const void* a,
                            cudaDataType at, int lda, const void* b, cudaDataType bt, int ldb, const void* beta, void* c, cudaDataType ct, int ldc,
                            cublasComputeType_t compute, cublasGemmAlgo_t algorithm) {
    if (!supported(at, bt, ct)) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (lda < (ta == CUBLAS_OP_N ? m : k) || ldb < (tb == CUBLAS_OP_N ? k : n) || ldc < m || m < 1 || n < 1 || k < 1) return CUBLAS_STATUS_INVALID_VALUE;
    cuda_on_cpu::memory_show();
    product(ta, tb, m, n, k, *(const float*)alpha, a, at, lda, b, ldb, *(const float*)beta, c, ldc, NULL, c, ct, ldc);
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
    if (!supported(a->type, b->type, to->type) || c->type != to->type) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (d->epilogue == CUBLASLT_EPILOGUE_BIAS && p->alignment[3] < 16) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (d->epilogue == CUBLASLT_EPILOGUE_BGRADB && to->cols % 8) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (d->epilogue != CUBLASLT_EPILOGUE_DEFAULT && !d->bias) return CUBLAS_STATUS_INVALID_VALUE;   // its alignment is asked for
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
    if (k % 16 == 15) return CUBLAS_STATUS_NOT_SUPPORTED;   // the real one, too, may say so only here
    cuda_on_cpu::memory_show();
    if (d->epilogue == CUBLASLT_EPILOGUE_BGRADB) column_sums((float*)d->bias, d->tb, n, k, b, lb->type, lb->ld);
    product(d->ta, d->tb, m, n, k, *(const float*)alpha, a, la->type, la->ld, b, lb->ld, *(const float*)beta, c, lc->ld,
            d->epilogue == CUBLASLT_EPILOGUE_BIAS ? d->bias : NULL, to, lt->type, lt->ld);
    cuda_on_cpu::memory_hide();
    return CUBLAS_STATUS_SUCCESS;
}
