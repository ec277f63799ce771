// What tensor cores need, one instruction each: a product of small matrices, loads of its operands from shared memory, and copies into
// shared memory that go on beside the arithmetic. For compute capability 8.0 and newer.
//
// The operands of m16n8k16 are spread over a warp. With group = lane / 4 and pair = 2 (lane % 4):
//   A [16, 16], 4 registers of two neighbouring columns each: (group, pair), (group + 8, pair), (group, pair + 8), (group + 8, pair + 8)
//   B [16, 8], 2 registers of two rows of one column each:    (pair, group), (pair + 8, group)
//   C [16, 8], 4 floats:   (group, pair), (group, pair + 1), (group + 8, pair), (group + 8, pair + 1)
// So a C, rounded, is half an A (of its columns): products can be chained without a trip through memory.
#ifndef PREBR_MMA_CUH
#define PREBR_MMA_CUH

#include <cuda_bf16.h>

#include "cuda.cuh"

typedef __nv_bfloat16 bf16;

#ifndef __CUDACC__
#include <cuda_mma.h>   // of test/cuda_on_cpu: the same functions on the host
#else

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
#define TENSOR_CORES(instruction) instruction
#else
#define TENSOR_CORES(instruction) __trap()   // compiled for older cards too, never launched there
#endif

// C += A B
__device__ __forceinline__ void mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    TENSOR_CORES(asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                              : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                              : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1)));
}

// Four matrices of 8 x 8. Lane i names row i % 8 of matrix i / 8: 16 aligned bytes of shared memory. r[m] = elements (lane / 4, pair) and
// (lane / 4, pair + 1) of matrix m.
__device__ __forceinline__ void load_matrices(unsigned (&r)[4], const bf16* row) {
    unsigned at = (unsigned)__cvta_generic_to_shared(row);
    TENSOR_CORES(asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory"));
}

// The same of their transposes: r[m] = elements (pair, lane / 4) and (pair + 1, lane / 4).
__device__ __forceinline__ void load_transposed(unsigned (&r)[4], const bf16* row) {
    unsigned at = (unsigned)__cvta_generic_to_shared(row);
    TENSOR_CORES(asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory"));
}

// 16 aligned bytes to shared memory, zeros where there is nothing real to copy. They are there for this thread after copies_wait, for others after
// a barrier that follows it.
__device__ __forceinline__ void copy_async(bf16* shared, const bf16* from, bool real) {
    unsigned at = (unsigned)__cvta_generic_to_shared(shared);
    TENSOR_CORES(asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" : : "r"(at), "l"(__cvta_generic_to_global(from)), "r"(real ? 16 : 0) : "memory"));
}

// Closes a group of copies; waits until at most the last `pending` groups are still under way.
__device__ __forceinline__ void copies_commit(void) { TENSOR_CORES(asm volatile("cp.async.commit_group;" : : : "memory")); }
template <int pending> __device__ __forceinline__ void copies_wait(void) { TENSOR_CORES(asm volatile("cp.async.wait_group %0;" : : "n"(pending) : "memory")); }

#endif

// Two neighbouring elements as an operand's register.
__device__ __forceinline__ unsigned packed(float x, float y) {
    __nv_bfloat162 both = __floats2bfloat162_rn(x, y);
    unsigned bits;
    memcpy(&bits, &both, sizeof bits);
    return bits;
}

#endif
