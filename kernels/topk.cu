// A block takes a sample. Magnitudes are compared as the bits of |x|: for floats of one sign these are integers in the same order, and a NaN
// is larger than everything and is kept, so trouble stays visible.
#include "topk.h"

#include "cuda.cuh"

enum { MOST_WARPS = 32, AHEAD = 8 };   // loads of a thread under way at once: a sample has one block, so that little else hides their time

// Threads for a sample: many for a long one, whose block is nearly alone on its multiprocessor.
static unsigned threads_for(int n) { return n > 4096 ? 1024 : n > 512 ? 256 : 64; }

__device__ __forceinline__ unsigned magnitude(floatx x) { return __float_as_uint((float)x) & 0x7fffffff; }

static int place(int n, double prune) {
    int m = (int)(n * prune);
    return m < 1 ? 1 : m > n ? n : m;
}

int topk_capacity(int n, double prune) { return n < 1 ? 0 : n - place(n, prune) + 1; }

// ---- threshold: a magnitude of 31 bits is three digits, of 11, 10 and 10 bits, each found from a histogram of the elements that begin
// with the digits before it

enum { DIGITS = 2048 };

// The digit of the element in place *m (from 1), every thread's; *m becomes its place among those of the same digit. A thread owns
// neighbouring digits.
__device__ unsigned digit_at(const int* count, int* m, int* room, int* found) {
    int own = DIGITS / blockDim.x, sum = 0, total;
    const int* mine = count + threadIdx.x * own;
    for (int i = 0; i < own; i++) sum += mine[i];
    int before = block_before(sum, &total, room);
    if (*m > before && *m <= before + sum) {
        int i = 0, rest = *m - before;
        while (rest > mine[i]) rest -= mine[i++];
        found[0] = threadIdx.x * own + i;
        found[1] = rest;
    }
    __syncthreads();
    unsigned digit = found[0];
    *m = found[1];
    __syncthreads();
    return digit;
}

// The digit at `shift` (of `bits` bits) of elements whose magnitude shifted by shift + bits is prefix.
__device__ unsigned next_digit(const floatx* x, int n, unsigned prefix, int shift, int bits, int* m) {
    __shared__ int count[DIGITS], room[MOST_WARPS], found[2];
    for (int i = threadIdx.x; i < DIGITS; i += blockDim.x) count[i] = 0;
    __syncthreads();
    for (int start = threadIdx.x; start < n; start += AHEAD * blockDim.x) {
        unsigned v[AHEAD];
#pragma unroll
        for (int w = 0; w < AHEAD; w++) {
            int i = start + w * blockDim.x;
            v[w] = i < n ? magnitude(x[i]) : ~0u;   // begins with no prefix
        }
#pragma unroll
        for (int w = 0; w < AHEAD; w++)
            if (v[w] >> (shift + bits) == prefix) atomicAdd(&count[v[w] >> shift & ((1u << bits) - 1)], 1);
    }
    __syncthreads();
    return digit_at(count, m, room, found);
}

static __global__ void threshold_of_samples(float* threshold, const floatx* x, int m, int n) {
    const floatx* xs = x + (size_t)blockIdx.x * n;
    unsigned bits = next_digit(xs, n, 0, 20, 11, &m);
    bits = bits << 10 | next_digit(xs, n, bits, 10, 10, &m);
    bits = bits << 10 | next_digit(xs, n, bits, 0, 10, &m);
    if (threadIdx.x == 0) threshold[blockIdx.x] = __uint_as_float(bits);
}

void topk_threshold(float* threshold, const floatx* x, double prune, int samples, int n) {
    if (samples > 0 && n > 0) LAUNCH(threshold_of_samples, samples, threads_for(n), 0, threshold, x, place(n, prune), n);
}

// ---- what is kept: the larger ones, and ties at the threshold from the lowest index while there is room. With L larger ones and E ties
// before an element, its place among the kept is L + min(E, room for ties).

enum { WORDS = 4 };   // of the mask, for a warp at a time

// Larger elements of the whole sample, every thread's.
__device__ int count_larger(const floatx* x, unsigned threshold, int n, int* room) {
    int larger = 0;
    for (int start = threadIdx.x; start < n; start += AHEAD * blockDim.x) {
        unsigned v[AHEAD];
#pragma unroll
        for (int w = 0; w < AHEAD; w++) {
            int i = start + w * blockDim.x;
            v[w] = i < n ? magnitude(x[i]) : 0;
        }
#pragma unroll
        for (int w = 0; w < AHEAD; w++) larger += v[w] > threshold;
    }
    return block_sum(larger, room);
}

// PACK: values and mask are written; else y. Warps go through a chunk side by side: word w of a warp's four holds the elements
// first + 32 w + lane.
template <bool PACK> __global__ void keep(floatx* values, unsigned* mask, floatx* y, const floatx* x, const float* threshold, int capacity, int n) {
    __shared__ int room[MOST_WARPS];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, words = (n + 31) / 32;
    size_t sample = blockIdx.x;
    const floatx* xs = x + sample * n;
    unsigned t = __float_as_uint(threshold[sample]) & 0x7fffffff, lower = (1u << lane) - 1;
    int all_larger = count_larger(xs, t, n, room), ties = max(capacity - all_larger, 0), larger_done = 0, equal_done = 0;
    for (int start = 0; start < n; start += blockDim.x * WORDS) {
        int first = start + warp * WARP * WORDS, here = 0, chunk;
        floatx v[WORDS];
        unsigned larger[WORDS], equal[WORDS];
        for (int w = 0; w < WORDS; w++) {
            int i = first + w * WARP + lane;
            v[w] = i < n ? xs[i] : (floatx)0.0f;
            larger[w] = __ballot_sync(ALL_LANES, i < n && magnitude(v[w]) > t);
            equal[w] = __ballot_sync(ALL_LANES, i < n && magnitude(v[w]) == t);
            here += __popc(larger[w]) + (__popc(equal[w]) << 16);   // both counts of a chunk fit into 16 bits
        }
        int before = __shfl_sync(ALL_LANES, block_before(lane == 0 ? here : 0, &chunk, room), 0);
        int L = larger_done + (before & 0xffff), E = equal_done + (before >> 16);
        for (int w = 0; w < WORDS; w++) {
            int i = first + w * WARP + lane, l = L + __popc(larger[w] & lower), e = E + __popc(equal[w] & lower);
            bool stays = (larger[w] >> lane & 1) || ((equal[w] >> lane & 1) && e < ties);
            int at = l + min(e, ties);
            stays = stays && at < capacity;
            unsigned kept = __ballot_sync(ALL_LANES, stays);
            if (PACK && stays) values[sample * capacity + at] = v[w];
            if (PACK && lane == 0 && i < n) mask[sample * words + i / 32] = kept;
            if (!PACK && i < n) y[sample * n + i] = stays ? v[w] : (floatx)0.0f;
            L += __popc(larger[w]);
            E += __popc(equal[w]);
        }
        larger_done += chunk & 0xffff;
        equal_done += chunk >> 16;
    }
    int stored = min(larger_done + min(equal_done, ties), capacity);
    for (int i = stored + threadIdx.x; PACK && i < capacity; i += blockDim.x) values[sample * capacity + i] = (floatx)0.0f;
}

void topk_pack(floatx* values, uint32_t* mask, const floatx* x, const float* threshold, int capacity, int samples, int n) {
    if (samples > 0 && n > 0) LAUNCH(keep<true>, samples, threads_for(n), 0, values, mask, NULL, x, threshold, capacity, n);
}

void topk_prune(floatx* y, const floatx* x, const float* threshold, int capacity, int samples, int n) {
    if (samples > 0 && n > 0) LAUNCH(keep<false>, samples, threads_for(n), 0, NULL, NULL, y, x, threshold, capacity, n);
}

// The mask says where every value goes: places are counted in words, one for each thread, then each warp spreads its 32 words.
static __global__ void spread(floatx* x, const floatx* values, const unsigned* mask, int capacity, int n) {
    __shared__ int room[MOST_WARPS];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, words = (n + 31) / 32, done = 0;
    size_t sample = blockIdx.x;
    for (int start = 0; start < words; start += blockDim.x) {
        int mine = start + threadIdx.x, chunk;
        unsigned word = mine < words ? mask[sample * words + mine] : 0;
        int before = done + block_before(__popc(word), &chunk, room);
        for (int w0 = 0; w0 < WARP; w0 += AHEAD) {
            floatx v[AHEAD];
#pragma unroll
            for (int w = 0; w < AHEAD; w++) {
                unsigned bits = __shfl_sync(ALL_LANES, word, w0 + w);
                int at = __shfl_sync(ALL_LANES, before, w0 + w) + __popc(bits & ((1u << lane) - 1));
                v[w] = (floatx)0.0f;
                if (bits >> lane & 1) v[w] = values[sample * capacity + at];
            }
#pragma unroll
            for (int w = 0; w < AHEAD; w++) {
                int i = (start + warp * WARP + w0 + w) * 32 + lane;
                if (i < n) x[sample * n + i] = v[w];
            }
        }
        done += chunk;
    }
}

void topk_unpack(floatx* x, const floatx* values, const uint32_t* mask, int capacity, int samples, int n) {
    if (samples > 0 && n > 0) LAUNCH(spread, samples, threads_for(n), 0, x, values, mask, capacity, n);
}
