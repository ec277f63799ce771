// The bandit: projection against bisection, the update against the published JointSpar outputs, sampling against its probabilities.
#include "kernels/bandit.h"

#include <cjson/cJSON.h>

#include "kernels/philox.h"
#include "test.h"

// The projection written another way: bisection on the logarithm of the common factor.
static void reference_simplex(double* p, const double* log_w, double budget, double p_min, int n) {
    double low = -1e7, high = 1e7;
    for (int round = 0; round < 200; round++) {
        double middle = (low + high) / 2, sum = 0;
        for (int i = 0; i < n; i++) sum += fmin(fmax(exp(fmin(log_w[i] + middle, 1)), p_min), 1);
        if (sum < budget) low = middle;
        else high = middle;
    }
    for (int i = 0; i < n; i++) p[i] = fmin(fmax(exp(fmin(log_w[i] + high, 1)), p_min), 1);
}

static void check_feasible(const double* p, double budget, double p_min, int n, const char* what) {
    double sum = 0;
    int outside = 0;
    for (int i = 0; i < n; i++) {
        sum += p[i];
        outside += !(p[i] >= p_min && p[i] <= 1);
    }
    CHECK(outside == 0, "%s: %d of %d outside [%g, 1]", what, outside, n, p_min);
    CHECK(fabs(sum - budget) <= 1e-12 * n, "%s: sum %.17g, budget %.17g, n %d", what, sum, budget, n);
}

static void test_simplex(int n, double spread, double p_min, double budget) {
    double *log_w = calloc(n, sizeof *log_w), *p = malloc(n * sizeof *p), *expected = malloc(n * sizeof *p), worst = 0;
    for (int i = 0; i < n; i++) log_w[i] = i && test_int(0, 9) == 0 ? log_w[i - 1] : spread * test_random();   // with ties
    capped_simplex(p, log_w, budget, p_min, n);
    check_feasible(p, budget, p_min, n, "capped_simplex");
    reference_simplex(expected, log_w, budget, p_min, n);
    for (int i = 0; i < n; i++) worst = fmax(worst, fabs(p[i] - expected[i]));
    double tolerance = 1e-12 + 1e-15 * spread;   // the reference rounds log_w + middle
    CHECK(worst < tolerance, "off by %g: n %d spread %g p_min %g budget %g", worst, n, spread, p_min, budget);
    capped_simplex(log_w, log_w, budget, p_min, n);
    CHECK(memcmp(p, log_w, n * sizeof *p) == 0, "in place (n %d)", n);
    free(log_w), free(p), free(expected);
}

static void test_simplex_edges(void) {
    double p[4];
    capped_simplex(p, (double[]){-1e6, -2e6, -3e6, -1e6}, 3, 1e-3, 4);   // far below what exp can hold
    CHECK(p[0] == 1 && p[3] == 1 && fabs(p[1] - 0.999) < 1e-12 && p[2] == 1e-3, "%g %g %g %g", p[0], p[1], p[2], p[3]);
    capped_simplex(p, (double[]){0, 0, -INFINITY, NAN}, 3, 0, 4);          // weightless arms get what nobody else can take
    CHECK(p[0] == 1 && p[1] == 1 && fabs(p[2] - 0.5) < 1e-15 && fabs(p[3] - 0.5) < 1e-15, "%g %g %g %g", p[0], p[1], p[2], p[3]);
    capped_simplex(p, (double[]){0, 1, 2, 3}, 9, 0.1, 4);                // more than there is
    CHECK(p[0] == 1 && p[1] == 1 && p[2] == 1 && p[3] == 1, "%g %g %g %g", p[0], p[1], p[2], p[3]);
    capped_simplex(p, (double[]){0, 1, 2, 3}, 0, 0.1, 4);                // less than the floor
    CHECK(p[0] == 0.1 && p[1] == 0.1 && p[2] == 0.1 && p[3] == 0.1, "%g %g %g %g", p[0], p[1], p[2], p[3]);
}

// The update written out: loss by its definition, with (1/p_min)^2 and the shift.
static void test_update(int n, double alpha, double p_min, double budget) {
    double *p = malloc(n * sizeof *p), *squares = malloc(n * sizeof *p), *loss = calloc(n, sizeof *p), *log_w = calloc(n, sizeof *p);
    double *expected = malloc(n * sizeof *p), most = 0, least = INFINITY;
    int* sampled = malloc(n * sizeof(int));
    for (int i = 0; i < n; i++) log_w[i] = test_random();
    reference_simplex(p, log_w, budget, p_min, n);
    for (int i = 0; i < n; i++) {
        const double odd[] = {0, NAN, INFINITY};
        sampled[i] = test_int(0, 1);
        squares[i] = i % 7 == 3 ? odd[i / 7 % 3] : pow(10, 3 * test_random());
        if (sampled[i] && squares[i] > 0 && squares[i] < INFINITY) most = fmax(most, squares[i]);
    }
    for (int i = 0; i < n; i++) {
        if (!(sampled[i] && squares[i] > 0 && squares[i] < INFINITY)) continue;
        loss[i] = pow(1 / p_min, 2) - squares[i] / most / (p[i] * p[i]);
        least = fmin(least, loss[i]);
    }
    for (int i = 0; i < n; i++)
        log_w[i] = log(p[i]) - (sampled[i] && squares[i] > 0 && squares[i] < INFINITY ? alpha * (loss[i] - least) / p[i] : 0);
    reference_simplex(expected, log_w, budget, p_min, n);
    double* parts = malloc(n * sizeof *parts);
    int feedback = bandit_weights(parts, p, squares, sampled, alpha, n);
    if (feedback) capped_simplex(parts, parts, budget, p_min, n);
    else memcpy(parts, p, n * sizeof *parts);
    CHECK(feedback == (most > 0), "feedback");
    bandit_update(p, squares, sampled, alpha, p_min, budget, n);
    CHECK(memcmp(parts, p, n * sizeof *p) == 0, "the update's two parts, one after the other, give something else");
    free(parts);
    check_feasible(p, budget, p_min, n, "bandit_update");
    double worst = 0;
    for (int i = 0; i < n; i++) worst = fmax(worst, fabs(p[i] - expected[i]));
    CHECK(worst < 1e-8, "off by %g: n %d alpha %g", worst, n, alpha);

    // Without any feedback p is what it was, to the bit.
    memcpy(expected, p, n * sizeof *p);
    for (int i = 0; i < n; i++) squares[i] = sampled[i] ? (i % 2 ? 0 : NAN) : 1;
    bandit_update(p, squares, sampled, alpha, p_min, budget, n);
    CHECK(memcmp(expected, p, n * sizeof *p) == 0, "no feedback");
    free(p), free(squares), free(loss), free(log_w), free(expected), free(sampled);
}

// No learning rate or loss scale changes the outcome.
static void test_scale(void) {
    double p[2][6], squares[6] = {1, 4, 0.25, 9, 2, 0.5};
    const int sampled[6] = {1, 0, 1, 1, 1, 0};
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < 6; i++) p[k][i] = 0.5, squares[i] *= k ? 0x1p-80 : 1;
        bandit_update(p[k], squares, sampled, 0.1, 1e-3, 3, 6);
    }
    CHECK(memcmp(p[0], p[1], sizeof p[0]) == 0, "scaled gradients");
    CHECK(p[0][3] > 0.5 && p[0][2] < p[0][4] && p[0][1] == p[0][3], "%g %g %g %g", p[0][1], p[0][2], p[0][3], p[0][4]);
}

static double number(const cJSON* o, const char* name) { return cJSON_GetNumberValue(cJSON_GetObjectItem(o, name)); }

// Conventions of the published outputs: gradient norms are not divided by L = max g, so alpha is multiplied by L^2 here; and the
// projection knows no p_min, so capped_simplex is called with 0 and the result clipped afterwards. The
// budget keep * n need not be whole.
static void test_golden(cJSON* cases) {
    const cJSON* one;
    int count = 0;
    cJSON_ArrayForEach(one, cases) {
        const cJSON *p0 = cJSON_GetObjectItem(one, "p"), *index = cJSON_GetObjectItem(one, "sampled");
        const cJSON *norm = cJSON_GetObjectItem(one, "grad_norm"), *next = cJSON_GetObjectItem(one, "p_next");
        int n = cJSON_GetArraySize(p0);
        double *p = malloc(n * sizeof *p), *squares = calloc(n, sizeof *squares), most = 0, worst = 0;
        int* sampled = calloc(n, sizeof *sampled);
        const cJSON* item;
        int i = 0;
        cJSON_ArrayForEach(item, p0) p[i++] = item->valuedouble;
        for (item = index->child; item; item = item->next, norm = norm->next) {
            if (item == index->child) norm = norm->child;
            int arm = item->valueint;
            CHECK(arm >= 0 && arm < n, "arm %d of %d", arm, n);
            sampled[arm] = 1;
            squares[arm] = norm->valuedouble * norm->valuedouble;
            most = fmax(most, squares[arm]);
        }
        CHECK(bandit_weights(p, p, squares, sampled, number(one, "alpha") * most, n) == 1, "feedback");
        capped_simplex(p, p, number(one, "keep") * n, 0, n);
        i = 0;
        cJSON_ArrayForEach(item, next) {
            worst = fmax(worst, fabs(fmin(fmax(p[i], number(one, "p_min")), 1) - item->valuedouble));
            i++;
        }
        CHECK(i == n && worst < 1e-10, "case %d (n %d): off by %g", count, n, worst);
        count++;
        free(p), free(squares), free(sampled);
    }
    CHECK(count > 0, "no cases");
}

static int golden(void) {
    const char* root = getenv("PREBR_TEST_DATA");
    char path[4096];
    snprintf(path, sizeof path, "%s/golden/jointspar.json", root ? root : "");
    FILE* f = root ? fopen(path, "rb") : NULL;
    if (!f) return 0;
    fseek(f, 0, SEEK_END);
    long size = ftell(f);
    rewind(f);
    char* text = calloc(size + 1, 1);
    CHECK(fread(text, 1, size, f) == (size_t)size, "read");
    fclose(f);
    cJSON* json = cJSON_Parse(text);
    CHECK(json, "not JSON");
    test_golden(cJSON_GetObjectItem(json, "cases"));
    cJSON_Delete(json);
    free(text);
    return 1;
}

// A random p with sum exactly `count`, some arms certain and some nearly never drawn.
static void random_probabilities(double* p, int count, double spread, int n) {
    for (int i = 0; i < n; i++) p[i] = spread * test_random();
    capped_simplex(p, p, count, 1e-3, n);
}

// Inclusion frequencies over many steps. Each arm's (hits - steps p)^2 / (steps p (1 - p)) has mean 1; arms are negatively
// correlated, so the sum over arms stays below that of a chi-square, whose mean + 4 standard deviations is n + 4 sqrt(2 n).
static void test_frequencies(int n, int count, double spread) {
    enum { STEPS = 20000 };
    double* p = malloc(n * sizeof *p);
    int *sampled = malloc(n * sizeof(int)), *hits = calloc(n, sizeof(int));
    random_probabilities(p, count, spread, n);
    for (int step = 0; step < STEPS; step++) {
        int drawn = 0;
        sample_arms(sampled, p, 42, step, 3, n);
        for (int i = 0; i < n; i++) {
            drawn += sampled[i];
            hits[i] += sampled[i];
            CHECK(sampled[i] == 1 || (sampled[i] == 0 && p[i] < 1), "sampled %d, p %g", sampled[i], p[i]);
        }
        CHECK(drawn == count, "%d drawn, not %d", drawn, count);
    }
    double chi = 0;
    int uncertain = 0;
    for (int i = 0; i < n; i++) {
        if (p[i] >= 1) continue;
        double d = (hits[i] - STEPS * p[i]) / sqrt(STEPS * p[i] * (1 - p[i]));
        CHECK(fabs(d) < 5, "arm %d: p %g, frequency %g, %g standard deviations", i, p[i], hits[i] / (double)STEPS, d);
        chi += d * d;
        uncertain++;
    }
    CHECK(chi < uncertain + 4 * sqrt(2.0 * uncertain), "chi-square %g for %d arms", chi, uncertain);
    free(p), free(sampled), free(hits);
}

// Exact for any p, whole sum or not, and certain arms always among the drawn.
static void test_exact(void) {
    enum { MOST = 40 };
    for (int trial = 0; trial < 20000; trial++) {
        double p[MOST], sum = 0;
        int sampled[MOST], n = test_int(1, MOST), drawn = 0, missed = 0;
        for (int i = 0; i < n; i++) {
            p[i] = fmin(fmax(0.5 + test_random(), trial % 2 ? 1e-3 : 0), 1);
            sum += p[i];
        }
        sample_arms(sampled, p, trial, 1, 0, n);
        for (int i = 0; i < n; i++) {
            drawn += sampled[i];
            missed += p[i] >= 1 && !sampled[i];
        }
        CHECK(drawn == (int)round(sum) && missed == 0, "%d drawn of n %d, sum %g, %d certain arms missed", drawn, n, sum, missed);
    }
}

// The header's recipe as a script would write it, for p that sum to a whole number exactly (multiples of 1/8).
static void test_recipe(void) {
    enum { N = 24 };
    for (uint32_t step = 0; step < 500; step++) {
        double p[N], sum = 0, before = 0;
        int sampled[N], order[N], wrong = 0;
        for (int i = 0; i < N - 1; i++) sum += p[i] = test_int(1, 8) / 8.0;
        p[N - 1] = ceil(sum) - sum;
        const uint64_t seed = 0x123456789abcdef, base = 5ull << 32;
        const int count = (int)ceil(sum);
        for (int i = 0; i < N; i++) order[i] = i;
        for (int i = N - 1; i >= 1; i--) {
            int j = (int)philox_below(philox(seed, STREAM_SAMPLE, step, base + i).v[0], i + 1), other = order[i];
            order[i] = order[j];
            order[j] = other;
        }
        double u = philox_uniform(philox(seed, STREAM_SAMPLE, step, base).v[1]);
        sample_arms(sampled, p, seed, step, 5, N);
        for (int i = 0; i < N; i++) {
            double after = before + p[order[i]];
            int expected = 0;
            for (int k = 0; k < count; k++) expected |= before <= k + u && k + u < after;
            wrong += sampled[order[i]] != expected;
            before = after;
        }
        CHECK(wrong == 0, "step %u: %d arms", step, wrong);
    }
}

static void test_largest(void) {
    const double tied[] = {2, 5, NAN, 5, 1, 5, INFINITY, -INFINITY};
    int s[8];
    largest_arms(s, tied, 3, 8);
    CHECK(s[6] && s[1] && s[3] && s[0] + s[2] + s[4] + s[5] + s[7] == 0, "ties go to the lower index");
    largest_arms(s, tied, 0, 8);
    for (int i = 0; i < 8; i++) CHECK(!s[i], "none");
    largest_arms(s, tied, 8, 8);
    for (int i = 0; i < 8; i++) CHECK(s[i], "all");
    for (int trial = 0; trial < 300; trial++) {
        int n = test_int(1, 200), count = test_int(0, n), wrong = 0, *sampled = malloc(n * sizeof(int));
        double* score = malloc(n * sizeof *score);
        for (int i = 0; i < n; i++) score[i] = trial % 3 == 0 ? i : trial % 3 == 1 ? test_int(0, 9) : test_random();
        largest_arms(sampled, score, count, n);
        for (int i = 0; i < n; i++) {
            int better = 0;
            for (int j = 0; j < n; j++) better += score[j] > score[i] || (score[j] == score[i] && j < i);
            wrong += sampled[i] != (better < count);
        }
        CHECK(wrong == 0, "n %d count %d: %d wrong", n, count, wrong);
        free(score), free(sampled);
    }
}

static void test_counts(int n, int share) {
    int *updates = malloc(n * sizeof(int)), *expected = malloc(n * sizeof(int)), *sampled = malloc(n * sizeof(int)), *counts = malloc((n + 1) * sizeof(int));
    int taken = 0, wrong = 0;
    for (int i = 0; i < n; i++) {
        updates[i] = test_int(0, 99);
        sampled[i] = test_int(0, 9) < share;
        expected[i] = updates[i] + sampled[i];
    }
    for (int i = 0; i <= n; i++) counts[i] = -1;
    float scale = NAN;
    count_updates(updates, counts, sampled, &scale, n);   // no update: nothing changes
    for (int i = 0; i < n; i++) wrong += counts[i] != -1 || updates[i] != expected[i] - sampled[i];
    CHECK(wrong == 0, "%d of %d were counted without an update", wrong, n);
    scale = 1;
    count_updates(updates, counts, sampled, &scale, n);
    for (int i = 0; i < n; i++) {
        wrong += updates[i] != expected[i];
        if (sampled[i]) wrong += counts[taken++] != expected[i];
    }
    CHECK(wrong == 0 && counts[taken] == -1, "%d of %d counts of updates are wrong", wrong, n);
    free(updates), free(expected), free(sampled), free(counts);
}

int main(void) {
    const double spreads[] = {0, 1, 30, 1e6};
    for (int k = 0; k < 4; k++) {
        test_simplex(1, spreads[k], 1e-3, 1);
        test_simplex(7, spreads[k], 1e-3, 2.5);
        test_simplex(101, spreads[k], 0, 50);
        test_simplex(101, spreads[k], 0.2, 101 * 0.2);
        test_simplex(101, spreads[k], 0.01, 101);
        test_simplex(2003, spreads[k], 1e-3, 300);
        test_simplex(2003, spreads[k], 1e-3, 1990);
    }
    test_simplex_edges();
    test_update(1, 1e-3, 1e-3, 0.5);
    test_update(53, 1e-3, 1e-3, 26);
    test_update(53, 1, 1e-2, 10);
    test_update(997, 1e-2, 1e-3, 200);
    test_scale();
    test_frequencies(2, 1, 1);
    test_frequencies(31, 11, 2);
    test_frequencies(64, 60, 5);
    test_exact();
    test_recipe();
    test_largest();
    test_counts(1, 10);
    test_counts(7, 0);
    test_counts(33, 5);
    test_counts(2311, 3);
    if (!golden() && !test_failures)
        TEST_SKIP("all but the published outputs passed; $PREBR_TEST_DATA/golden/jointspar.json is absent");
    TEST_END();
}
