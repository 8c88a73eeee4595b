// Sums over prepared rows in one pass, float32 rows on the grid, everything else in float64.
//
// Scores and sums are exact on their grids, so any order, any fused multiply-add and any launch shape give the same
// bits. A term (slope, cut, rounding) is not a sum on a grid: `term` has IEEE's +, -, *, / one by one, in the order of
// losses/kernels.fill_terms, none fused (__dmul_rn and so on), and so the same bits as there.

// Fixed when the loops are compiled: CODE of the loss, UNIT the sign of the unit of slopes, PICKED whether rows are
// chosen, SHARED whether terms have shares, Label the type of labels, and the shape COLUMNS, ROWS, BLOCKS.

#define MUL __dmul_rn
#define ADD __dadd_rn
#define SUB __dsub_rn
#define DIV __ddiv_rn

enum { SQUARED, HUBER, HINGE, SMOOTHED_HINGE, LOGISTIC, LOGISTIC_EXACT, LOGISTIC_SLOPE, SIGMOID };

__device__ __forceinline__ double clamp(double value, double low, double high)
{
    value = value < low ? low : value;
    return value > high ? high : value;
}

__device__ __forceinline__ double within(double value, double bound)
{
    value = value < bound ? value : bound;
    return value > -bound ? value : -bound;
}

__device__ __forceinline__ double logistic_weight(double t)
{
    t = clamp(t, -690.0, 690.0);
    const double shift = 6755399441055744.0;  // 1.5 * 2^52
    double shifted = ADD(MUL(t, 1.4426950408889634), shift);
    double k = SUB(shifted, shift);
    double r = SUB(SUB(t, MUL(k, 6.93147180369123816490e-01)), MUL(k, 1.90821492927058770002e-10));
    double q = MUL(r, r);
    double even = ADD(30240.0, MUL(q, ADD(3360.0, MUL(q, 30.0))));
    double odd = MUL(r, ADD(15120.0, MUL(q, ADD(420.0, q))));
    double power = __longlong_as_double((__double_as_longlong(shifted) + 1023) << 52);
    double low = SUB(even, odd);
    return DIV(low, ADD(low, MUL(power, ADD(even, odd))));
}

__device__ __forceinline__ double slope(double parameter, double score, double label)
{
    switch (CODE) {
    case SQUARED: return SUB(score, label);
    case HUBER: return clamp(SUB(score, label), -parameter, parameter);
    case HINGE: return MUL(label, floor(clamp(SUB(MUL(label, score), 1.0), -1.0, 0.0)));
    case SMOOTHED_HINGE: return MUL(label, clamp(DIV(SUB(MUL(label, score), 1.0), parameter), -1.0, 0.0));
    case LOGISTIC: return MUL(-label, logistic_weight(MUL(label, score)));
    default: {
        double weight = logistic_weight(fabs(MUL(label, score)));
        return MUL(MUL(-label, weight), SUB(1.0, weight));
    }
    }
}

// numbers: parameter, weights of -1 and +1, unit, bound, 1 / grid, offset
struct Numbers {
    double parameter, low, high, unit, bound, scale, offset;
};

__device__ __forceinline__ double term(const Numbers& numbers, double score, double label, double share)
{
    score = ADD(score, numbers.offset);  // + 0 changes no term
    double found = MUL(slope(numbers.parameter, score, label), label > 0.0 ? numbers.high : numbers.low);
    if (UNIT > 0) {
        found = DIV(found, numbers.unit);
    } else if (UNIT < 0) {
        double theirs = label > 0.0 ? numbers.low : numbers.high;
        double other = fabs(MUL(slope(numbers.parameter, score, -label), theirs)), mine = fabs(found);
        double largest = mine > other ? mine : other;
        found = DIV(found, largest > -numbers.unit ? largest : -numbers.unit);
    }
    double cut = within(found, numbers.bound);
    if (SHARED) cut = MUL(cut, share);
    return MUL(trunc(MUL(cut, numbers.scale)), DIV(1.0, numbers.scale));  // 1 / scale is a power of 2
}

// R rows a warp, K = ceil(width / 32) columns a lane. A transposed reduction leaves the score of row (lane % R) in each
// lane, so that a term is computed once for every R lanes; the sum stays in registers until the end.
extern "C" __global__ void __launch_bounds__(256, BLOCKS) slope_sum_dense(
    const float* __restrict__ rows, const long long* __restrict__ chosen, const Label* __restrict__ labels,
    const double* __restrict__ weights, const double* __restrict__ shares, double* __restrict__ total,
    long long count, int width, Numbers numbers)
{
    const int K = COLUMNS, R = ROWS;
    int lane = threadIdx.x & 31;
    long long warp = (blockIdx.x * (long long)blockDim.x + threadIdx.x) >> 5;
    long long warps = (gridDim.x * (long long)blockDim.x) >> 5;
    double w[K], sum[K];
    #pragma unroll
    for (int k = 0; k < K; k++) {
        int j = lane + 32 * k;
        w[k] = j < width ? weights[j] : 0.0;
        sum[k] = 0.0;
    }
    for (long long first = warp * R; first < count; first += warps * R) {
        float x[R][K];
        double s[R];
        #pragma unroll
        for (int r = 0; r < R; r++) {
            bool there = first + r < count;
            long long place = there ? (PICKED ? chosen[first + r] : first + r) : 0;
            #pragma unroll
            for (int k = 0; k < K; k++) {
                int j = lane + 32 * k;
                x[r][k] = (there && j < width) ? __ldcs(rows + place * width + j) : 0.f;
            }
        }
        long long mine = first + (lane % R);
        double label = mine < count ? (double)labels[mine] : 1.0;
        double share = (SHARED && mine < count) ? shares[mine] : 1.0;
        #pragma unroll
        for (int r = 0; r < R; r++) {
            s[r] = 0.0;
            #pragma unroll
            for (int k = 0; k < K; k++) s[r] += (double)x[r][k] * w[k];
        }
        #pragma unroll
        for (int h = R / 2; h >= 1; h >>= 1) {
            bool up = lane & h;
            #pragma unroll
            for (int r = 0; r < h; r++) {
                double keep = up ? s[r + h] : s[r], give = up ? s[r] : s[r + h];
                s[r] = keep + __shfl_xor_sync(0xffffffffu, give, h);
            }
        }
        double score = s[0];
        #pragma unroll
        for (int other = R; other < 32; other <<= 1) score += __shfl_xor_sync(0xffffffffu, score, other);
        double factor = term(numbers, score, label, share);
        #pragma unroll
        for (int r = 0; r < R; r++) {
            double by = __shfl_sync(0xffffffffu, factor, r);
            #pragma unroll
            for (int k = 0; k < K; k++) sum[k] += by * (double)x[r][k];
        }
    }
    #pragma unroll
    for (int k = 0; k < K; k++) {
        int j = lane + 32 * k;
        if (j < width) atomicAdd(total + j, sum[k]);
    }
}

// A warp a row. The sum of a block of threads is in shared memory where it fits (`near`), else in `total`.
extern "C" __global__ void slope_sum_sparse(
    const long long* starts, const int* columns, const float* entries, const long long* chosen, const Label* labels,
    const double* weights, const double* shares, double* total, long long count, int width, Numbers numbers, int near)
{
    extern __shared__ double block_sum[];
    double* sum = near ? block_sum : total;
    if (near) {
        for (int j = threadIdx.x; j < width; j += blockDim.x) block_sum[j] = 0.0;
        __syncthreads();
    }
    int lane = threadIdx.x & 31;
    long long warp = (blockIdx.x * (long long)blockDim.x + threadIdx.x) >> 5;
    long long warps = (gridDim.x * (long long)blockDim.x) >> 5;
    for (long long row = warp; row < count; row += warps) {
        long long place = PICKED ? chosen[row] : row, stop = starts[place + 1];
        double score = 0.0;
        for (long long k = starts[place] + lane; k < stop; k += 32) score += (double)entries[k] * weights[columns[k]];
        for (int other = 16; other >= 1; other >>= 1) score += __shfl_xor_sync(0xffffffffu, score, other);
        double factor = term(numbers, score, (double)labels[row], SHARED ? shares[row] : 1.0);
        if (factor != 0.0)
            for (long long k = starts[place] + lane; k < stop; k += 32)
                atomicAdd(sum + columns[k], factor * (double)entries[k]);
    }
    if (near) {
        __syncthreads();
        for (int j = threadIdx.x; j < width; j += blockDim.x) atomicAdd(total + j, block_sum[j]);
    }
}

extern "C" __global__ void terms(
    const double* scores, const Label* labels, const double* shares, double* found, long long count, Numbers numbers)
{
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < count; i += gridDim.x * (long long)blockDim.x)
        found[i] = term(numbers, scores[i], (double)labels[i], SHARED ? shares[i] : 1.0);
}

// |z_i|, squares added in the order of the columns, none fused: on no grid. Dense rows lie column by column.
extern "C" __global__ void lengths_dense(const double* rows, double* found, long long count, int width)
{
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < count; i += gridDim.x * (long long)blockDim.x) {
        double total = 0.0;
        for (int j = 0; j < width; j++) {
            double entry = rows[i + j * count];
            total = ADD(total, MUL(entry, entry));
        }
        found[i] = __dsqrt_rn(total);
    }
}

extern "C" __global__ void lengths_sparse(const long long* starts, const double* entries, double* found, long long count)
{
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < count; i += gridDim.x * (long long)blockDim.x) {
        double total = 0.0;
        for (long long k = starts[i]; k < starts[i + 1]; k++) total = ADD(total, MUL(entries[k], entries[k]));
        found[i] = __dsqrt_rn(total);
    }
}
