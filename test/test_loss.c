// Cross-entropy against double, its gradient against central differences, and its behaviour at the edges of float.
#include "kernels/loss.h"

#include <omp.h>

#include "test.h"

static double reference(const double* x, int label, int n) {
    double most = -INFINITY, sum = 0;
    for (int i = 0; i < n; i++) most = fmax(most, x[i]);
    for (int i = 0; i < n; i++) sum += exp(x[i] - most);
    return most + log(sum) - x[label];
}

static void test_rows(int b, int n, double size, float scale) {
    float *logits = test_array((size_t)b * n), *dlogits = test_array((size_t)b * n), *losses = test_array(b), *evaluated = test_array(b);
    int *labels = malloc(b * sizeof(int)), *correct = malloc(b * sizeof(int));
    for (int i = 0; i < b * n; i++) logits[i] *= size;
    for (int s = 0; s < b; s++) labels[s] = test_int(0, n - 1);
    cross_entropy(losses, correct, dlogits, logits, labels, scale, b, n);
    cross_entropy(evaluated, correct, NULL, logits, labels, scale, b, n);
    CHECK(memcmp(losses, evaluated, b * sizeof(float)) == 0, "losses without dlogits");
    double* x = malloc(n * sizeof *x);
    for (int s = 0; s < b; s++) {
        int best = 0;
        for (int i = 0; i < n; i++) {
            x[i] = logits[(size_t)s * n + i];
            if (x[i] > x[best]) best = i;
        }
        double loss = reference(x, labels[s], n);
        CHECK(fabs(losses[s] - loss) < 1e-6 * (1 + loss), "loss %g, not %g (n %d)", losses[s], loss, n);
        CHECK(correct[s] == (best == labels[s]), "correct (n %d)", n);
        for (int i = 0; i < n; i++) {
            double h = 1e-4, at = x[i], sides[2];
            for (int side = 0; side < 2; side++) {
                x[i] = side ? at - h : at + h;
                sides[side] = reference(x, labels[s], n);
            }
            x[i] = at;
            double expected = scale * (sides[0] - sides[1]) / (2 * h), got = dlogits[(size_t)s * n + i];
            CHECK(fabs(got - expected) < 1e-6 * fabs(scale), "dlogits %g, not %g (b %d n %d)", got, expected, b, n);
        }
    }
    free(x), free(logits), free(losses), free(dlogits), free(evaluated), free(labels), free(correct);
}

static void test_edges(void) {
    const float logits[] = {
        3e38f, -3e38f, 0,           // no overflow: certain and right
        -1000, 1000, 1000,          // a tie: the first of the largest counts
        -1000, 1000, 1000,
        -INFINITY, 0, 0,            // a masked class
        NAN, 0, 0,                  // must show, so that the trainer stops
    };
    const int labels[] = {0, 1, 2, 1, 1};
    float losses[5], dlogits[15];
    int correct[5];
    cross_entropy(losses, correct, dlogits, logits, labels, 1, 5, 3);
    CHECK(losses[0] == 0 && correct[0] && dlogits[0] == 0 && dlogits[1] == 0, "certain: loss %g", losses[0]);
    CHECK(correct[1] == 1 && correct[2] == 0, "ties: %d %d", correct[1], correct[2]);
    CHECK(fabs(losses[1] - log(2)) < 1e-6, "tie: loss %g", losses[1]);
    CHECK(fabs(dlogits[4] + 0.5) < 1e-6 && fabs(dlogits[5] - 0.5) < 1e-6, "tie: gradient %g %g", dlogits[4], dlogits[5]);
    CHECK(fabs(losses[3] - log(2)) < 1e-6 && dlogits[9] == 0, "masked: loss %g", losses[3]);
    CHECK(isnan(losses[4]), "NaN: loss %g", losses[4]);

    const float sure[] = {20, 0};   // 1 - softmax is 2.06e-9, lost if the softmax is rounded to float first
    cross_entropy(losses, correct, dlogits, sure, (int[]){0}, 1, 1, 2);
    CHECK(fabs(losses[0] / exp(-20) - 1) < 1e-6, "sure: loss %g", losses[0]);
    CHECK(fabs(dlogits[0] / exp(-20) + 1) < 1e-6, "sure: gradient %g", dlogits[0]);
}

static void test_squared_error(void) {
    enum { B = 13 };
    float *y = test_array(B), *target = test_array(B), losses[B], dy[B], only[B];
    squared_error(losses, dy, y, target, 0.25f, B);
    squared_error(only, NULL, y, target, 0, B);
    for (int s = 0; s < B; s++) {
        double e = (double)y[s] - target[s], h = 1e-3, slope = ((e + h) * (e + h) - (e - h) * (e - h)) / (2 * h);
        CHECK(fabs(losses[s] - e * e) < 1e-6 && only[s] == losses[s], "loss %g, not %g", losses[s], e * e);
        CHECK(fabs(dy[s] - 0.25 * slope) < 1e-6, "gradient %g, not %g", dy[s], 0.25 * slope);
    }
    free(y), free(target);
}

static void test_threads(void) {
    enum { B = 17, N = 101 };
    float *logits = test_array(B * N), *out[2] = {test_array(B * N + B), test_array(B * N + B)};
    int labels[B], correct[B];
    for (int s = 0; s < B; s++) labels[s] = test_int(0, N - 1);
    for (int threads = 1; threads <= 3; threads++) {
        float* to = out[threads > 1];
        omp_set_num_threads(threads);
        cross_entropy(to + B * N, correct, to, logits, labels, 0.1f, B, N);
        CHECK(threads == 1 || memcmp(out[0], out[1], (B * N + B) * sizeof(float)) == 0, "%d threads", threads);
    }
    omp_set_num_threads(2);
    free(logits), free(out[0]), free(out[1]);
}

int main(void) {
    omp_set_num_threads(2);
    test_rows(1, 1, 1, 1);
    test_rows(5, 2, 3, 0.125f);
    test_rows(17, 10, 10, 1.0f / 17);
    test_rows(3, 1009, 30, 2);
    test_edges();
    test_squared_error();
    test_threads();
    TEST_END();
}
