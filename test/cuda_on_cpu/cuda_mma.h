// The instructions of kernels/mma.cuh on the host, after the fragment layouts of the PTX manual. A warp's lanes put their registers on a table, meet,
// and each works out its own part of the result; a lane that does not come is reported as for a shuffle.
//
// An asynchronous copy may write at any moment until its thread has waited for it. Here it leaves NaN at once and the real bytes at the wait, so that a
// kernel which reads too early, or gives out the copy while others still read what was there, computes NaN.
#ifndef CUDA_ON_CPU_MMA_H
#define CUDA_ON_CPU_MMA_H

#include <vector>

#include "cuda_bf16.h"

namespace cuda_on_cpu {

enum { TABLES = 32 };   // warps of a block at most

static inline int thread_number(void) { return (int)(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)); }

static inline float half_of(unsigned r, int upper) { return __uint_as_float(upper ? r & 0xffff0000u : r << 16); }

// These instructions are for whole warps.
static inline void check_warp(void) {
    if (blockDim.x * blockDim.y * blockDim.z % 32) refuse("a warp that is not whole uses tensor cores");
}

static inline void check_aligned(const void* p) {
    if ((uintptr_t)p % 16) refuse("ldmatrix or cp.async of an address that is not aligned to 16 bytes");
}

struct Copy { void* to; const void* from; bool real; };
struct Copies {
    std::vector<std::vector<Copy>> groups = {{}};   // the last one is open
    unsigned long block = 0;
};

// A thread's own; a new block begins with none under way.
static inline Copies& copies_under_way(void) {
    static Copies of[1024];
    Copies& c = of[thread_number()];
    if (c.block != blocks_begun) c.groups = {{}};
    c.block = blocks_begun;
    return c;
}
}

static inline void mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, CUDA_ON_CPU_CALLER) {
    static struct { unsigned a[32][4], b[32][2]; } tables[cuda_on_cpu::TABLES];
    int lane = cuda_on_cpu::lane(), group = lane / 4, pair = lane % 4 * 2;
    cuda_on_cpu::check_warp();
    auto& table = tables[cuda_on_cpu::thread_number() / 32];
    memcpy(table.a[lane], a, sizeof a);
    table.b[lane][0] = b0;
    table.b[lane][1] = b1;
    cuda_on_cpu::collective(~0u, 0, lane, CUDA_ON_CPU_SITE("mma"));
    for (int i = 0; i < 4; i++) {
        int lower = i / 2, column = pair + i % 2;   // row group + 8 lower
        float sum = 0;
        for (int k = 0; k < 16; k++)
            sum += cuda_on_cpu::half_of(table.a[group * 4 + k % 8 / 2][lower + 2 * (k / 8)], k % 2) * cuda_on_cpu::half_of(table.b[column * 4 + k % 8 / 2][k / 8], k % 2);
        c[i] += sum;
    }
    cuda_on_cpu::collective(~0u, 0, lane, CUDA_ON_CPU_SITE("mma's end"));
}

// at(matrix, row) are 8 elements.
static inline void cuda_on_cpu_load(unsigned (&r)[4], const __nv_bfloat16* row, bool transposed, cuda_on_cpu::Site at) {
    static const __nv_bfloat16* tables[cuda_on_cpu::TABLES][32];
    int lane = cuda_on_cpu::lane();
    auto& table = tables[cuda_on_cpu::thread_number() / 32];
    cuda_on_cpu::check_warp();
    cuda_on_cpu::check_aligned(row);
    table[lane] = row;
    cuda_on_cpu::collective(~0u, 0, lane, at);
    for (int m = 0; m < 4; m++) {
        int x = lane / 4, y = lane % 4 * 2;
        __nv_bfloat16 low = transposed ? table[8 * m + y][x] : table[8 * m + x][y], high = transposed ? table[8 * m + y + 1][x] : table[8 * m + x][y + 1];
        r[m] = low.bits | (unsigned)high.bits << 16;
    }
    at.what = "ldmatrix's end";
    cuda_on_cpu::collective(~0u, 0, lane, at);
}
static inline void load_matrices(unsigned (&r)[4], const __nv_bfloat16* row, CUDA_ON_CPU_CALLER) { cuda_on_cpu_load(r, row, false, CUDA_ON_CPU_SITE("ldmatrix")); }
static inline void load_transposed(unsigned (&r)[4], const __nv_bfloat16* row, CUDA_ON_CPU_CALLER) { cuda_on_cpu_load(r, row, true, CUDA_ON_CPU_SITE("ldmatrix.trans")); }

static inline void copy_async(__nv_bfloat16* shared, const __nv_bfloat16* from, bool real) {
    cuda_on_cpu::check_aligned(shared);
    if (real) cuda_on_cpu::check_aligned(from);
    memset((void*)shared, 0xff, 16);
    cuda_on_cpu::copies_under_way().groups.back().push_back({shared, from, real});
}
static inline void copies_commit(void) { cuda_on_cpu::copies_under_way().groups.push_back({}); }
template <int pending> static inline void copies_wait(void) {
    auto& groups = cuda_on_cpu::copies_under_way().groups;
    while (groups.size() > pending + 1) {
        for (auto& c : groups.front()) {
            if (c.real) memcpy(c.to, c.from, 16);
            else memset(c.to, 0, 16);
        }
        groups.erase(groups.begin());
    }
}

#endif
