/* Algorithms 2 and 3 of lange2022 for one layer on a CPU: every number is read from memory once.
   `c_kernels.py` compiles this file twice, with T as float and as double. */
#include <stddef.h>

#define STRIP 256 /* columns, and */
#define ROWS 32   /* rows that stay in the first cache */
#define PLANE 4096

/* Merge a part of `count` values with mean m and sum of squared distances s into one of `before` values. */
static inline void merge(T *mean, T *squares, double before, T m, T s, double count) {
    T delta = m - *mean;
    *mean += delta * (T)(count / (before + count));
    *squares += s + delta * delta * (T)(before * count / (before + count));
}

/* Mean and biased variance of each column of x, (rows, columns). */
static void of_columns(const T *x, long rows, long columns, T *mean, T *variance, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (long left = 0; left < columns; left += STRIP) {
        long width = columns - left < STRIP ? columns - left : STRIP;
        T total[STRIP], squares[STRIP], m[STRIP], s[STRIP];
        for (long c = 0; c < width; c++) m[c] = s[c] = 0;
        for (long top = 0; top < rows; top += ROWS) {
            long height = rows - top < ROWS ? rows - top : ROWS;
            const T *block = x + top * columns + left;
            /* about the mean of the rows above: so close that no digits cancel */
            if (top == 0)
                for (long c = 0; c < width; c++) m[c] = block[c];
            for (long c = 0; c < width; c++) total[c] = squares[c] = 0;
            for (long r = 0; r < height; r++) {
                for (long c = 0; c < width; c += 64 / (long)sizeof(T))
                    __builtin_prefetch(block + (r + ROWS) * columns + c);
                for (long c = 0; c < width; c++) {
                    T d = block[r * columns + c] - m[c];
                    total[c] += d;
                    squares[c] += d * d;
                }
            }
            T all = (T)(top + height);
            for (long c = 0; c < width; c++) {
                T shift = total[c] / all;
                s[c] += squares[c] - total[c] * shift;
                m[c] += shift;
            }
        }
        for (long c = 0; c < width; c++) {
            mean[left + c] = m[c];
            variance[left + c] = s[c] / (T)rows;
        }
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
                merge(&m, &s, before, total, squares, (double)count);
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
