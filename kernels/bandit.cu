// Arms on the device. Thousands of arms, once in many steps: one block, whose threads share out every pass over them.
#include "bandit.h"

#include "cuda.cuh"
#include "philox.h"

enum { MOST_THREADS = 1024 };

static unsigned threads_for(int n) {
    unsigned t = (unsigned)(n + WARP - 1) / WARP * WARP;
    return t < WARP ? (unsigned)WARP : t < MOST_THREADS ? t : (unsigned)MOST_THREADS;
}

// Shared room for sums over the block, and for one thread's find.
typedef struct {
    double d[WARP];
    int i[WARP];
    double found;
} Room;

// Any value as a finite number that compares: NaN counts as the least.
__device__ double ranked(double x) {
    const double bound = 1e300;
    return x >= -bound ? fmin(x, bound) : -bound;
}

// Searches by value without sorting: of the entries of a strictly between low and high, the middle one by index; NaN when there is none. A
// search that moves low or high there ends after about 2 ln n rounds unless the order of a is made to spite it.
__device__ double pivot(const double* a, double low, double high, int n, Room* room) {
    int inside = 0, done = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) inside += ranked(a[i]) > low && ranked(a[i]) < high;
    int skip = block_sum(inside, room->i) / 2;
    if (threadIdx.x == 0) room->found = NAN;
    __syncthreads();
    for (int start = 0; start < n && done <= skip; start += blockDim.x) {
        int i = start + threadIdx.x, chunk, here = i < n && ranked(a[i]) > low && ranked(a[i]) < high;
        int before = done + block_before(here, &chunk, room->i);
        if (here && before == skip) room->found = ranked(a[i]);
        done += chunk;
    }
    __syncthreads();
    double found = room->found;
    __syncthreads();
    return found;
}

// sum_i clamp(exp(a_i - level + shift), p_min, 1): the mass when the arm at `level` has log-probability `shift`.
__device__ double mass(const double* a, double level, double shift, double p_min, int n, Room* room) {
    double sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        double x = ranked(a[i]) - level + shift;
        sum += x >= 0 ? 1 : fmax(exp(x), p_min);
    }
    return block_sum(sum, room->d);
}

// The least a_i whose arm can be lifted to log-probability `shift` within the budget; infinite when none can.
__device__ double lowest_lifted(const double* a, double shift, double budget, double p_min, int n, Room* room) {
    double low = -INFINITY, high = INFINITY;
    for (double at; !isnan(at = pivot(a, low, high, n, room)); ) {
        if (mass(a, at, shift, p_min, n, room) <= budget) high = at;
        else low = at;
    }
    return high;
}

// JointSpar's projection p_i = clamp(s w_i, p_min, 1). Raising s, arms leave p_min and arrive at 1 in order of weight, so two thresholds on
// a = log w say which arms are at 1 and which at p_min; the others share what is left in proportion to w. p may be a.
__device__ void simplex(double* p, const double* a, double budget, double p_min, int n, Room* room) {
    budget = fmin(fmax(budget, n * p_min), (double)n);
    double capped = lowest_lifted(a, 0, budget, p_min, n, room);
    double free_from = lowest_lifted(a, log(p_min), budget, p_min, n, room);
    int at_one = 0, at_least = 0;
    double largest = -INFINITY, sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        double x = ranked(a[i]);
        at_one += x >= capped;
        at_least += x < capped && x < free_from;
        if (x < capped && x >= free_from) largest = fmax(largest, x);
    }
    double rest = budget - block_sum(at_one, room->i) - p_min * block_sum(at_least, room->i);
    largest = block_max(largest, room->d);
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        double x = ranked(a[i]);
        if (x < capped && x >= free_from) sum += exp(x - largest);
    }
    sum = block_sum(sum, room->d);
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        double x = ranked(a[i]);
        if (x >= capped) p[i] = 1;
        else if (x < free_from) p[i] = p_min;
        else p[i] = fmin(fmax(rest * (exp(x - largest) / sum), p_min), 1.0);
    }
}

static __global__ void simplex_kernel(double* p, const double* log_w, double budget, double p_min, int n) {
    __shared__ Room room;
    simplex(p, log_w, budget, p_min, n, &room);
}

void capped_simplex(double* p, const double* log_w, double budget, double p_min, int n) {
    LAUNCH(simplex_kernel, 1, threads_for(n), 0, p, log_w, budget, p_min, n);
}

__device__ bool has_feedback(const double* squares, const int* sampled, int i) { return sampled[i] && squares[i] > 0 && isfinite(squares[i]); }

// The constant (1 / p_min)^2 falls out with the shift: the loss is how far (g_i / p_i)^2 lies below the largest of them. Every thread
// returns whether there was any feedback.
__device__ bool weights(double* log_w, const double* p, const double* squares, const int* sampled, double alpha, int n, Room* room) {
    double most = 0, best = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        if (has_feedback(squares, sampled, i)) most = fmax(most, squares[i]);
    most = block_max(most, room->d);
    if (most == 0) return false;
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        if (has_feedback(squares, sampled, i)) best = fmax(best, squares[i] / most / (p[i] * p[i]));
    best = block_max(best, room->d);
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        double loss = has_feedback(squares, sampled, i) ? best - squares[i] / most / (p[i] * p[i]) : 0;
        log_w[i] = log(p[i]) - alpha * loss / p[i];
    }
    __syncthreads();
    return true;
}

static __global__ void weights_kernel(double* log_w, const double* p, const double* squares, const int* sampled, double alpha, int n, int* feedback) {
    __shared__ Room room;
    bool any = weights(log_w, p, squares, sampled, alpha, n, &room);
    if (threadIdx.x == 0) *feedback = any;
}

int bandit_weights(double* log_w, const double* p, const double* squares, const int* sampled, double alpha, int n) {
    int feedback;
    LAUNCH(weights_kernel, 1, threads_for(n), 0, log_w, p, squares, sampled, alpha, n, device_word());
    device_download(&feedback, device_word(), sizeof feedback);
    return feedback;
}

static __global__ void update_kernel(double* p, const double* squares, const int* sampled, double alpha, double p_min, double budget, int n) {
    __shared__ Room room;
    if (weights(p, p, squares, sampled, alpha, n, &room)) simplex(p, p, budget, p_min, n, &room);
}

void bandit_update(double* p, const double* squares, const int* sampled, double alpha, double p_min, double budget, int n) {
    LAUNCH(update_kernel, 1, threads_for(n), 0, p, squares, sampled, alpha, p_min, budget, n);
}

// ---- sampling. Shuffle and running sum go from arm to arm, so thread 0 does them; the others bring what it needs, a piece at a time. The
// order lies in shared memory where it fits. An arm that is drawn is marked in the top bit of its entry, whichever arm that entry names.

enum { ORDER_IN_SHARED = 8192 };   // arms

// Three rules keep the number exact for any p and in spite of rounding, and change nothing where p sums to a whole number exactly: a certain
// arm is always drawn, a point that an arm could not take goes to the next, and neither certain arms nor the end are left without places.
static __global__ void sample(int* sampled, const double* p, uint64_t seed, uint32_t step, uint32_t group, int n) {
    __shared__ double piece_p[MOST_THREADS];
    __shared__ unsigned piece[MOST_THREADS];
    DYNAMIC_SHARED(unsigned, shared_order);
    const unsigned drawn = 1u << 31;
    unsigned* order = n <= ORDER_IN_SHARED ? shared_order : (unsigned*)sampled;
    uint64_t base = (uint64_t)group << 32;
    int size = blockDim.x, mine = threadIdx.x, first = mine == 0, certain = 0;
    double total = 0;
    for (int start = 0; start < n; start += size) {
        int i = start + mine, m = min(size, n - start);
        if (i < n) {
            order[i] = i;
            piece_p[mine] = p[i];
        }
        __syncthreads();
        for (int k = 0; first && k < m; k++) {
            total += piece_p[k];
            certain += piece_p[k] >= 1;
        }
        __syncthreads();
    }
    for (int top = n - 1; top > 0; top -= size) {
        int i = top - mine;
        if (i > 0) piece[mine] = philox_below(philox(seed, STREAM_SAMPLE, step, base + i).v[0], i + 1);
        __syncthreads();
        for (int k = 0; first && k < size && top - k > 0; k++) {
            unsigned swap = order[top - k];
            order[top - k] = order[piece[k]];
            order[piece[k]] = swap;
        }
        __syncthreads();
    }
    double u = philox_uniform(philox(seed, STREAM_SAMPLE, step, base).v[1]), c = 0;
    int count = (int)fmin(fmax(round(total), 0.0), (double)n), taken = 0;
    for (int start = 0; start < n; start += size) {
        if (start + mine < n) {
            piece[mine] = order[start + mine] & ~drawn;
            piece_p[mine] = p[piece[mine]];
        }
        __syncthreads();
        for (int i = start; first && i < n && i < start + size; i++) {
            unsigned arm = piece[i - start];
            double pa = piece_p[i - start];
            c = i == n - 1 ? count : c + pa;
            int sure = pa >= 1, passed = c > u + taken, all_needed = count - taken == n - i;
            certain -= sure;
            if (!sure && (taken + certain >= count || !(passed || all_needed))) continue;
            order[arm] |= drawn;
            taken++;
        }
        __syncthreads();
    }
    for (int i = mine; i < n; i += size) sampled[i] = order[i] >> 31;
}

void sample_arms(int* sampled, const double* p, uint64_t seed, uint32_t step, uint32_t group, int n) {
    LAUNCH(sample, 1, threads_for(n), n <= ORDER_IN_SHARED ? n * sizeof(unsigned) : 0, sampled, p, seed, step, group, n);
}

// The score that `count` arms reach, then the ties at it from the lowest index.
static __global__ void largest(int* sampled, const double* score, int count, int n) {
    __shared__ Room room;
    double low = -INFINITY, high = INFINITY;   // the threshold is the least score that fewer than `count` arms exceed
    for (double at; count > 0 && !isnan(at = pivot(score, low, high, n, &room)); ) {
        int above = 0;
        for (int i = threadIdx.x; i < n; i += blockDim.x) above += ranked(score[i]) > at;
        if (block_sum(above, room.i) < count) high = at;
        else low = at;
    }
    int above = 0, done = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) above += ranked(score[i]) > high;
    int ties = count - block_sum(above, room.i);
    for (int start = 0; start < n; start += blockDim.x) {
        int i = start + threadIdx.x, chunk, tie = i < n && ranked(score[i]) == high;
        int before = done + block_before(tie, &chunk, room.i);
        if (i < n) sampled[i] = ranked(score[i]) > high || (tie && before < ties);
        done += chunk;
    }
}

void largest_arms(int* sampled, const double* score, int count, int n) { LAUNCH(largest, 1, threads_for(n), 0, sampled, score, count, n); }

static __global__ void count(int* updates, int* counts, const int* sampled, const float* gradient_scale, int n) {
    __shared__ Room room;
    int done = 0;
    if (isnan(*gradient_scale)) return;
    for (int start = 0; start < n; start += blockDim.x) {
        int i = start + threadIdx.x, chunk, mine = i < n && sampled[i], before = done + block_before(mine, &chunk, room.i);
        if (mine) counts[before] = ++updates[i];
        done += chunk;
    }
}

void count_updates(int* updates, int* counts, const int* sampled, const float* gradient_scale, int n) {
    if (n > 0) LAUNCH(count, 1, threads_for(n), 0, updates, counts, sampled, gradient_scale, n);
}
