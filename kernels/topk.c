// Magnitudes are compared as the bits of |x|: for floats of one sign these are integers in the same order, so a threshold can
// be found digit by digit. A NaN is larger than everything and is kept, so trouble stays visible.
#include "topk.h"

#include <string.h>

static inline uint32_t magnitude(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits & 0x7fffffff;
}

// m of the header: the place of the threshold among the n magnitudes in ascending order, counted from 1.
static int place(int n, double prune) {
    int m = (int)(n * prune);
    return m < 1 ? 1 : m > n ? n : m;
}

int topk_capacity(int n, double prune) { return n < 1 ? 0 : n - place(n, prune) + 1; }

// A magnitude of 31 bits is three digits, of 11, 10 and 10 bits.
enum { HIGH = 20, MIDDLE = 10, DIGITS = 2048, LANES = 4 };

// The digit of the element in place *m by a histogram of digits; *m becomes its place among those of the same digit.
static uint32_t digit_at(const int* count, int* m) {
    uint32_t digit = 0;
    while (*m > count[digit]) *m -= count[digit++];
    return digit;
}

// First digits of all elements. Neighbours count in separate lanes: equal digits are frequent, and one counter would make
// each increment wait for the last.
static void count_first(int* count, const floatx* x, int n) {
    int lane[LANES][DIGITS] = {{0}};
    int i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++) lane[l][magnitude(x[i + l]) >> HIGH]++;
    for (; i < n; i++) lane[0][magnitude(x[i]) >> HIGH]++;
    for (int d = 0; d < DIGITS; d++) count[d] = lane[0][d] + lane[1][d] + lane[2][d] + lane[3][d];
}

// Next digits, at `shift`, of the elements whose magnitude begins with `prefix`.
static void count_next(int* count, const floatx* x, int n, uint32_t prefix, int shift) {
    enum { GROUP = 32 };
    memset(count, 0, DIGITS * sizeof *count);
    for (int i = 0; i < n; i += GROUP) {
        int end = i + GROUP < n ? i + GROUP : n, some = 0;
        for (int j = i; j < end; j++) some |= magnitude(x[j]) >> (shift + 10) == prefix;
        if (!some) continue;
        for (int j = i; j < end; j++) {
            uint32_t bits = magnitude(x[j]);
            if (bits >> (shift + 10) == prefix) count[bits >> shift & 1023]++;
        }
    }
}

void topk_threshold(float* threshold, const floatx* x, double prune, int samples, int n) {
    #pragma omp parallel for schedule(dynamic, 1)
    for (int s = 0; s < samples; s++) {
        const floatx* xs = x + (size_t)s * n;
        int count[DIGITS], m = place(n, prune);
        count_first(count, xs, n);
        uint32_t bits = digit_at(count, &m);
        count_next(count, xs, n, bits, MIDDLE);
        bits = bits << 10 | digit_at(count, &m);
        count_next(count, xs, n, bits, 0);
        bits = bits << 10 | digit_at(count, &m);
        memcpy(threshold + s, &bits, sizeof bits);
    }
}

// How many ties at the threshold a sample may still keep, and elements at all: what pack and prune count down.
typedef struct { int ties, all; } Room;

static Room room_for(const floatx* x, uint32_t threshold, int capacity, int n) {
    int larger = 0;
    for (int i = 0; i < n; i++) larger += magnitude(x[i]) > threshold;
    return (Room){capacity > larger ? capacity - larger : 0, capacity};
}

// The lowest `most` of the set bits.
static uint32_t lowest_bits(uint32_t word, int most) {
    while (__builtin_popcount(word) > most) word &= ~(0x80000000u >> __builtin_clz(word));
    return word;
}

// The mask of the next `count` <= 32 elements.
static uint32_t mask_word(const floatx* x, int count, uint32_t threshold, Room* room) {
    uint32_t larger = 0, equal = 0;
    for (int i = 0; i < count; i++) {
        uint32_t bits = magnitude(x[i]);
        larger |= (uint32_t)(bits > threshold) << i;
        equal |= (uint32_t)(bits == threshold) << i;
    }
    equal = lowest_bits(equal, room->ties);
    room->ties -= __builtin_popcount(equal);
    uint32_t kept = lowest_bits(larger | equal, room->all);
    room->all -= __builtin_popcount(kept);
    return kept;
}

static inline int words(int n) { return (n + 31) / 32; }
static inline int word_size(int n, int word) { return n - word * 32 < 32 ? n - word * 32 : 32; }

void topk_pack(floatx* values, uint32_t* mask, const floatx* x, const float* threshold, int capacity, int samples, int n) {
    #pragma omp parallel for schedule(dynamic, 1)
    for (int s = 0; s < samples; s++) {
        const floatx* xs = x + (size_t)s * n;
        floatx *to = values + (size_t)s * capacity, *end = to + capacity;
        uint32_t t = magnitude(threshold[s]);
        Room room = room_for(xs, t, capacity, n);
        for (int w = 0; w < words(n); w++) {
            uint32_t kept = mask_word(xs + w * 32, word_size(n, w), t, &room);
            mask[(size_t)s * words(n) + w] = kept;
            for (; kept; kept &= kept - 1) *to++ = xs[w * 32 + __builtin_ctz(kept)];
        }
        while (to < end) *to++ = 0;
    }
}

void topk_unpack(floatx* x, const floatx* values, const uint32_t* mask, int capacity, int samples, int n) {
    #pragma omp parallel for schedule(dynamic, 1)
    for (int s = 0; s < samples; s++) {
        floatx* xs = x + (size_t)s * n;
        const floatx* from = values + (size_t)s * capacity;
        for (int w = 0; w < words(n); w++) {
            memset(xs + w * 32, 0, word_size(n, w) * sizeof *xs);
            for (uint32_t kept = mask[(size_t)s * words(n) + w]; kept; kept &= kept - 1)
                xs[w * 32 + __builtin_ctz(kept)] = *from++;
        }
    }
}

void topk_prune(floatx* y, const floatx* x, const float* threshold, int capacity, int samples, int n) {
    #pragma omp parallel for schedule(dynamic, 1)
    for (int s = 0; s < samples; s++) {
        const floatx* xs = x + (size_t)s * n;
        floatx* ys = y + (size_t)s * n;
        uint32_t t = magnitude(threshold[s]);
        Room room = room_for(xs, t, capacity, n);
        for (int w = 0; w < words(n); w++) {
            uint32_t kept = mask_word(xs + w * 32, word_size(n, w), t, &room);
            for (int i = 0; i < word_size(n, w); i++) ys[w * 32 + i] = kept >> i & 1 ? xs[w * 32 + i] : 0;
        }
    }
}
