// GEMM through cuBLASLt. The libraries think in columns: our row-major C = op(A) op(B) is their C' = op(B)' op(A)' without a copy.
//
// The library is asked once for each kind of call (shape, strides, alignment, epilogue) which algorithm to take; the answer is kept,
// since the same few shapes come back every step, and some change only when arms are drawn anew. Reductions that add in place are
// excluded: their order, and so the last bits, would vary. Where cuBLASLt has nothing for a case, C is filled with what is to be
// added and cuBLAS adds the product.
//
// Epilogues: the bias of a layer is added, and the gradient of a bias is summed beside that of its weight. GELU's is not used: the library does
// not say which GELU it is, PyTorch takes it for the tanh form, and the checkpoints' is the exact one.
#include "gemm.h"

#include <cublasLt.h>
#include <cublas_v2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda.cuh"

static void blas_check(cublasStatus_t status, const char* call, int line) {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, line, call, cublasGetStatusString(status));
    exit(1);
}
#define BLAS(call) blas_check(call, #call, __LINE__)

#ifndef GEMM_WORKSPACE
#define GEMM_WORKSPACE (32 << 20)   // what the library's manual advises; the tests on the host take less
#endif
enum : size_t { WORKSPACE = GEMM_WORKSPACE, WORKSPACE_ALIGNMENT = 256 };

static struct {
    cublasLtHandle_t lt;
    cublasHandle_t plain;
    void* workspace;
} blas;

static void blas_open(void) {
    if (blas.lt) return;
    cudaStream_t stream = device_stream();
    BLAS(cublasLtCreate(&blas.lt));
    BLAS(cublasCreate(&blas.plain));
    BLAS(cublasSetStream(blas.plain, stream));   // resets the workspace, so before it
    if (blas.workspace) BLAS(cublasSetWorkspace(blas.plain, blas.workspace, WORKSPACE));
}

size_t gemm_workspace_bytes(void) { return WORKSPACE + WORKSPACE_ALIGNMENT; }

void gemm_use_workspace(void* p) {
    blas.workspace = p ? (void*)(((uintptr_t)p + WORKSPACE_ALIGNMENT - 1) / WORKSPACE_ALIGNMENT * WORKSPACE_ALIGNMENT) : NULL;
    if (!blas.lt) return;
    BLAS(cublasSetStream(blas.plain, device_stream()));   // back to the library's own
    if (blas.workspace) BLAS(cublasSetWorkspace(blas.plain, blas.workspace, WORKSPACE));
}

static size_t workspace_bytes(void) { return blas.workspace ? (size_t)WORKSPACE : 0; }

static cudaDataType type_of(const float*) { return CUDA_R_32F; }
#ifdef PREBR_BF16
static cudaDataType type_of(const floatx*) { return CUDA_R_16BF; }
#endif

// What decides the algorithm. Zeroed before it is filled, so that it can be compared byte by byte.
typedef struct {
    int ta, tb, m, n, k, lda, ldb, ldc, epilogue, c_type, workspace;
    uint32_t alignment[5];   // of a, b, what is added, c, the bias or its gradient
} Key;

typedef struct {
    Key key;
    int used, works;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algorithm;
} Plan;

enum { PLANS = 4096 };
static Plan plans[PLANS];

static uint32_t alignment(const void* p) {   // NULL: as good as any
    uint32_t a = 256;
    while ((uintptr_t)p % a) a /= 2;
    return a;
}

static void plan_set(Plan* p, cublasLtMatmulDescAttributes_t attribute, const void* value, size_t bytes) {
    BLAS(cublasLtMatmulDescSetAttribute(p->desc, attribute, value, bytes));
}

// Column-major: their A is our B, of n rows, and their B our A. bias: only its alignment counts.
static void plan_make(Plan* p, const Key* key, const void* bias) {
    cublasOperation_t first = key->tb ? CUBLAS_OP_T : CUBLAS_OP_N, second = key->ta ? CUBLAS_OP_T : CUBLAS_OP_N;
    p->key = *key;
    p->used = 1;
    BLAS(cublasLtMatmulDescCreate(&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    plan_set(p, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first);
    plan_set(p, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second);
    if (bias) {
        plan_set(p, CUBLASLT_MATMUL_DESC_EPILOGUE, &key->epilogue, sizeof key->epilogue);
        plan_set(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
    }
    cudaDataType type = type_of((const floatx*)NULL);
    BLAS(cublasLtMatrixLayoutCreate(&p->a, type, key->tb ? key->k : key->n, key->tb ? key->n : key->k, key->ldb));
    BLAS(cublasLtMatrixLayoutCreate(&p->b, type, key->ta ? key->m : key->k, key->ta ? key->k : key->m, key->lda));
    BLAS(cublasLtMatrixLayoutCreate(&p->c, (cudaDataType)key->c_type, key->n, key->m, key->ldc));
    cublasLtMatmulPreference_t wish;
    size_t workspace = workspace_bytes();
    uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, align[4] = {key->alignment[1], key->alignment[0], key->alignment[2], key->alignment[3]};
    BLAS(cublasLtMatmulPreferenceCreate(&wish));
    BLAS(cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace));
    BLAS(cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reduction, sizeof reduction));
    for (int i = 0; i < 4; i++)
        BLAS(cublasLtMatmulPreferenceSetAttribute(wish, (cublasLtMatmulPreferenceAttributes_t)(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES + i), &align[i], sizeof align[i]));
    cublasLtMatmulHeuristicResult_t answer;
    int found = 0;
    p->works = cublasLtMatmulAlgoGetHeuristic(blas.lt, p->desc, p->a, p->b, p->c, p->c, wish, 1, &answer, &found) == CUBLAS_STATUS_SUCCESS && found;
    if (p->works) p->algorithm = answer.algo;
    BLAS(cublasLtMatmulPreferenceDestroy(wish));
}

static void plan_drop(Plan* p) {
    BLAS(cublasLtMatmulDescDestroy(p->desc));
    BLAS(cublasLtMatrixLayoutDestroy(p->a));
    BLAS(cublasLtMatrixLayoutDestroy(p->b));
    BLAS(cublasLtMatrixLayoutDestroy(p->c));
    p->used = 0;
}

// A hash table of one entry a place: a newcomer takes the place of whoever had it.
static Plan* plan_for(const Key* key, const void* bias) {
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < sizeof *key; i++) hash = (hash ^ ((const unsigned char*)key)[i]) * 16777619u;
    Plan* p = &plans[hash % PLANS];
    if (p->used && memcmp(&p->key, key, sizeof *key)) plan_drop(p);
    if (!p->used) plan_make(p, key, bias);
    return p;
}

// c [m, n] of row stride ldc = bias [n] (NULL: 0) + residual (NULL: 0; of row stride ldc)
static __global__ void fill(floatx* c, const floatx* bias, const floatx* residual, int m, int n, int ldc) {
    int j = blockIdx.x * blockDim.x + threadIdx.x;
    for (int i = blockIdx.y; j < n && i < m; i += gridDim.y) {
        size_t at = (size_t)i * ldc + j;
        c[at] = (floatx)((bias ? (float)bias[j] : 0) + (residual ? (float)residual[at] : 0));
    }
}

static void fill_rows(floatx* c, const floatx* bias, const floatx* residual, int m, int n, int ldc) {
    LAUNCH(fill, dim3(blocks_for(n, BLOCK), m < 65535 ? m : 65535), BLOCK, 0, c, bias, residual, m, n, ldc);
}

// Through cuBLASLt: C = op(A) op(B) + add (NULL: nothing, else of C's stride), with an epilogue and its vector (a bias, or where a bias's gradient
// goes). Returns 0, with nothing done, where the library has no such product, be it that only the call itself says so.
template <class C> static int fused_product(int ta, int tb, int m, int n, int k, const floatx* a, int lda, const floatx* b, int ldb, int epilogue,
                                            const void* bias, const C* add, C* c, int ldc) {
    if (alignment(bias) < 16) return 0;   // kernels have been seen to take it for granted
    blas_open();
    Key key;
    memset(&key, 0, sizeof key);
    key.ta = ta, key.tb = tb, key.m = m, key.n = n, key.k = k, key.lda = lda, key.ldb = ldb, key.ldc = ldc;
    key.epilogue = epilogue;
    key.workspace = blas.workspace != NULL;
    key.c_type = type_of(c);
    const void* pointer[5] = {a, b, add ? add : c, c, bias};
    for (int i = 0; i < 5; i++) key.alignment[i] = alignment(pointer[i]);
    Plan* p = plan_for(&key, bias);
    float one = 1, beta = add != NULL;
    if (!p->works) return 0;
    if (bias) plan_set(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
    cublasStatus_t status = cublasLtMatmul(blas.lt, p->desc, &one, b, p->a, a, p->b, &beta, pointer[2], p->c, c, p->c, &p->algorithm, blas.workspace,
                                           workspace_bytes(), device_stream());
    if (status != CUBLAS_STATUS_NOT_SUPPORTED) BLAS(status);
    p->works = status == CUBLAS_STATUS_SUCCESS;
    return p->works;
}

// C = op(A) op(B) + bias + add.
template <class C> static void product(int ta, int tb, int m, int n, int k, const floatx* a, int lda, const floatx* b, int ldb, const floatx* bias,
                                       const C* add, C* c, int ldc) {
    float one = 1, beta = add != NULL;
    if (fused_product(ta, tb, m, n, k, a, lda, b, ldb, bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT, bias, add, c, ldc)) return;
    if (bias || (add && add != c)) {
        fill_rows((floatx*)c, bias, (const floatx*)add, m, n, ldc);   // only for outputs of type floatx: gradients have neither
        beta = 1;
    }
    BLAS(cublasGemmEx(blas.plain, tb ? CUBLAS_OP_T : CUBLAS_OP_N, ta ? CUBLAS_OP_T : CUBLAS_OP_N, n, m, k, &one, b, type_of(b), ldb, a, type_of(a), lda, &beta, c,
                      type_of(c), ldc, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
}

void gemm_add(int ta, int tb, int m, int n, int k, const floatx* a, int lda, const floatx* b, int ldb, const floatx* bias, const floatx* residual,
              floatx* c, int ldc) {
    if (m < 1 || n < 1) return;
    if (k >= 1) product<floatx>(ta, tb, m, n, k, a, lda, b, ldb, bias, residual, c, ldc);
    else if (bias || residual != c) fill_rows(c, bias, residual, m, n, ldc);
}

void gemm(int ta, int tb, int m, int n, int k, const floatx* a, int lda, const floatx* b, int ldb, float beta, floatx* c, int ldc) {
    gemm_add(ta, tb, m, n, k, a, lda, b, ldb, NULL, beta == 0 ? NULL : c, c, ldc);
}

void gemm_gradient(int ta, int tb, int m, int n, int k, const floatx* a, int lda, const floatx* b, int ldb, float beta, float* c, int ldc) {
    if (m < 1 || n < 1) return;
    if (k >= 1) product<float>(ta, tb, m, n, k, a, lda, b, ldb, NULL, beta == 0 ? NULL : c, c, ldc);
    else if (beta == 0)
        for (int i = 0; i < m; i++) device_zero(c + (size_t)i * ldc, (size_t)n * sizeof *c);
}

// The rows of op(A) are the columns of what the library calls B.
int gemm_gradient_sums(int ta, int tb, int m, int n, int k, const floatx* a, int lda, const floatx* b, int ldb, float* c, int ldc, float* sums) {
    return m >= 1 && n >= 1 && k >= 1 && fused_product<float>(ta, tb, m, n, k, a, lda, b, ldb, CUBLASLT_EPILOGUE_BGRADB, sums, NULL, c, ldc);
}
