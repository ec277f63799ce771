#include "metrics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double accuracy(const double* predicted, const double* truth, int n) {
    int right = 0;
    for (int i = 0; i < n; i++) right += predicted[i] == truth[i];
    return n ? (double)right / n : 0;
}

// Harmonic mean of precision and recall: 2 TP / (2 TP + FP + FN).
static double f1(const double* predicted, const double* truth, int n) {
    int both = 0, said = 0, real = 0;
    for (int i = 0; i < n; i++) {
        said += predicted[i] == 1;
        real += truth[i] == 1;
        both += predicted[i] == 1 && truth[i] == 1;
    }
    return said + real ? 2.0 * both / (said + real) : 0;
}

// For any number of classes (Gorodkin, 2004): the correlation of the two assignments, each a 0/1 column a class.
static double matthews(const double* predicted, const double* truth, int n) {
    int classes = 1;
    for (int i = 0; i < n; i++) {
        if (predicted[i] >= classes) classes = (int)predicted[i] + 1;
        if (truth[i] >= classes) classes = (int)truth[i] + 1;
    }
    double *said = allocate((size_t)classes, sizeof *said), *real = allocate((size_t)classes, sizeof *real), right = 0;
    for (int i = 0; i < n; i++) {
        said[(int)predicted[i]]++;
        real[(int)truth[i]]++;
        right += predicted[i] == truth[i];
    }
    double both = right * n, said_squares = (double)n * n, real_squares = said_squares;
    for (int k = 0; k < classes; k++) {
        both -= said[k] * real[k];
        said_squares -= said[k] * said[k];
        real_squares -= real[k] * real[k];
    }
    free(said);
    free(real);
    return said_squares > 0 && real_squares > 0 ? both / sqrt(said_squares * real_squares) : 0;
}

static double pearson(const double* x, const double* y, int n) {
    double mean_x = 0, mean_y = 0, xx = 0, yy = 0, xy = 0;
    for (int i = 0; i < n; i++) {
        mean_x += x[i] / n;
        mean_y += y[i] / n;
    }
    for (int i = 0; i < n; i++) {
        xx += (x[i] - mean_x) * (x[i] - mean_x);
        yy += (y[i] - mean_y) * (y[i] - mean_y);
        xy += (x[i] - mean_x) * (y[i] - mean_y);
    }
    return xx > 0 && yy > 0 ? xy / sqrt(xx * yy) : 0;
}

typedef struct { double value; int place; } Ranked;

static int by_value(const void* a, const void* b) {
    const Ranked *x = a, *y = b;
    return (x->value > y->value) - (x->value < y->value);
}

static void ranks(double* rank, const double* x, int n) {
    Ranked* r = allocate((size_t)n, sizeof *r);
    for (int i = 0; i < n; i++) r[i] = (Ranked){x[i], i};
    qsort(r, (size_t)n, sizeof *r, by_value);
    for (int first = 0, end; first < n; first = end) {
        for (end = first + 1; end < n && r[end].value == r[first].value; end++) {}
        for (int i = first; i < end; i++) rank[r[i].place] = (first + end + 1) / 2.0;
    }
    free(r);
}

static double spearman(const double* x, const double* y, int n) {
    double *rx = allocate((size_t)n, sizeof *rx), *ry = allocate((size_t)n, sizeof *ry);
    ranks(rx, x, n);
    ranks(ry, y, n);
    double r = pearson(rx, ry, n);
    free(rx);
    free(ry);
    return r;
}

double metric_of(const char* name, const double* predicted, const double* truth, int n) {
    static const struct { const char* name; double (*of)(const double*, const double*, int); } known[] = {
        {"accuracy", accuracy}, {"f1", f1}, {"matthews", matthews}, {"pearson", pearson}, {"spearman", spearman}};
    for (size_t k = 0; k < sizeof known / sizeof *known; k++)
        if (!strcmp(known[k].name, name)) return known[k].of(predicted, truth, n);
    trouble("there is no metric called '%s'", name);
}
