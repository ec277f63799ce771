// What GLUE measures (Wang et al., 2019), from predictions and labels.
#ifndef PREBR_METRICS_H
#define PREBR_METRICS_H

#include "trouble.h"

C_BEGIN

// A metric of data/tokens.h by its name: accuracy, f1 (of class 1), matthews over classes; pearson, spearman (equal values share their mean
// rank) over numbers. predicted and truth [n] hold classes or numbers. Where a metric is not defined (nobody of class 1, a constant
// column) it is 0.
double metric_of(const char* name, const double* predicted, const double* truth, int n);

C_END

#endif
