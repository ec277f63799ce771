// Token embeddings against loops in double; the gradient of a table, which is linear, against central differences of them; duplicates and
// bits for 1, 2, 3 threads.
#include "kernels/token_embed.h"

#include "test.h"

static void reference(double* y, double* const table[3], const int* ids, const int* types, int b, int t, int c) {
    for (int i = 0; i < b * t; i++)
        for (int k = 0; k < c; k++) y[i * c + k] = table[0][ids[i] * c + k] + table[1][i % t * c + k] + table[2][types[i] * c + k];
}

static double loss_of(double* y, double* const table[3], const int* ids, const int* types, const float* dy, int b, int t, int c) {
    double sum = 0;
    reference(y, table, ids, types, b, t, c);
    for (int i = 0; i < b * t * c; i++) sum += y[i] * dy[i];
    return sum;
}

static void test_shape(int b, int t, int c, int vocabulary, int positions, int kinds, float beta) {
    int rows[3] = {vocabulary, positions, kinds}, *ids = malloc((size_t)(b * t) * sizeof *ids), *types = malloc((size_t)(b * t) * sizeof *types);
    float *table[3], *gradient[3], *y = test_array((size_t)(b * t * c)), *dy = test_array((size_t)(b * t * c));
    double *wide[3], *before[3], *expected = malloc((size_t)(b * t * c) * sizeof *expected);
    for (int i = 0; i < b * t; i++) {
        ids[i] = test_int(0, vocabulary - 1);
        types[i] = test_int(0, kinds - 1);
    }
    for (int a = 0; a < 3; a++) {
        size_t n = (size_t)(rows[a] * c);
        table[a] = test_array(n);
        gradient[a] = test_array(n);
        wide[a] = malloc(n * sizeof(double));
        before[a] = malloc(n * sizeof(double));
        for (size_t i = 0; i < n; i++) {
            wide[a][i] = table[a][i];
            before[a][i] = gradient[a][i];
            if (beta == 0) gradient[a][i] = NAN;
        }
    }
    token_embed_forward(y, table[0], table[1], table[2], ids, types, b, t, c);
    reference(expected, wide, ids, types, b, t, c);
    CHECK(test_difference(y, expected, (size_t)(b * t * c)) < 1e-6, "forward, b %d t %d c %d", b, t, c);

    token_embed_backward(gradient[0], gradient[1], gradient[2], dy, ids, types, beta, b, t, c, vocabulary, positions, kinds);
    for (int a = 0; a < 3; a++)
        for (int probe = 0; probe < 40; probe++) {
            int i = probe ? test_int(0, rows[a] * c - 1) : rows[a] * c - 1;
            double h = 1e-2, at = wide[a][i], side[2];
            for (int s = 0; s < 2; s++) {
                wide[a][i] = s ? at - h : at + h;
                side[s] = loss_of(expected, wide, ids, types, dy, b, t, c);
            }
            wide[a][i] = at;
            double want = (side[0] - side[1]) / (2 * h) + beta * before[a][i];
            CHECK(fabs(gradient[a][i] - want) < 1e-5 * (1 + fabs(want)), "table %d [%d] = %g, not %g (b %d t %d c %d)", a, i, gradient[a][i], want, b, t, c);
        }
    for (int a = 0; a < 3; a++) free(table[a]), free(gradient[a]), free(wide[a]), free(before[a]);
    free(ids), free(types), free(y), free(dy), free(expected);
}

// Every token the same word: its row is the plain sum of all rows, one after the other. And any number of threads gives these bits.
static void test_order(void) {
    enum { B = 5, T = 31, C = 133, V = 7 };
    int ids[B * T], types[B * T];
    float *dy = test_array(B * T * C), *sum = calloc(C, sizeof *sum), *out[2] = {test_array((V + T + 2) * C), test_array((V + T + 2) * C)};
    for (int i = 0; i < B * T; i++) ids[i] = 4, types[i] = i % 3 == 0;
    for (int i = 0; i < B * T; i++)
        for (int k = 0; k < C; k++) sum[k] += dy[i * C + k];
    for (int threads = 1; threads <= 3; threads++) {
        float* to = out[threads > 1];
        omp_set_num_threads(threads);
        token_embed_backward(to, to + V * C, to + (V + T) * C, dy, ids, types, 0, B, T, C, V, T, 2);
        CHECK(!memcmp(to + 4 * C, sum, sizeof *sum * C), "the order of the sum, %d threads", threads);
        CHECK(threads == 1 || !memcmp(out[0], out[1], sizeof(float) * (V + T + 2) * C), "%d threads", threads);
    }
    float before = out[0][4 * C];
    token_embed_backward(NULL, NULL, out[0] + (V + T) * C, dy, ids, types, 0, B, T, C, V, T, 2);
    CHECK(out[0][4 * C] == before, "a table that does not learn was touched");
    free(dy), free(sum), free(out[0]), free(out[1]);
}

int main(void) {
    test_shape(1, 1, 1, 1, 1, 1, 0);
    test_shape(3, 7, 65, 11, 9, 2, 0);
    test_shape(2, 13, 130, 101, 13, 3, 1);
    test_shape(4, 5, 64, 3, 40, 2, 0);
    test_shape(9, 31, 20, 5, 31, 2, 0);   // words in several chunks of tokens
    test_order();
    TEST_END();
}
