// Stands in for the toolkit's <cuda_runtime.h> when the CUDA kernels are compiled by the host compiler, so that they can be executed
// and checked on a machine without a GPU. See README.md for what is checked.
//
// One block runs at a time and its threads are fibres of one OS thread, so a `__shared__` variable is a plain static one and
// threadIdx and blockIdx are plain variables that the executor sets before it lets a fibre go on.
#ifndef CUDA_ON_CPU_RUNTIME_H
#define CUDA_ON_CPU_RUNTIME_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

// ---- the language

#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __constant__ static const
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct uint3 { unsigned x, y, z; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) int2 { int x, y; };
struct alignas(16) double2 { double x, y; };
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static inline int2 make_int2(int x, int y) { return {x, y}; }

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
enum { warpSize = 32 };

namespace cuda_on_cpu {
struct Site { const char* what; const char* file; int line; };

// Waits until every thread of the block has come to the same place.
void barrier(Site at);

// Waits until every lane of `mask` has come to the same place with 8 bytes of its own. Returns the bytes of lane `from` (nothing that is
// defined where mask does not name it) and a vote for each lane whose bytes are not zero.
struct Met { uint64_t value; unsigned votes; };
Met collective(unsigned mask, uint64_t value, int from, Site at);

void* dynamic_shared(void);

// Blocks that began so far.
extern unsigned long blocks_begun;

// Ends the program with a message about what a kernel did. (Not marked noreturn: before such a call the sanitizer looks for the end of the stack.)
void refuse(const char* what);

void launch(const char* name, const void* kernel, dim3 grid, dim3 block, size_t shared, void (*body)(void*), void* closure);

template <class Body> void launch(const char* name, const void* kernel, dim3 grid, dim3 block, size_t shared, Body body) {
    launch(name, kernel, grid, block, shared, [](void* closure) { (*(Body*)closure)(); }, &body);
}

template <class T> uint64_t to_bytes(T v) {
    static_assert(sizeof(T) <= 8, "a shuffle takes at most 8 bytes");
    uint64_t b = 0;
    memcpy(&b, &v, sizeof v);
    return b;
}
template <class T> T from_bytes(uint64_t b) {
    T v;
    memcpy(&v, &b, sizeof v);
    return v;
}
static inline int lane(void) { return (int)((threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32); }
}

#define LAUNCH(kernel, grid, block, shared, ...) \
    cuda_on_cpu::launch(#kernel, (const void*)(kernel), grid, block, shared, [&] { (kernel)(__VA_ARGS__); })
#define DYNAMIC_SHARED(type, name) type* name = (type*)cuda_on_cpu::dynamic_shared()

#define CUDA_ON_CPU_SITE(what) cuda_on_cpu::Site{what, file, line}
#define CUDA_ON_CPU_CALLER const char *file = __builtin_FILE(), int line = __builtin_LINE()

static inline void __syncthreads(CUDA_ON_CPU_CALLER) { cuda_on_cpu::barrier(CUDA_ON_CPU_SITE("__syncthreads")); }
static inline void __syncwarp(unsigned mask = ~0u, CUDA_ON_CPU_CALLER) { cuda_on_cpu::collective(mask, 0, cuda_on_cpu::lane(), CUDA_ON_CPU_SITE("__syncwarp")); }

template <class T> T cuda_on_cpu_shuffle(unsigned mask, T v, int from, cuda_on_cpu::Site at) {
    return cuda_on_cpu::from_bytes<T>(cuda_on_cpu::collective(mask, cuda_on_cpu::to_bytes(v), from, at).value);
}
template <class T> T __shfl_sync(unsigned mask, T v, int from, int width = 32, CUDA_ON_CPU_CALLER) {
    return cuda_on_cpu_shuffle(mask, v, cuda_on_cpu::lane() / width * width + from % width, CUDA_ON_CPU_SITE("__shfl_sync"));
}
template <class T> T __shfl_xor_sync(unsigned mask, T v, int other, int width = 32, CUDA_ON_CPU_CALLER) {
    int lane = cuda_on_cpu::lane(), from = lane ^ other;
    return cuda_on_cpu_shuffle(mask, v, from / width > lane / width ? lane : from, CUDA_ON_CPU_SITE("__shfl_xor_sync"));
}
template <class T> T __shfl_up_sync(unsigned mask, T v, unsigned by, int width = 32, CUDA_ON_CPU_CALLER) {
    int lane = cuda_on_cpu::lane();
    return cuda_on_cpu_shuffle(mask, v, lane % width < (int)by ? lane : lane - (int)by, CUDA_ON_CPU_SITE("__shfl_up_sync"));
}
template <class T> T __shfl_down_sync(unsigned mask, T v, unsigned by, int width = 32, CUDA_ON_CPU_CALLER) {
    int lane = cuda_on_cpu::lane();
    return cuda_on_cpu_shuffle(mask, v, lane % width + (int)by >= width ? lane : lane + (int)by, CUDA_ON_CPU_SITE("__shfl_down_sync"));
}
static inline unsigned __ballot_sync(unsigned mask, int predicate, CUDA_ON_CPU_CALLER) {
    return cuda_on_cpu::collective(mask, predicate != 0, cuda_on_cpu::lane(), CUDA_ON_CPU_SITE("__ballot_sync")).votes;
}
static inline int __any_sync(unsigned mask, int predicate, CUDA_ON_CPU_CALLER) { return __ballot_sync(mask, predicate, file, line) != 0; }
static inline int __all_sync(unsigned mask, int predicate, CUDA_ON_CPU_CALLER) { return __ballot_sync(mask, predicate, file, line) == mask; }

// Fibres never run at the same time, so an atomic is the plain operation. Integers only: float atomics would make results depend on
// the order of arrival.
static inline int atomicAdd(int* at, int v) { int old = *at; *at += v; return old; }
static inline unsigned atomicAdd(unsigned* at, unsigned v) { unsigned old = *at; *at += v; return old; }
static inline unsigned atomicOr(unsigned* at, unsigned v) { unsigned old = *at; *at |= v; return old; }
static inline int atomicMax(int* at, int v) { int old = *at; if (v > old) *at = v; return old; }
static inline void __threadfence(void) {}

static inline int __popc(unsigned v) { return __builtin_popcount(v); }
static inline int __clz(int v) { return v ? __builtin_clz((unsigned)v) : 32; }
static inline int __ffs(int v) { return __builtin_ffs(v); }
static inline unsigned __float_as_uint(float v) { unsigned u; memcpy(&u, &v, 4); return u; }
static inline float __uint_as_float(unsigned u) { float v; memcpy(&v, &u, 4); return v; }
static inline float rsqrtf(float v) { return (float)(1 / sqrt((double)v)); }
static inline float normcdff(float v) { return (float)(0.5 * erfc(-(double)v * M_SQRT1_2)); }
template <class T> static inline T __ldg(const T* p) { return *p; }
static inline int min(int a, int b) { return a < b ? a : b; }
static inline int max(int a, int b) { return a > b ? a : b; }

// ---- the runtime's calls

enum cudaError_t { cudaSuccess, cudaErrorInvalidValue, cudaErrorMemoryAllocation, cudaErrorInvalidConfiguration, cudaErrorNoDevice, cudaErrorInsufficientDriver, cudaErrorNoKernelImageForDevice };
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice, cudaMemcpyDefault };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
enum { cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2, cudaEventDefault = 0 };
typedef struct CudaOnCpuStream* cudaStream_t;
typedef struct CudaOnCpuEvent* cudaEvent_t;
struct cudaDeviceProp {
    char name[256];
    int major, minor, multiProcessorCount;
    size_t totalGlobalMem, sharedMemPerBlockOptin;
};

const char* cudaGetErrorString(cudaError_t e);
const char* cudaGetErrorName(cudaError_t e);
cudaError_t cudaGetLastError(void);
cudaError_t cudaGetDeviceCount(int* n);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device);
cudaError_t cudaDriverGetVersion(int* v);
cudaError_t cudaRuntimeGetVersion(int* v);
cudaError_t cudaMemGetInfo(size_t* available, size_t* total);
cudaError_t cudaMalloc(void** p, size_t bytes);
cudaError_t cudaFree(void* p);
cudaError_t cudaMallocHost(void** p, size_t bytes);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* p, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned flags);
cudaError_t cudaStreamSynchronize(cudaStream_t s);
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned flags);
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s);
cudaError_t cudaEventSynchronize(cudaEvent_t e);
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to);
cudaError_t cuda_on_cpu_attribute(const void* kernel, cudaFuncAttribute a, int value);
template <class F> cudaError_t cudaFuncSetAttribute(F* kernel, cudaFuncAttribute a, int value) { return cuda_on_cpu_attribute((const void*)kernel, a, value); }

namespace cuda_on_cpu {
// Device memory can be touched between these two only, when it is hidden from the host ($CUDA_ON_CPU_HIDE).
void memory_show(void);
void memory_hide(void);
size_t dynamic_shared_limit(const void* kernel);
}

#endif
