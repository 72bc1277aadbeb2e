/* One pass over memory, in one parallel region, for a whole list of tensors.

   torch's kernels process a list tensor by tensor and wake their threads for each one.
   Here all tensors form one long sequence of elements, divided among the threads.

   Compiled once per element type, with REAL as float or double. A table holds addresses
   column by column: all weights, then the next column, and so on; the last column holds
   the numbers of elements. Contraction of products and sums is off, so results depend
   neither on the compiler nor on the number of threads. */

#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <string.h>
#ifdef __AVX__
#include <immintrin.h>
#endif

#define SQRT(x) (sizeof(REAL) == 4 ? (REAL)sqrtf((float)(x)) : (REAL)sqrt((double)(x)))
#define SMALL 16384 /* elements: up to here, waking a second thread costs more than it saves */
#define LARGE (1 << 24) /* bytes: beyond this, written data leaves the caches before it is read */

/* Calls BODY for every part of every tensor, with its `row`, its offset in the tensor
   (`at`) and its `count` of elements; each thread takes an equal share of all elements.
   Parts begin at multiples of 64 elements, for alignment with vectors and cache lines.
   SIZES is the column of the numbers of elements. */
#define FOR_EACH_PART(SIZES, ROWS, THREADS, BODY)                                      \
    do {                                                                               \
        const int64_t *sizes_ = (SIZES);                                               \
        int64_t total_ = 0;                                                            \
        for (int64_t row = 0; row < (ROWS); row++) total_ += sizes_[row];              \
        const int threads_ = total_ <= SMALL ? 1 : (THREADS);                          \
        if (threads_ == 1) { /* without OpenMP, which takes as long as a small model */\
            PARTS_OF_THREAD(0, 1, ROWS, BODY)                                          \
        } else                                                                         \
            _Pragma("omp parallel num_threads(threads_)")                              \
            PARTS_OF_THREAD(omp_get_thread_num(), omp_get_num_threads(), ROWS, BODY)   \
    } while (0)

#define PARTS_OF_THREAD(THREAD, THREADS, ROWS, ...)                                    \
    {                                                                                  \
        const int64_t share_ = total_ / (THREADS) + 1;                                 \
        const int64_t first_ = (THREAD) * share_;                                      \
        int64_t before_ = 0;                                                           \
        for (int64_t row = 0; row < (ROWS) && before_ < first_ + share_; row++) {      \
            const int64_t at = cut(first_ - before_, sizes_[row]);                     \
            const int64_t end_ = cut(first_ + share_ - before_, sizes_[row]);          \
            const int64_t count = end_ - at;                                           \
            if (count > 0) __VA_ARGS__;                                                \
            before_ += sizes_[row];                                                    \
        }                                                                              \
    }

static inline int64_t cut(int64_t at, int64_t size) {
    return at <= 0 ? 0 : at >= size ? size : at & ~(int64_t)63;
}

/* Distinguishes the libraries for float and double. */
int element_size(void) { return sizeof(REAL); }

/* Prefetches cache lines all at once, so the next reader does not wait for each of them.
   Prefetching an address that is no longer valid does no harm. */
void fetch(const int64_t *lines, int64_t count, int threads) {
    for (int64_t i = 0; i < count; i++) __builtin_prefetch((const void *)lines[i]);
    (void)threads;
}

#define COLUMN(k) ((REAL *)table[(k) * rows + row] + at)

/* x - x is 0 if x is finite, and NaN otherwise. */
#define IS_FINITE(x) ((x) - (x) == 0)

/* Returns whether all results are finite: while memory is the limit, this costs nothing. */
static int lerp_part(REAL *restrict shadow, const REAL *restrict live, int64_t count,
                     REAL weight) {
    int is_finite = 1;
    if (weight < (REAL)0.5)
        for (int64_t i = 0; i < count; i++) {
            shadow[i] += weight * (live[i] - shadow[i]);
            is_finite &= IS_FINITE(shadow[i]);
        }
    else /* this form is exact for weight 1 */
        for (int64_t i = 0; i < count; i++) {
            shadow[i] = live[i] - (live[i] - shadow[i]) * (1 - weight);
            is_finite &= IS_FINITE(shadow[i]);
        }
    return is_finite;
}

#define NOTE(IS_FINITE_PART)                                        \
    if (!(IS_FINITE_PART)) {                                        \
        _Pragma("omp atomic write") is_finite = 0;                  \
    }

/* shadow += weight * (live - shadow); columns: shadow, live, sizes. Returns whether all
   results are finite. */
int lerp(const int64_t *table, int64_t rows, int threads, double weight) {
    int is_finite = 1;
    FOR_EACH_PART(table + 2 * rows, rows, threads,
                  { NOTE(lerp_part(COLUMN(0), COLUMN(1), count, (REAL)weight)) });
    return is_finite;
}

/* The same, but shadow = live where either is not finite: the infinities of a mask would
   become NaN (inf - inf). */
static void lerp_finite_part(REAL *restrict shadow, const REAL *restrict live, int64_t count,
                             REAL weight) {
    for (int64_t i = 0; i < count; i++) {
        const REAL moved = weight < (REAL)0.5
                               ? shadow[i] + weight * (live[i] - shadow[i])
                               : live[i] - (live[i] - shadow[i]) * (1 - weight);
        /* 0 * x is 0 if x is finite, and NaN otherwise. */
        shadow[i] = 0 * shadow[i] + 0 * live[i] == 0 ? moved : live[i];
    }
}

void lerp_finite(const int64_t *table, int64_t rows, int threads, double weight) {
    FOR_EACH_PART(table + 2 * rows, rows, threads,
                  lerp_finite_part(COLUMN(0), COLUMN(1), count, (REAL)weight));
}

/* A bfloat16 is the upper half of a float. */
typedef union {
    float value;
    uint32_t bits;
} Wide;

static inline float widen(uint16_t half) {
    const Wide wide = {.bits = (uint32_t)half << 16};
    return wide.value;
}

/* Rounds up if the discarded bits plus the threshold overflow. NaN and infinity stay as
   they are: adding to their bits could produce finite numbers. */
static inline uint16_t narrow(float value, uint32_t threshold) {
    const Wide wide = {.value = value};
    const uint32_t is_finite = (wide.bits & 0x7f800000u) != 0x7f800000u;
    return (uint16_t)((wide.bits + (is_finite ? threshold & 0xffffu : 0)) >> 16);
}

static inline float mixed(float shadow, float live, float weight) {
    return weight < 0.5f ? shadow + weight * (live - shadow)
                         : live - (live - shadow) * (1 - weight);
}

static int widened_part(float *restrict shadow, const uint16_t *restrict live, int64_t count,
                        float weight) {
    int is_finite = 1;
    for (int64_t i = 0; i < count; i++) {
        shadow[i] = mixed(shadow[i], widen(live[i]), weight);
        is_finite &= IS_FINITE(shadow[i]);
    }
    return is_finite;
}

/* Averages bfloat16 weights in a float shadow; columns: shadow, live, sizes. Returns
   whether all results are finite. */
int lerp_widened(const int64_t *table, int64_t rows, int threads, double weight) {
    int is_finite = 1;
    FOR_EACH_PART(table + 2 * rows, rows, threads,
                  { NOTE(widened_part((float *)table[row] + at,
                                      (const uint16_t *)table[rows + row] + at, count,
                                      (float)weight)) });
    return is_finite;
}

typedef struct {
    double weight;
    int64_t phases, period, offset, live_is_half;
} Dither;

static void dithered_part(uint16_t *restrict shadow, const void *restrict live, int64_t count,
                          const int32_t *restrict phases, const Dither *numbers) {
    const float weight = (float)numbers->weight, *wide = live;
    const uint16_t *half = live;
    const uint32_t offset = (uint32_t)numbers->offset;
    if (numbers->live_is_half)
        for (int64_t i = 0; i < count; i++)
            shadow[i] = narrow(mixed(widen(shadow[i]), widen(half[i]), weight),
                               (uint32_t)phases[i] + offset);
    else
        for (int64_t i = 0; i < count; i++)
            shadow[i] = narrow(mixed(widen(shadow[i]), wide[i], weight),
                               (uint32_t)phases[i] + offset);
}

/* Averages float or bfloat16 weights in a bfloat16 shadow, rounded by thresholds that
   change with the step; columns: shadow, live, sizes. */
void lerp_dithered(const int64_t *table, int64_t rows, int threads, const Dither *numbers) {
    const int64_t period = numbers->period, width = numbers->live_is_half ? 2 : 4;
    const int32_t *phases = (const int32_t *)numbers->phases;
#define DITHER                                                                           \
    for (int64_t done = 0; done < count;) {                                              \
        const int64_t here = at + done, phase = here % period;                           \
        const int64_t left = count - done, run = period - phase;                         \
        const int64_t some = run < left ? run : left;                                    \
        dithered_part((uint16_t *)table[row] + here,                                     \
                      (const char *)table[rows + row] + here * width, some,              \
                      phases + phase, numbers);                                          \
        done += some;                                                                    \
    }
    FOR_EACH_PART(table + 2 * rows, rows, threads, { DITHER });
}

#define BYTES(k) ((char *)table[(k) * rows + row] + at)

static int64_t sum(const int64_t *sizes, int64_t rows) {
    int64_t total = 0;
    for (int64_t row = 0; row < rows; row++) total += sizes[row];
    return total;
}

/* Copies with non-temporal stores, which avoids reading the lines that are written.
   Alternates between two places: a single stream does not saturate the memory. */
static void stream_part(char *restrict target, const char *restrict source, int64_t count) {
    int64_t done = 0;
#ifdef __AVX__
    const int64_t head = -(intptr_t)target & 31;
    if (head + 512 <= count) {
        const int64_t half = (count - head) / 2 & ~(int64_t)255;
        memcpy(target, source, head);
        for (int64_t i = head; i < head + half; i += 256)
            for (int place = 0; place < 2; place++)
                for (int j = 0; j < 256; j += 32) {
                    const int64_t at = place * half + i + j;
                    const __m256i value = _mm256_loadu_si256((const __m256i *)(source + at));
                    _mm256_stream_si256((__m256i *)(target + at), value);
                }
        _mm_sfence();
        done = head + 2 * half;
    }
#endif
    memcpy(target + done, source + done, count - done);
}

/* target = source, of any type; columns: target, source, sizes in bytes. */
void copy(const int64_t *table, int64_t rows, int threads) {
    const int64_t *sizes = table + 2 * rows;
    if (sum(sizes, rows) > LARGE)
        FOR_EACH_PART(sizes, rows, threads, stream_part(BYTES(0), BYTES(1), count));
    else
        FOR_EACH_PART(sizes, rows, threads, memcpy(BYTES(0), BYTES(1), count));
}

static void exchange_part(char *restrict a, char *restrict b, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        const char kept = a[i];
        a[i] = b[i];
        b[i] = kept;
    }
}

/* Exchanges two columns of any type; the third holds the sizes in bytes. */
void exchange(const int64_t *table, int64_t rows, int threads, int64_t *done) {
    FOR_EACH_PART(table + 2 * rows, rows, threads,
                  exchange_part(BYTES(0), BYTES(1), count));
    *done = 1;
}

/* Writes bfloat16 averages into float weights, and saves the weights: their upper halves
   where the averages were, their lower halves in a third column. */
static void split_part(uint32_t *restrict weight, uint16_t *restrict average,
                       uint16_t *restrict lower, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        const uint32_t kept = weight[i];
        weight[i] = (uint32_t)average[i] << 16;
        average[i] = (uint16_t)(kept >> 16);
        lower[i] = (uint16_t)kept;
    }
}

/* Undoes split_part; an average changed in between is rounded to nearest. */
static void join_part(uint32_t *restrict weight, uint16_t *restrict average,
                      const uint16_t *restrict lower, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        const uint32_t shown = weight[i];
        const uint32_t is_finite = (shown & 0x7f800000u) != 0x7f800000u;
        const uint32_t nearest = (shown + 0x7fffu + (shown >> 16 & 1)) >> 16;
        weight[i] = (uint32_t)average[i] << 16 | lower[i];
        average[i] = (uint16_t)(is_finite ? nearest
                                          : shown >> 16 | ((shown & 0xffffu) != 0));
    }
}

#define HALVES(k) ((uint16_t *)table[(k) * rows + row] + at)

/* Columns: weights, averages, lower halves, sizes. */
void split(const int64_t *table, int64_t rows, int threads, int64_t *is_split) {
    FOR_EACH_PART(table + 3 * rows, rows, threads,
                  split_part((uint32_t *)table[row] + at, HALVES(1), HALVES(2), count));
    *is_split = 1;
}

void join(const int64_t *table, int64_t rows, int threads, int64_t *is_split) {
    FOR_EACH_PART(table + 3 * rows, rows, threads,
                  join_part((uint32_t *)table[row] + at, HALVES(1), HALVES(2), count));
    *is_split = 0;
}

/* Reads four streams, as stream_part reads two. */
static int is_finite_part(const REAL *restrict values, int64_t count) {
    const int64_t quarter = count / 4;
    const REAL *restrict b = values + quarter;
    const REAL *restrict c = b + quarter;
    const REAL *restrict d = c + quarter;
    int is_finite = 1;
    for (int64_t i = 0; i < quarter; i++)
        is_finite &= (values[i] - values[i]) + (b[i] - b[i]) + (c[i] - c[i])
                     + (d[i] - d[i]) == 0;
    for (int64_t i = 4 * quarter; i < count; i++) is_finite &= IS_FINITE(values[i]);
    return is_finite;
}

/* Returns the first row with a NaN or an infinity, or -1; columns: values, sizes. */
int64_t first_non_finite(const int64_t *table, int64_t rows, int threads) {
    int64_t found = rows;
#define LOOK                                                   \
    if (!is_finite_part(COLUMN(0), count)) {                   \
        _Pragma("omp critical") if (row < found) found = row;  \
    }
    FOR_EACH_PART(table + rows, rows, threads, { LOOK });
    return found == rows ? -1 : found;
}

/* Parameters of an optimizer; calls.py declares the same fields in the same order. */
typedef struct {
    double rate, decay, momentum, dampening, sign, share;
    int64_t has_momentum, is_nesterov;
} Sgd;

static void sgd_part(REAL *restrict weight, const REAL *restrict gradient,
                     REAL *restrict velocity, REAL *restrict shadow, int64_t count,
                     const Sgd *numbers) {
    const REAL rate = numbers->rate, decay = numbers->decay, share = numbers->share;
    const REAL momentum = numbers->momentum, fresh = 1 - numbers->dampening;
    const REAL sign = numbers->sign;
    if (!numbers->has_momentum)
        for (int64_t i = 0; i < count; i++) {
            const REAL slope = sign * gradient[i] + decay * weight[i];
            const REAL now = weight[i] - rate * slope;
            shadow[i] += share * (now - shadow[i]);
            weight[i] = now;
        }
    else if (numbers->is_nesterov)
        for (int64_t i = 0; i < count; i++) {
            const REAL slope = sign * gradient[i] + decay * weight[i];
            const REAL speed = momentum * velocity[i] + fresh * slope;
            const REAL now = weight[i] - rate * (slope + momentum * speed);
            shadow[i] += share * (now - shadow[i]);
            weight[i] = now;
            velocity[i] = speed;
        }
    else
        for (int64_t i = 0; i < count; i++) {
            const REAL slope = sign * gradient[i] + decay * weight[i];
            const REAL speed = momentum * velocity[i] + fresh * slope;
            const REAL now = weight[i] - rate * speed;
            shadow[i] += share * (now - shadow[i]);
            weight[i] = now;
            velocity[i] = speed;
        }
}

/* Columns: weight, gradient, velocity (if momentum), shadow, sizes. */
void sgd(const int64_t *table, int64_t rows, int threads, const Sgd *numbers) {
    const int with = numbers->has_momentum != 0;
    FOR_EACH_PART(table + (3 + with) * rows, rows, threads,
                  sgd_part(COLUMN(0), COLUMN(1), with ? COLUMN(2) : 0, COLUMN(2 + with),
                           count, numbers));
}

typedef struct {
    double rate, beta1, beta2, epsilon, decay, sign, share;
    int64_t is_decoupled;
} Adam;

static void adam_part(REAL *restrict weight, const REAL *restrict gradient,
                      REAL *restrict mean, REAL *restrict square, REAL *restrict shadow,
                      int64_t count, double step, const Adam *numbers) {
    const REAL new_mean = 1 - numbers->beta1, old_square = numbers->beta2;
    const REAL new_square = 1 - numbers->beta2, epsilon = numbers->epsilon;
    const REAL size = numbers->rate / (1 - pow(numbers->beta1, step));
    const REAL scale = 1 / sqrt(1 - pow(numbers->beta2, step));
    const REAL keep = numbers->is_decoupled ? 1 - numbers->rate * numbers->decay : 1;
    const REAL pull = numbers->is_decoupled ? 0 : numbers->decay;
    const REAL sign = numbers->sign, share = numbers->share;
    for (int64_t i = 0; i < count; i++) {
        const REAL slope = sign * gradient[i] + pull * weight[i];
        const REAL mean_now = mean[i] + new_mean * (slope - mean[i]);
        const REAL square_now = old_square * square[i] + new_square * slope * slope;
        const REAL root = SQRT(square_now) * scale + epsilon;
        const REAL now = keep * weight[i] - size * mean_now / root;
        shadow[i] += share * (now - shadow[i]);
        weight[i] = now;
        mean[i] = mean_now;
        square[i] = square_now;
    }
}

/* Columns: weight, gradient, mean, square, shadow, step (a float, incremented here), sizes. */
void adam(const int64_t *table, int64_t rows, int threads, const Adam *numbers) {
    for (int64_t row = 0; row < rows; row++) *(float *)table[5 * rows + row] += 1;
    FOR_EACH_PART(table + 6 * rows, rows, threads,
                  adam_part(COLUMN(0), COLUMN(1), COLUMN(2), COLUMN(3), COLUMN(4), count,
                            *(const float *)table[5 * rows + row], numbers));
}
