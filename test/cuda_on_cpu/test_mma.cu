// The host twins of kernels/mma.cuh against the layouts that the PTX manual gives, and that each wrong use of them is noticed.
#include "../test.h"
#include "kernels/mma.cuh"

static float small(int i) { return (float)(i * 7 % 31 - 15); }   // whole numbers: products and sums are exact

// c [16, 8] = 1 + a [16, 16] b [16, 8], operands spread by hand as the manual says.
static __global__ void multiply(float* c, const float* a, const float* b) {
    int lane = threadIdx.x, group = lane / 4, pair = lane % 4 * 2;
    unsigned af[4], bf[2];
    for (int i = 0; i < 4; i++) {
        const float* at = a + (group + i % 2 * 8) * 16 + pair + i / 2 * 8;
        af[i] = packed(at[0], at[1]);
    }
    for (int i = 0; i < 2; i++) bf[i] = packed(b[(pair + 8 * i) * 8 + group], b[(pair + 8 * i + 1) * 8 + group]);
    float cf[4] = {1, 1, 1, 1};
    mma(cf, af, bf[0], bf[1]);
    for (int i = 0; i < 4; i++) c[(group + i / 2 * 8) * 8 + pair + i % 2] = cf[i];
}

static void test_product(void) {
    float a[16 * 16], b[16 * 8], c[16 * 8];
    for (int i = 0; i < 16 * 16; i++) a[i] = small(i);
    for (int i = 0; i < 16 * 8; i++) b[i] = small(3 * i + 1);
    LAUNCH(multiply, 1, 32, 0, c, a, b);
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 8; j++) {
            double sum = 1;
            for (int k = 0; k < 16; k++) sum += (double)a[i * 16 + k] * b[k * 8 + j];
            CHECK(c[i * 8 + j] == sum, "row %d, column %d: %g instead of %g", i, j, c[i * 8 + j], sum);
        }
}

// Element (row, column) of matrix m is 64 m + 8 row + column, which bfloat16 holds exactly; lane i names row i % 8 of matrix i / 8.
static __global__ void load_both(unsigned* out) {
    __shared__ __align__(16) bf16 matrices[4 * 64];
    for (int i = threadIdx.x; i < 4 * 64; i += 32) matrices[i] = bf16((float)i);
    __syncthreads();
    unsigned straight[4], transposed[4];
    load_matrices(straight, matrices + threadIdx.x * 8);
    load_transposed(transposed, matrices + threadIdx.x * 8);
    for (int m = 0; m < 4; m++) {
        out[threadIdx.x * 8 + m] = straight[m];
        out[threadIdx.x * 8 + 4 + m] = transposed[m];
    }
}

static void test_loads(void) {
    unsigned out[32 * 8];
    LAUNCH(load_both, 1, 32, 0, out);
    for (int lane = 0; lane < 32; lane++)
        for (int m = 0; m < 4; m++) {
            int x = lane / 4, y = lane % 4 * 2;
            CHECK(out[lane * 8 + m] == packed((float)(64 * m + 8 * x + y), (float)(64 * m + 8 * x + y + 1)), "lane %d, matrix %d", lane, m);
            CHECK(out[lane * 8 + 4 + m] == packed((float)(64 * m + 8 * y + x), (float)(64 * m + 8 * (y + 1) + x)), "lane %d, transposed matrix %d", lane, m);
        }
}

// Every thread fetches 16 bytes for its neighbour. steps: how much of what belongs between is done; 2 is all of it.
static __global__ void fetch(float* out, const bf16* from, int steps) {
    __shared__ __align__(16) bf16 room[64 * 8];
    copy_async(room + threadIdx.x * 8, from + threadIdx.x * 8, threadIdx.x != 5);
    copies_commit();
    if (steps > 0) copies_wait<0>();
    if (steps > 1) __syncthreads();
    out[threadIdx.x] = (float)room[(threadIdx.x ^ 32) * 8];
}

static int wrongly_fetched(int steps) {
    bf16* from = (bf16*)aligned_alloc(16, 64 * 16);
    float out[64];
    int wrong = 0;
    for (int i = 0; i < 64 * 8; i++) from[i] = bf16(small(i));
    LAUNCH(fetch, 1, 64, 0, out, from, steps);
    for (int i = 0; i < 64; i++) wrong += out[i] != ((i ^ 32) == 5 ? 0 : small((i ^ 32) * 8));
    free(from);
    return wrong;
}

static __global__ void half_a_warp(void) {
    float c[4] = {0};
    unsigned a[4] = {0};
    if (threadIdx.x < 16) mma(c, a, 0, 0);
}
static __global__ void any_warp(void) {
    float c[4] = {0};
    unsigned a[4] = {0};
    mma(c, a, 0, 0);
}
static __global__ void crooked(void) {
    __shared__ __align__(16) bf16 room[64 * 8];
    unsigned r[4];
    load_matrices(r, room + 1);
}

int main(void) {
    test_product();
    test_loads();
    CHECK(wrongly_fetched(0) > 0, "a missing wait does not show");
    CHECK(wrongly_fetched(1) > 0, "a missing barrier does not show");
    CHECK(wrongly_fetched(2) == 0, "what was copied does not arrive");
    test_dies([](const void*) { LAUNCH(half_a_warp, 1, 32, 0); }, NULL, "waits for ever at mma", 1);
    test_dies([](const void*) { LAUNCH(any_warp, 1, 48, 0); }, NULL, "a warp that is not whole", 1);
    test_dies([](const void*) { LAUNCH(crooked, 1, 32, 0); }, NULL, "not aligned to 16 bytes", 1);
    TEST_END();
}
