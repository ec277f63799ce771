// The executor itself: indices, barriers, shuffles and votes do what CUDA says, and each kind of mistake in a kernel is noticed.
#include <cuda_runtime.h>

#include "../test.h"

static __global__ void number_threads(int* out) {
    unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z), size = blockDim.x * blockDim.y * blockDim.z;
    out[block * size + threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)] += 1 + (int)(threadIdx.x + 10 * threadIdx.y + 100 * threadIdx.z);
}

static void test_indices(void) {
    enum { SIZE = 3 * 4 * 2, BLOCKS = 2 * 3 * 5 };
    int out[SIZE * BLOCKS] = {0};
    LAUNCH(number_threads, dim3(2, 3, 5), dim3(3, 4, 2), 0, out);
    for (int i = 0; i < SIZE * BLOCKS; i++) {
        int t = i % SIZE;
        CHECK(out[i] == 1 + t % 3 + 10 * (t / 3 % 4) + 100 * (t / 12), "thread %d: %d", i, out[i]);
    }
}

// Odd and even lanes go their own ways and meet again.
static __global__ void use_warps(int* out) {
    int lane = threadIdx.x % 32, sum = lane, v;
    for (int other = 16; other > 0; other /= 2) sum += __shfl_xor_sync(~0u, sum, other);
    unsigned mask = lane % 2 ? 0xaaaaaaaa : 0x55555555;
    if (lane % 2) v = __shfl_sync(mask, lane, 31);
    else v = (int)__ballot_sync(mask, lane < 4);
    int up = __shfl_up_sync(~0u, lane, 3), down = __shfl_down_sync(~0u, lane, 3, 16);
    out[threadIdx.x * 4] = sum;
    out[threadIdx.x * 4 + 1] = v;
    out[threadIdx.x * 4 + 2] = up;
    out[threadIdx.x * 4 + 3] = down;
}

static void test_warps(void) {
    int out[64 * 4];
    LAUNCH(use_warps, 1, 64, 0, out);
    for (int i = 0; i < 64; i++) {
        int lane = i % 32, *o = out + 4 * i;
        CHECK(o[0] == 496 && o[1] == (lane % 2 ? 31 : 5), "lane %d: sum %d, vote %d", lane, o[0], o[1]);
        CHECK(o[2] == (lane < 3 ? lane : lane - 3) && o[3] == (lane % 16 > 12 ? lane : lane + 3), "lane %d: up %d, down %d", lane, o[2], o[3]);
    }
}

// Each thread passes a value to the next one through shared memory; without `careful` the second barrier is missing.
static __global__ void pass_on(int* out, int careful) {
    __shared__ int room[64];
    int v = (int)threadIdx.x;
    for (int round = 0; round < 5; round++) {
        room[threadIdx.x] = v;
        __syncthreads();
        v = room[(threadIdx.x + 1) % 64];
        if (careful) __syncthreads();
    }
    out[blockIdx.x * 64 + threadIdx.x] = v;
}

static int wrong_after(int careful) {
    int out[128], wrong = 0;
    LAUNCH(pass_on, 2, 64, 0, out, careful);
    for (int i = 0; i < 128; i++) wrong += out[i] != (i + 5) % 64;
    return wrong;
}

// ---- mistakes

static __global__ void different_barriers(int* out) {
    if (threadIdx.x < 7) __syncthreads();
    else
        __syncthreads();
}
static __global__ void early_exit(int* out) {
    if (threadIdx.x == 3) return;
    __syncthreads();
}
static __global__ void different_shuffles(int* out) {
    int v = (int)threadIdx.x;
    if (v < 16) v = __shfl_sync(~0u, v, 0);
    else
        v = __shfl_sync(~0u, v, 1);
    out[threadIdx.x] = v;
}
static __global__ void foreign_mask(int* out) { out[threadIdx.x] = __shfl_sync(0xffffu, 1, 0); }
static __global__ void lane_gone(int* out) {
    if (threadIdx.x == 5) return;
    out[threadIdx.x] = __any_sync(~0u, 1);
}
static __global__ void nothing(int* out) {}

#define DIES(kernel, threads, shared, message) do { \
        auto run = [](const void*) { int out[64]; LAUNCH(kernel, 1, threads, shared, out); }; \
        test_dies(run, NULL, message, 1); \
    } while (0)

static __global__ void beyond_static(int* out, int by) {
    __shared__ int room[40];
    room[(int)threadIdx.x + by] = 1;
    out[threadIdx.x] = room[threadIdx.x];
}
static __global__ void beyond_dynamic(int* out, int by) {
    DYNAMIC_SHARED(int, room);
    room[(int)threadIdx.x + by] = 1;
    out[threadIdx.x] = room[threadIdx.x];
}
static __global__ void beyond_global(int* out, int by) { out[(int)threadIdx.x + by] = 1; }

// Whether a launch in a child process is ended by the address sanitizer.
template <class F> static int caught(F run) {
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        if (!freopen("/dev/null", "w", stderr)) _exit(0);
        run();
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    return !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void test_bounds(void) {
    for (int by = 0; by < 10; by += 9) {   // 0: all in order
        int expected = by > 0;
        CHECK(caught([=] { int out[40]; LAUNCH(beyond_static, 1, 32, 0, out, by); }) == expected, "static shared memory, by %d", by);
        CHECK(caught([=] { int out[40]; LAUNCH(beyond_dynamic, 1, 32, 40 * 4, out, by); }) == expected, "dynamic shared memory, by %d", by);
        CHECK(caught([=] { int* out; cudaMalloc((void**)&out, 40 * 4); LAUNCH(beyond_global, 1, 32, 0, out, by); }) == expected, "device memory, by %d", by);
    }
    CHECK(caught([] {
        int* p;
        setenv("CUDA_ON_CPU_HIDE", "1", 1);
        cudaMalloc((void**)&p, 4);
        *(volatile int*)p = 1;
    }), "the host wrote to hidden device memory");
}

int main(void) {
    test_bounds();   // first: whether memory is hidden is asked once in a process
    test_indices();
    test_warps();
    CHECK(wrong_after(1) == 0 && wrong_after(0) > 0, "with both barriers %d wrong, without one %d", wrong_after(1), wrong_after(0));
    DIES(different_barriers, 32, 0, "while others wait at the barrier");
    DIES(early_exit, 32, 0, "waits for ever");
    DIES(different_shuffles, 32, 0, "lanes of one warp meet at");
    DIES(foreign_mask, 32, 0, "is not in its own mask");
    DIES(lane_gone, 32, 0, "waits for ever");
    DIES(nothing, 1025, 0, "a block of 1025");
    DIES(nothing, 32, 49 << 10, "dynamic shared memory");
    TEST_END();
}
