// A GPU as the device: one stream for all work and one for uploads ahead of it, copies through two pinned buffers, times from events on the stream.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda.cuh"

void cuda_check(cudaError_t status, const char* call, const char* file, int line) {
    if (status == cudaSuccess) return;
    fprintf(stderr, "%s:%d: %s: %s (%s)%s\n", file, line, call, cudaGetErrorString(status), cudaGetErrorName(status),
            status == cudaErrorNoKernelImageForDevice ? "; this program was built for another GPU: make clean, then make again" : "");
    exit(1);
}

// ---- the device itself, opened at first use

enum { STAGES = 2 };
enum : size_t { STAGE = 8 << 20 };

static struct {
    int open;
    cudaStream_t stream, ahead;
    cudaEvent_t input_read, arrived;   // on `stream`: the input may be overwritten; on `ahead`: all that was sent is there
    cudaDeviceProp card;
    char* stage[STAGES];         // pinned; what is uploaded passes through them in turn
    cudaEvent_t stage_free[STAGES];
    int next_stage;
    int* word;
} device;

static void refuse(const char* why) {
    fprintf(stderr, "%s\n", why);
    exit(1);
}

static void device_open(void) {
    if (device.open) return;
    device.open = 1;
    int count = 0, driver = 0, toolkit = 0;
    char why[160];
    cudaError_t status = cudaGetDeviceCount(&count);
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&toolkit);
    if (status == cudaErrorNoDevice || (status == cudaSuccess && count == 0) || !driver)   // driver 0: none is installed
        refuse("there is no CUDA GPU with a driver in this machine; build for the CPU with make BACKEND=cpu");
    if (status == cudaErrorInsufficientDriver || driver / 1000 < toolkit / 1000) {
        snprintf(why, sizeof why, "the NVIDIA driver is too old: it knows CUDA %d.%d, this program needs %d.%d; update the driver", driver / 1000, driver / 10 % 100,
                 toolkit / 1000, toolkit / 10 % 100);
        refuse(why);
    }
    CUDA(status);
    CUDA(cudaSetDevice(0));
    CUDA(cudaGetDeviceProperties(&device.card, 0));
    if (device.card.major * 10 + device.card.minor < 75) {
        snprintf(why, sizeof why, "%.60s is too old: compute capability %d.%d, at least 7.5 is needed", device.card.name, device.card.major, device.card.minor);
        refuse(why);
    }
    CUDA(cudaStreamCreateWithFlags(&device.stream, cudaStreamNonBlocking));
    CUDA(cudaStreamCreateWithFlags(&device.ahead, cudaStreamNonBlocking));
    CUDA(cudaEventCreateWithFlags(&device.input_read, cudaEventDisableTiming));
    CUDA(cudaEventCreateWithFlags(&device.arrived, cudaEventDisableTiming));
    for (int i = 0; i < STAGES; i++) {
        CUDA(cudaMallocHost((void**)&device.stage[i], STAGE));
        CUDA(cudaEventCreateWithFlags(&device.stage_free[i], cudaEventDisableTiming));
        CUDA(cudaEventRecord(device.stage_free[i], device.stream));
    }
}

cudaStream_t device_stream(void) {
    device_open();
    return device.stream;
}

int device_capability(void) {
    device_open();
    return device.card.major * 10 + device.card.minor;
}

int* device_word(void) {
    device_open();
    if (!device.word) CUDA(cudaMalloc((void**)&device.word, sizeof *device.word));
    return device.word;
}

// The host has one thread of its own and the loader's; nothing spins.
void device_prepare(char** argv) {}

const char* device_name(void) {
    static char name[320];
    device_open();
    snprintf(name, sizeof name, "%s, %.0f GiB, compute capability %d.%d", device.card.name, (double)device.card.totalGlobalMem / (1 << 30), device.card.major, device.card.minor);
    return name;
}

// A GPU has no threads to be chosen; the number is kept for whoever asks.
int device_threads(int n) {
    static int threads = 1;
    if (n >= 1) threads = n;
    return threads;
}

void* device_alloc(size_t bytes) {
    void* p = NULL;
    device_open();
    if (cudaMalloc(&p, bytes ? bytes : 1) != cudaSuccess) {
        cudaGetLastError();   // an allocation that does not fit is no trouble yet
        return NULL;
    }
    device_zero(p, bytes);
    return p;
}

void device_free(void* p, size_t bytes) {
    device_sync();
    CUDA(cudaFree(p));
}

size_t device_memory_available(void) {
    enum : size_t { LIBRARIES = 512 << 20 };   // cuBLAS and kernels that are loaded at their first use: tens to hundreds of MiB
    size_t available = 0, total;
    device_open();
    CUDA(cudaMemGetInfo(&available, &total));
    return available > LIBRARIES ? available - LIBRARIES : 1;
}

// ---- copies

// Returns when the host's bytes have been copied to pinned memory.
static void upload(void* to, const void* host, size_t bytes, cudaStream_t stream) {
    for (size_t at = 0; at < bytes; at += STAGE) {
        size_t n = bytes - at < STAGE ? bytes - at : STAGE;
        int s = device.next_stage;
        device.next_stage = (s + 1) % STAGES;
        CUDA(cudaEventSynchronize(device.stage_free[s]));
        memcpy(device.stage[s], (const char*)host + at, n);
        CUDA(cudaMemcpyAsync((char*)to + at, device.stage[s], n, cudaMemcpyHostToDevice, stream));
        CUDA(cudaEventRecord(device.stage_free[s], stream));
    }
}

void device_upload(void* to, const void* host, size_t bytes) { upload(to, host, bytes, device_stream()); }

int device_uploads_ahead(void) { return 1; }

void device_input_read(void) { CUDA(cudaEventRecord(device.input_read, device_stream())); }

void device_upload_ahead(void* to, const void* host, size_t bytes) {
    device_open();
    CUDA(cudaStreamWaitEvent(device.ahead, device.input_read, 0));
    upload(to, host, bytes, device.ahead);
    CUDA(cudaEventRecord(device.arrived, device.ahead));
}

void device_upload_join(void) { CUDA(cudaStreamWaitEvent(device_stream(), device.arrived, 0)); }

void device_download(void* host, const void* from, size_t bytes) {
    if (!bytes) return;
    CUDA(cudaMemcpyAsync(host, from, bytes, cudaMemcpyDeviceToHost, device_stream()));
    device_sync();
}

void device_copy(void* to, const void* from, size_t bytes) {
    if (bytes) CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, device_stream()));
}

void device_zero(void* p, size_t bytes) {
    if (bytes) CUDA(cudaMemsetAsync(p, 0, bytes, device_stream()));
}

void device_sync(void) { CUDA(cudaStreamSynchronize(device_stream())); }

void device_download_floats(float* host, const floatx* from, size_t n) {
    floatx* raw = (floatx*)malloc((n ? n : 1) * sizeof *raw);
    if (!raw) refuse("out of memory on the host");
    device_download(raw, from, n * sizeof *raw);
    for (size_t i = 0; i < n; i++) host[i] = (float)raw[i];
    free(raw);
}

static __global__ void round_all(floatx* copy, const float* w, size_t n) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) copy[i] = (floatx)w[i];
}

void device_round(floatx* copy, const float* w, size_t n) {
    if (n) LAUNCH(round_all, blocks_for(n, BLOCK), BLOCK, 0, copy, w, n);
}

float* host_view_open(float* p, size_t n) {
    float* view = (float*)malloc((n ? n : 1) * sizeof *view);
    if (!view) refuse("out of memory on the host");
    device_download(view, p, n * sizeof *view);
    return view;
}

void host_view_close(float* view, float* p, size_t n, int write) {
    if (write) device_upload(p, view, n * sizeof *view);
    free(view);
}

double device_seconds(void) {
    struct timespec t;
    device_sync();
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

// ---- timers: every change of part leaves an event on the stream; their distances are read when somebody asks, or when the list fills: at the end
// of a step, when the stream is empty, rather than in the midst of one

enum { MARKS = 4096 };

static int timers_on, marks;
static struct { cudaEvent_t event; int part; } mark[MARKS];   // part: what begins there, -1: nothing
static double part_seconds[TIME_PARTS];

static int part_now(void) { return marks ? mark[marks - 1].part : -1; }

// Adds up what the marks say; the last one stays as the first of the next list.
static void collect(void) {
    if (!marks) return;
    CUDA(cudaEventSynchronize(mark[marks - 1].event));
    for (int i = 0; i + 1 < marks; i++) {
        float ms;
        if (mark[i].part < 0) continue;
        CUDA(cudaEventElapsedTime(&ms, mark[i].event, mark[i + 1].event));
        part_seconds[mark[i].part] += 1e-3 * ms;
    }
    cudaEvent_t last = mark[marks - 1].event;
    int part = mark[marks - 1].part;
    mark[marks - 1].event = mark[0].event;
    mark[0].event = last;
    mark[0].part = part;
    marks = 1;
}

static void place_mark(int part) {
    if (marks == MARKS) collect();
    if (!mark[marks].event) CUDA(cudaEventCreateWithFlags(&mark[marks].event, cudaEventDefault));
    CUDA(cudaEventRecord(mark[marks].event, device_stream()));
    mark[marks++].part = part;
}

void timer_enable(int on) {
    timer_stop();
    timers_on = on;
}

void timer_start(int part) {
    if (timers_on) place_mark(part);
}

void timer_stop(void) {
    if (part_now() >= 0) place_mark(-1);
    if (marks > MARKS / 2) collect();
}

double timer_seconds(int part) {
    collect();
    return part_seconds[part];
}

const char* timer_part_name(int part) {
    static const char* const names[TIME_PARTS] = {"gemm", "attention", "norm", "activation", "shear", "optimizer", "data", "other"};
    return names[part];
}

// A part that is running goes on from here.
void timer_reset(void) {
    collect();
    memset(part_seconds, 0, sizeof part_seconds);
    if (part_now() >= 0) place_mark(part_now());
}
