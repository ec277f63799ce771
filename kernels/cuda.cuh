// Private to the CUDA kernels: launches, checks, 16-byte accesses, and sums over a warp and a block in a fixed order.
//
// The same .cu files are compiled by nvcc for the GPU and by the host compiler for test/cuda_on_cpu, which executes them; there
// <cuda_runtime.h> is a stand-in that brings its own LAUNCH and DYNAMIC_SHARED.
#ifndef PREBR_CUDA_CUH
#define PREBR_CUDA_CUH

#include <cuda_runtime.h>
#include <stddef.h>
#include <stdint.h>

#include "device.h"

// Where all work goes: one stream, so that ops run in the order in which they are called.
cudaStream_t device_stream(void);

// Of the card: 80 for 8.0.
int device_capability(void);

// 4 bytes of device memory for an op that must tell the host one number.
int* device_word(void);

// The end of the program, with one line, where a call failed.
void cuda_check(cudaError_t status, const char* call, const char* file, int line);
#define CUDA(call) cuda_check(call, #call, __FILE__, __LINE__)

#ifndef LAUNCH
#define LAUNCH(kernel, grid, block, shared, ...) \
    do { \
        (kernel)<<<grid, block, shared, device_stream()>>>(__VA_ARGS__); \
        cuda_check(cudaGetLastError(), #kernel, __FILE__, __LINE__); \
    } while (0)
#define DYNAMIC_SHARED(type, name) \
    extern __shared__ float4 dynamic_shared_memory[]; \
    type* name = (type*)dynamic_shared_memory
#endif

// More than the 48 KiB that every kernel may have. Once for each kernel (`done` is the caller's static flag).
#define MORE_SHARED(kernel, bytes) \
    do { \
        static int done; \
        if (!done && (bytes) > (48 << 10)) CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)(bytes))); \
        done = 1; \
    } while (0)

enum { WARP = 32, BLOCK = 256 };   // threads of a warp; of a block, unless a kernel says otherwise
#define ALL_LANES 0xffffffffu

static inline unsigned blocks_for(size_t n, size_t per_block) { return (unsigned)((n + per_block - 1) / per_block); }

// ---- neighbouring elements that are loaded and stored together: 16 bytes where rows allow it (N = WIDE), else one by one (N = 1)

template <class T> struct Wide { enum { N = 16 / sizeof(T) }; };
enum { WIDE = Wide<floatx>::N };

template <class T, int N> struct __align__(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Pack { T v[N]; };

template <int N, class T> __device__ __forceinline__ Pack<T, N> load(const T* p) { return *(const Pack<T, N>*)p; }
template <int N, class T> __device__ __forceinline__ void store(T* p, Pack<T, N> v) { *(Pack<T, N>*)p = v; }

// Whether all of p0, p1, ... (NULL counts as aligned) and rows of `columns` elements can be accessed in whole packs.
static inline int aligned16(const void* p) { return (uintptr_t)p % 16 == 0; }
template <class... Pointers> static inline int wide(size_t columns, Pointers... p) {
    int ok = columns % WIDE == 0;
    int each[] = {aligned16(p)...};
    for (int a : each) ok &= a;
    return ok;
}

// ---- packed column blocks (columns.h)

// Where element i of a packed matrix [t, n*width] comes from: its row, and its column in the whole matrix.
struct Source { int row, column; };
__device__ __forceinline__ Source source_of(size_t i, const int* blocks, int n, int width) {
    unsigned per_row = (unsigned)n * width, p = (unsigned)(i % per_row), j = p / width;
    return {(int)(i / per_row), blocks[j] * width + (int)(p - j * width)};
}

enum { MOST_BLOCKS = 132 * 8 * 4 };   // of a loop over everything: a few rounds on the largest cards

static inline unsigned loop_blocks(size_t n) {
    unsigned b = blocks_for(n, BLOCK);
    return b < MOST_BLOCKS ? b : (unsigned)MOST_BLOCKS;
}

// ---- sums and maxima; every lane, or every thread, receives the result

template <class T> __device__ __forceinline__ T warp_sum(T v) {
    for (int other = 16; other > 0; other /= 2) v += __shfl_xor_sync(ALL_LANES, v, other);
    return v;
}

__device__ __forceinline__ double warp_max(double v) {
    for (int other = 16; other > 0; other /= 2) v = fmax(v, __shfl_xor_sync(ALL_LANES, v, other));
    return v;
}

// For blocks of whole warps. room: shared, one element for each warp; free again when the call returns.
template <class T> __device__ T block_sum(T v, T* room) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    v = warp_sum(v);
    if (lane == 0) room[warp] = v;
    __syncthreads();
    v = warp_sum(lane < warps ? room[lane] : (T)0);
    __syncthreads();
    return v;
}

__device__ inline double block_max(double v, double* room) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    v = warp_max(v);
    if (lane == 0) room[warp] = v;
    __syncthreads();
    v = warp_max(lane < warps ? room[lane] : room[0]);
    __syncthreads();
    return v;
}

// The sum of v over the threads before this one; *total of all. room: as above.
__device__ inline int block_before(int v, int* total, int* room) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP, sum = v;
    for (int by = 1; by < WARP; by *= 2) {
        int other = __shfl_up_sync(ALL_LANES, sum, by);
        if (lane >= by) sum += other;
    }
    if (lane == WARP - 1) room[warp] = sum;
    __syncthreads();
    int of_warp = lane < warps ? room[lane] : 0, up_to = of_warp;
    for (int by = 1; by < WARP; by *= 2) {
        int other = __shfl_up_sync(ALL_LANES, up_to, by);
        if (lane >= by) up_to += other;
    }
    *total = __shfl_sync(ALL_LANES, up_to, WARP - 1);
    int first = __shfl_sync(ALL_LANES, up_to - of_warp, warp);
    __syncthreads();
    return first + sum - v;
}

#endif
