// The runtime's calls on the host: everything has happened when a call returns, but for copies on any other stream than the first, which happen only
// when somebody waits for an event behind them. The device pretends to be a card of compute capability
// 8.6, whose shared memory is the least of the kinds that the kernels are tuned for.
//
// With $CUDA_ON_CPU_HIDE=1 device memory can be touched by kernels and copies only; host code that reads a device pointer dies of it. Large
// allocations are left out: hiding takes time in proportion to the memory, twice for every launch.
#include "cuda_runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <map>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
extern "C" const char* __asan_default_options(void) { return "detect_leaks=0:detect_stack_use_after_return=0"; }
#else
#define ASAN_POISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#endif

struct Copy { void* to; const void* from; size_t bytes; };
struct CudaOnCpuStream { bool lazy; std::vector<Copy> waiting; };
struct CudaOnCpuEvent { double seconds; cudaStream_t stream; };

enum : size_t { PAGE = 4096, SHARED_DEFAULT = 48 << 10, SHARED_OPTIN = 99 << 10, HIDDEN_MOST = 16 << 20 };

static std::map<char*, size_t> allocations;   // bytes of each, in whole pages
static std::map<const void*, size_t> shared_limit;

// How often device memory was allocated, and how often the host waited for the stream; written to the file $CUDA_ON_CPU_COUNTS when the program ends.
struct Counts {
    long allocations = 0, waits = 0;
    ~Counts() {
        const char* path = getenv("CUDA_ON_CPU_COUNTS");
        FILE* f = path ? fopen(path, "w") : NULL;
        if (!f) return;
        fprintf(f, "%ld %ld\n", allocations, waits);
        fclose(f);
    }
};
static Counts counts;

static bool hidden(void) {
    static int hide = -1;
    if (hide < 0) hide = getenv("CUDA_ON_CPU_HIDE") != NULL;
    return hide;
}

namespace cuda_on_cpu {
static void protect(int how) {
    if (hidden())
        for (auto& a : allocations)
            if (a.second <= HIDDEN_MOST) mprotect(a.first, a.second, how);
}
void memory_show(void) { protect(PROT_READ | PROT_WRITE); }
void memory_hide(void) { protect(PROT_NONE); }
size_t dynamic_shared_limit(const void* kernel) { return shared_limit.count(kernel) ? shared_limit[kernel] : (size_t)SHARED_DEFAULT; }
}

cudaError_t cuda_on_cpu_attribute(const void* kernel, cudaFuncAttribute a, int value) {
    if (value < 0 || (size_t)value > SHARED_OPTIN) return cudaErrorInvalidValue;
    shared_limit[kernel] = (size_t)value;
    return cudaSuccess;
}

const char* cudaGetErrorName(cudaError_t e) {
    static const char* const name[] = {"cudaSuccess", "cudaErrorInvalidValue", "cudaErrorMemoryAllocation", "cudaErrorInvalidConfiguration", "cudaErrorNoDevice",
                                       "cudaErrorInsufficientDriver", "cudaErrorNoKernelImageForDevice"};
    return name[e];
}
const char* cudaGetErrorString(cudaError_t e) { return cudaGetErrorName(e); }
cudaError_t cudaGetLastError(void) { return cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* n) { *n = 1; return cudaSuccess; }
cudaError_t cudaSetDevice(int device) { return device ? cudaErrorInvalidValue : cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* v) { *v = 13000; return cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* v) { *v = 13000; return cudaSuccess; }

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "CUDA kernels executed on the CPU, oneDNN");
    p->major = 8;
    p->minor = 6;
    p->multiProcessorCount = 82;
    p->sharedMemPerBlockOptin = SHARED_OPTIN;
    p->totalGlobalMem = (size_t)sysconf(_SC_PHYS_PAGES) * PAGE;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* available, size_t* total) {
    *available = (size_t)sysconf(_SC_AVPHYS_PAGES) * PAGE;
    *total = (size_t)sysconf(_SC_PHYS_PAGES) * PAGE;
    return cudaSuccess;
}

// Pages of its own with an inaccessible one on either side; under the address sanitizer the rest of the last page is poisoned too.
// Filled with ones (NaN): new device memory holds anything.
cudaError_t cudaMalloc(void** p, size_t bytes) {
    size_t pages = (bytes + PAGE - 1) / PAGE * PAGE;
    counts.allocations++;
    if (!pages) pages = PAGE;
    *p = NULL;
    if (bytes > (size_t)1 << 40) return cudaErrorMemoryAllocation;
    char* all = (char*)mmap(NULL, pages + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED) return cudaErrorMemoryAllocation;
    mprotect(all + PAGE, pages, PROT_READ | PROT_WRITE);
    memset(all + PAGE, 0xff, bytes);
    ASAN_POISON_MEMORY_REGION(all + PAGE + bytes, pages - bytes);
    allocations[all + PAGE] = pages;
    *p = all + PAGE;
    cuda_on_cpu::memory_hide();
    return cudaSuccess;
}

cudaError_t cudaFree(void* p) {
    if (!p) return cudaSuccess;
    auto a = allocations.find((char*)p);
    if (a == allocations.end()) return cudaErrorInvalidValue;
    ASAN_UNPOISON_MEMORY_REGION(a->first, a->second);
    munmap(a->first - PAGE, a->second + 2 * PAGE);
    allocations.erase(a);
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void** p, size_t bytes) {
    *p = malloc(bytes);
    return *p ? cudaSuccess : cudaErrorMemoryAllocation;
}

static void copy_now(void* to, const void* from, size_t bytes) {
    cuda_on_cpu::memory_show();
    memmove(to, from, bytes);
    cuda_on_cpu::memory_hide();
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    if (stream->lazy) stream->waiting.push_back({to, from, bytes});
    else copy_now(to, from, bytes);
    return cudaSuccess;
}

static void finish(cudaStream_t stream) {
    for (Copy& c : stream->waiting) copy_now(c.to, c.from, c.bytes);
    stream->waiting.clear();
}

cudaError_t cudaMemsetAsync(void* p, int value, size_t bytes, cudaStream_t stream) {
    cuda_on_cpu::memory_show();
    memset(p, value, bytes);
    cuda_on_cpu::memory_hide();
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned flags) {
    static int streams = 0;
    *s = new CudaOnCpuStream{streams++ > 0, {}};
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
    counts.waits++;
    finish(s);
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags) {
    if (e->stream && e->stream != s) finish(e->stream);
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned flags) {
    *e = new CudaOnCpuEvent{0, NULL};
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    e->seconds = t.tv_sec + 1e-9 * t.tv_nsec;
    e->stream = s;
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
    if (e->stream) finish(e->stream);
    return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
    *ms = (float)(1e3 * (to->seconds - from->seconds));
    return cudaSuccess;
}
