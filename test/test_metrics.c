// GLUE's metrics against counts made by hand and values that NumPy and SciPy give.
#include "data/metrics.h"

#include "test.h"

static void is(const char* name, const double* p, const double* t, int n, double expected) {
    double got = metric_of(name, p, t, n);
    CHECK(fabs(got - expected) < 1e-12, "%s: %.15g, not %.15g", name, got, expected);
}

int main(void) {
    double p[] = {1, 0, 1, 1, 0, 0, 1, 0, 1, 0}, t[] = {1, 0, 0, 1, 0, 1, 1, 0, 1, 1};
    is("accuracy", p, t, 10, 0.7);
    is("f1", p, t, 10, 8.0 / 11);                       // 4 both, 5 said, 6 real
    is("matthews", p, t, 10, (4 * 3 - 1 * 2) / sqrt(5.0 * 6 * 4 * 5));
    double zeros[] = {0, 0, 0, 0}, ones[] = {1, 1, 1, 1};
    is("f1", zeros, zeros, 4, 0);
    is("matthews", ones, zeros, 4, 0);
    is("accuracy", ones, ones, 4, 1);
    double p3[] = {0, 2, 1, 0, 0, 1, 2, 2}, t3[] = {0, 1, 2, 0, 1, 1, 2, 2};
    is("matthews", p3, t3, 8, (5 * 8 - (3 * 2 + 2 * 3 + 3 * 3)) / sqrt((64.0 - 9 - 4 - 9) * (64.0 - 4 - 9 - 9)));

    double x[] = {1, 2.5, 2.5, 4, -3}, y[] = {0.1, 0.4, 0.2, 0.2, 0.0};
    is("pearson", x, y, 5, 0.717335901136002);
    double rx[] = {2, 3.5, 3.5, 5, 1}, ry[] = {2, 5, 3.5, 3.5, 1};
    is("pearson", rx, ry, 5, 0.763157894736842);
    is("spearman", x, y, 5, 0.763157894736842);
    double flat[] = {2, 2, 2, 2, 2}, line[] = {1, 3, 5, 7, 9}, square[] = {1, 9, 25, 49, 81};
    is("pearson", flat, y, 5, 0);
    is("spearman", x, flat, 5, 0);
    is("spearman", line, square, 5, 1);
    TEST_END();
}
