// The bandwidth of this card's memory: GB/s, read and written together, of a copy of 1 GiB; the median of nine.
#include <cuda_runtime.h>
#include <stdio.h>
#include <algorithm>

#define CHECK(call) do { cudaError_t e = (call); if (e != cudaSuccess) { fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(e)); return 1; } } while (0)

int main(void) {
    enum { ROUNDS = 9 };
    const size_t bytes = (size_t)1 << 30;
    float ms[ROUNDS];
    char *from, *to;
    cudaEvent_t begin, end;
    CHECK(cudaMalloc(&from, bytes));
    CHECK(cudaMalloc(&to, bytes));
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    CHECK(cudaMemset(from, 1, bytes));
    for (int i = 0; i < ROUNDS; i++) {
        CHECK(cudaEventRecord(begin));
        CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice));
        CHECK(cudaEventRecord(end));
        CHECK(cudaEventSynchronize(end));
        CHECK(cudaEventElapsedTime(&ms[i], begin, end));
    }
    std::sort(ms, ms + ROUNDS);
    printf("%.0f GB/s\n", 2.0 * bytes / (ms[ROUNDS / 2] * 1e6));
    return 0;
}
