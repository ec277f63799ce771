// Arms on the CPU. Thousands of arms, once in many steps: one thread, no memory of its own.
#include "bandit.h"

#include <math.h>

#include "philox.h"

// Any value as a finite number that compares: NaN counts as the least.
static double ranked(double x) {
    const double bound = 1e300;
    return x >= -bound ? fmin(x, bound) : -bound;
}

// Searches by value without sorting: of the entries of a strictly between low and high, the middle one by index; NaN when there
// is none. A search that moves low or high there ends after about 2 ln n rounds unless the order of a is made to spite it.
static double pivot(const double* a, double low, double high, int n) {
    int inside = 0;
    for (int i = 0; i < n; i++) inside += ranked(a[i]) > low && ranked(a[i]) < high;
    int skip = inside / 2;
    for (int i = 0; i < n; i++)
        if (ranked(a[i]) > low && ranked(a[i]) < high && skip-- == 0) return ranked(a[i]);
    return NAN;
}

// sum_i clamp(exp(a_i - level + shift), p_min, 1): the mass when the arm at `level` has log-probability `shift`.
static double mass(const double* a, double level, double shift, double p_min, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) {
        double x = ranked(a[i]) - level + shift;
        sum += x >= 0 ? 1 : fmax(exp(x), p_min);
    }
    return sum;
}

// The least a_i whose arm can be lifted to log-probability `shift` within the budget; infinite when none can.
static double lowest_lifted(const double* a, double shift, double budget, double p_min, int n) {
    double low = -INFINITY, high = INFINITY;
    for (double at; !isnan(at = pivot(a, low, high, n)); ) {
        if (mass(a, at, shift, p_min, n) <= budget) high = at;
        else low = at;
    }
    return high;
}

// JointSpar's projection is the nearest point in Kullback-Leibler divergence, p_i = clamp(s w_i, p_min, 1) with the one s that
// spends the budget (the published outputs tell it from the Euclidean one). Raising s, arms leave p_min and arrive at 1 in order
// of weight, so two thresholds on a = log w say which arms are at 1 and which at p_min; the others share what is left in
// proportion to w. Only differences of logarithms are taken, so weights may be as small as exp(-1e6).
void capped_simplex(double* p, const double* log_w, double budget, double p_min, int n) {
    budget = fmin(fmax(budget, n * p_min), n);
    double capped = lowest_lifted(log_w, 0, budget, p_min, n);
    double free_from = lowest_lifted(log_w, log(p_min), budget, p_min, n);
    double rest = budget, largest = -INFINITY, sum = 0;
    for (int i = 0; i < n; i++) {
        double a = ranked(log_w[i]);
        if (a >= capped) rest -= 1;
        else if (a < free_from) rest -= p_min;
        else largest = fmax(largest, a);
    }
    for (int i = 0; i < n; i++) {
        double a = ranked(log_w[i]);
        if (a < capped && a >= free_from) sum += exp(a - largest);
    }
    for (int i = 0; i < n; i++) {
        double a = ranked(log_w[i]);
        if (a >= capped) p[i] = 1;
        else if (a < free_from) p[i] = p_min;
        else p[i] = fmin(fmax(rest * (exp(a - largest) / sum), p_min), 1);
    }
}

static int has_feedback(const double* squares, const int* sampled, int i) {
    return sampled[i] && squares[i] > 0 && isfinite(squares[i]);
}

// The constant (1 / p_min)^2 falls out with the shift: the loss is how far (g_i / p_i)^2 lies below the largest of them.
int bandit_weights(double* log_w, const double* p, const double* squares, const int* sampled, double alpha, int n) {
    double most = 0, best = 0;
    for (int i = 0; i < n; i++)
        if (has_feedback(squares, sampled, i)) most = fmax(most, squares[i]);
    if (most == 0) return 0;
    for (int i = 0; i < n; i++)
        if (has_feedback(squares, sampled, i)) best = fmax(best, squares[i] / most / (p[i] * p[i]));
    for (int i = 0; i < n; i++) {
        double loss = has_feedback(squares, sampled, i) ? best - squares[i] / most / (p[i] * p[i]) : 0;
        log_w[i] = log(p[i]) - alpha * loss / p[i];
    }
    return 1;
}

void bandit_update(double* p, const double* squares, const int* sampled, double alpha, double p_min, double budget, int n) {
    if (bandit_weights(p, p, squares, sampled, alpha, n)) capped_simplex(p, p, budget, p_min, n);
}

// `sampled` first holds the order; an arm that is drawn is marked in the top bit of its entry, whichever arm that entry names.
// Points u, u + 1, ... lie on the line of running sums and an arm takes the one in its interval. Three rules keep the number
// exact for any p and in spite of rounding, and change nothing where p sums to a whole number exactly: a certain arm is always
// drawn, a point that an arm could not take goes to the next, and neither certain arms nor the end are left without places.
void sample_arms(int* sampled, const double* p, uint64_t seed, uint32_t step, uint32_t group, int n) {
    const unsigned drawn = 1u << 31;
    unsigned* order = (unsigned*)sampled;
    uint64_t base = (uint64_t)group << 32;
    double total = 0;
    int certain = 0;
    for (int i = 0; i < n; i++) {
        order[i] = i;
        total += p[i];
        certain += p[i] >= 1;
    }
    for (int i = n - 1; i > 0; i--) {
        uint32_t j = philox_below(philox(seed, STREAM_SAMPLE, step, base + i).v[0], i + 1);
        unsigned swap = order[i];
        order[i] = order[j];
        order[j] = swap;
    }
    double u = philox_uniform(philox(seed, STREAM_SAMPLE, step, base).v[1]), c = 0;
    int count = (int)fmin(fmax(round(total), 0), n), taken = 0;
    for (int i = 0; i < n; i++) {
        unsigned arm = order[i] & ~drawn;
        c = i == n - 1 ? count : c + p[arm];
        int sure = p[arm] >= 1, passed = c > u + taken, all_needed = count - taken == n - i;
        certain -= sure;
        if (!sure && (taken + certain >= count || !(passed || all_needed))) continue;
        order[arm] |= drawn;
        taken++;
    }
    for (int i = 0; i < n; i++) sampled[i] = order[i] >> 31;
}

// The score that `count` arms reach, then the ties at it from the lowest index.
void largest_arms(int* sampled, const double* score, int count, int n) {
    double low = -INFINITY, high = INFINITY;   // the threshold is the least score that fewer than `count` arms exceed
    for (double at; count > 0 && !isnan(at = pivot(score, low, high, n)); ) {
        int above = 0;
        for (int i = 0; i < n; i++) above += ranked(score[i]) > at;
        if (above < count) high = at;
        else low = at;
    }
    int ties = count;
    for (int i = 0; i < n; i++) ties -= ranked(score[i]) > high;
    for (int i = 0; i < n; i++) {
        double s = ranked(score[i]);
        sampled[i] = s > high || (s == high && ties-- > 0);
    }
}

void count_updates(int* updates, int* counts, const int* sampled, const float* gradient_scale, int n) {
    for (int i = 0; i < n && !isnan(*gradient_scale); i++)
        if (sampled[i]) *counts++ = ++updates[i];
}
