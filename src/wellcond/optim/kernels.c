/* Algorithms 2 and 3 of lange2022 for one layer on a CPU: every number is read from memory once.
   `c_kernels.py` compiles this file twice, with T as float and as double. */
#include <stddef.h>

#define PLANE 4096

/* Merge a part of `count` values with mean m and sum of squared distances s into one of `before` values. */
static inline void merge(T *mean, T *squares, T m, T s, T part, T spread) {
    T delta = m - *mean;
    *mean += delta * part;
    *squares += s + delta * delta * spread;
}

/* Columns `left` to `right` of 8 rows, merged into those of the `before` rows above. */
static void add_8_rows(const T *x, long stride, double before, long left, long right, T *restrict mean,
                       T *restrict squares) {
    const T *x0 = x, *x1 = x0 + stride, *x2 = x1 + stride, *x3 = x2 + stride;
    const T *x4 = x3 + stride, *x5 = x4 + stride, *x6 = x5 + stride, *x7 = x6 + stride;
    T part = (T)(8 / (before + 8)), spread = (T)(8 * before / (before + 8));
    for (long c = left; c < right; c++) {
        T m = ((x0[c] + x1[c]) + (x2[c] + x3[c]) + ((x4[c] + x5[c]) + (x6[c] + x7[c]))) * (T)0.125;
        T d0 = x0[c] - m, d1 = x1[c] - m, d2 = x2[c] - m, d3 = x3[c] - m;
        T d4 = x4[c] - m, d5 = x5[c] - m, d6 = x6[c] - m, d7 = x7[c] - m;
        T s = (d0 * d0 + d1 * d1) + (d2 * d2 + d3 * d3) + ((d4 * d4 + d5 * d5) + (d6 * d6 + d7 * d7));
        merge(mean + c, squares + c, m, s, part, spread);
    }
}

static void add_row(const T *x, double before, long left, long right, T *restrict mean, T *restrict squares) {
    T part = (T)(1 / (before + 1)), spread = (T)(before / (before + 1));
    for (long c = left; c < right; c++) merge(mean + c, squares + c, x[c], 0, part, spread);
}

/* Mean and biased variance of each column of x, (rows, columns). */
static void of_columns(const T *x, long rows, long columns, T *mean, T *variance, int threads) {
    long width = (columns + threads - 1) / threads;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (long left = 0; left < columns; left += width) {
        long right = columns - left < width ? columns : left + width, top = 0;
        for (long c = left; c < right; c++) mean[c] = variance[c] = 0;
        for (; top + 8 <= rows; top += 8)
            add_8_rows(x + top * columns, columns, (double)top, left, right, mean, variance);
        for (; top < rows; top++) add_row(x + top * columns, (double)top, left, right, mean, variance);
        for (long c = left; c < right; c++) variance[c] /= (T)rows;
    }
}

/* The same for channels: x is (examples, columns, positions). */
static void of_channels(const T *x, long examples, long columns, long positions, T *mean, T *variance, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (long c = 0; c < columns; c++) {
        T m = 0, s = 0;
        double before = 0;
        for (long n = 0; n < examples; n++)
            for (long begin = 0; begin < positions; begin += PLANE) {
                long count = positions - begin < PLANE ? positions - begin : PLANE;
                const T *plane = x + (n * columns + c) * positions + begin;
                T total = 0, squares = 0;
                for (long p = 0; p < count; p++) total += plane[p];
                total /= (T)count;
                for (long p = 0; p < count; p++) squares += (plane[p] - total) * (plane[p] - total);
                double part = (double)count / (before + (double)count);
                merge(&m, &s, total, squares, (T)part, (T)(before * part));
                before += (double)count;
            }
        mean[c] = m;
        variance[c] = s / (T)before;
    }
}

void moments(const T *x, long examples, long columns, long positions, T *mean, T *variance, int threads) {
    if (positions == 1) of_columns(x, examples, columns, mean, variance, threads);
    else of_channels(x, examples, columns, positions, mean, variance, threads);
}

/* Steps 2 to 5. `weight` is 1 - rho; without G_w the statistics and scales are all that is written. */
void step(T *mean, T *variance, const T *batch_mean, const T *batch_variance, T *scale, T *weight_gradient,
          T *bias_gradient, long groups, long columns, long repeats, long outputs, double weight, double q2, double eps1,
          double eps2, int threads) {
    for (long g = 0; g < groups; g++) {
        T *m = mean + g * columns, *v = variance + g * columns, *s = scale + g * columns, largest = 0;
        const T *bm = batch_mean + g * columns, *bv = batch_variance + g * columns;
        for (long c = 0; c < columns; c++) {
            m[c] += (T)weight * (bm[c] - m[c]);
            v[c] += (T)weight * (bv[c] - v[c]);
            largest = v[c] > largest ? v[c] : largest;
        }
        T damping = (T)eps1 * largest + (T)eps2;
        for (long c = 0; c < columns; c++) s[c] = 1 / ((T)q2 * (v[c] + damping));
    }
    if (!weight_gradient) return;
    long fan_in = columns * repeats;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (long row = 0; row < groups * outputs; row++) {
        const T *m = mean + row / outputs * columns, *s = scale + row / outputs * columns;
        T *gradient = weight_gradient + row * fan_in, bias = bias_gradient ? bias_gradient[row] : 0, total = 0;
        if (repeats == 1)
            for (long c = 0; c < columns; c++) {
                gradient[c] = (gradient[c] - bias * m[c]) * s[c];
                total += gradient[c] * m[c];
            }
        else
            for (long c = 0; c < columns; c++)
                for (long r = 0; r < repeats; r++) {
                    T *entry = gradient + c * repeats + r;
                    *entry = (*entry - bias * m[c]) * s[c];
                    total += *entry * m[c];
                }
        if (bias_gradient) bias_gradient[row] = bias / (T)q2 - total;
    }
}
