// Sums over prepared rows in one pass, float32 rows on the grid, everything else in float64.
//
// Scores and sums are exact on their grids, so any order, any fused multiply-add and any launch shape give the same
// bits. A term (slope, cut, rounding) is not a sum on a grid: `term` has IEEE's +, -, *, / one by one, in the order of
// losses/kernels.fill_terms, none fused (__dmul_rn and so on), and so the same bits as there.

// Fixed when the loops are compiled: CODE of the loss, UNIT the sign of the unit of slopes, PICKED whether rows are
// chosen, SHARED whether terms have shares, Label the type of labels, the shape COLUMNS, ROWS of a warp's tile, and TILES,
// the even number of tiles of 8 columns that cover a row.

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

// The weights of t and, in `other`, of -t. They share all but the last steps: k and r change their signs and nothing else.
__device__ __forceinline__ double logistic_weights(double t, double* other)
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
    double low = SUB(even, odd), high = ADD(even, odd);
    if (other) *other = DIV(high, ADD(high, MUL(__longlong_as_double(0x7fe0000000000000LL - __double_as_longlong(power)), low)));
    return DIV(low, ADD(low, MUL(power, high)));
}

__device__ __forceinline__ double logistic_weight(double t)
{
    return logistic_weights(t, nullptr);
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

// numbers: parameter, weights of -1 and +1, unit, bound, 1 / grid, offset, grid
struct Numbers {
    double parameter, low, high, unit, bound, scale, offset, back;
};

__device__ __forceinline__ double term(const Numbers& numbers, double score, double label, double share)
{
    score = ADD(score, numbers.offset);  // + 0 changes no term
    double own, opposite;
    if (CODE == LOGISTIC && UNIT < 0) {
        double weight = logistic_weights(MUL(label, score), &opposite);
        own = MUL(-label, weight);
        opposite = MUL(label, opposite);
    } else {
        own = slope(numbers.parameter, score, label);
        opposite = UNIT < 0 ? slope(numbers.parameter, score, -label) : 0.0;
    }
    double found = MUL(own, label > 0.0 ? numbers.high : numbers.low);
    if (UNIT > 0) {
        found = DIV(found, numbers.unit);
    } else if (UNIT < 0) {
        double theirs = label > 0.0 ? numbers.low : numbers.high;
        double other = fabs(MUL(opposite, theirs)), mine = fabs(found);
        double largest = mine > other ? mine : other;
        found = DIV(found, largest > -numbers.unit ? largest : -numbers.unit);
    }
    double cut = within(found, numbers.bound);
    if (SHARED) cut = MUL(cut, share);
    return MUL(trunc(MUL(cut, numbers.scale)), numbers.back);
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define ASYNC 1
#else
#define ASYNC 0
#endif

// Copies to shared memory that run on while a warp computes.
__device__ __forceinline__ void send(float* to, const float* from)
{
#if ASYNC
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from));
#else
    *to = *from;
#endif
}

__device__ __forceinline__ void send_four(float* to, const float* from)
{
#if ASYNC
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from));
#else
    *(float4*)to = *(const float4*)from;
#endif
}

__device__ __forceinline__ void sent()
{
#if ASYNC
    asm volatile("cp.async.commit_group;");
#endif
}

// Until all copies but the last so many groups are there.
template <int LEFT> __device__ __forceinline__ void arrived()
{
#if ASYNC
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
#endif
}

// Rows first, ..., first + R - 1, which lie together, by threads `me` of `all`; behind the last row come zeros. Where
// tiles are no multiples of 16 bytes, entries go one by one.
__device__ __forceinline__ void send_rows(
    float* to, const float* rows, long long first, long long count, int R, int width, int me, int all)
{
    if (first < count) {
        int here = count - first < R ? (int)(count - first) : R, entries = here * width;
        int fours = (R * width) & 3 ? 0 : entries & ~3;
        const float* from = rows + first * width;
        for (int i = 4 * me; i < fours; i += 4 * all) send_four(to + i, from + i);
        for (int i = fours + me; i < entries; i += all) send(to + i, from + i);
        for (int i = entries + me; i < R * width; i += all) to[i] = 0.f;
    }
    sent();
}

__device__ __forceinline__ void send_chosen(
    float* to, const float* rows, const long long* chosen, long long first, long long count, int R, int width, int lane)
{
    for (int r = 0; r < R && first < count; r++) {
        bool there = first + r < count;
        const float* from = rows + (there ? chosen[first + r] : 0) * width;
        for (int j = lane; j < width; j += 32)
            if (there) send(to + r * width + j, from + j);
            else to[r * width + j] = 0.f;
    }
    sent();
}

// Of 2 H numbers in every lane, the sum of number (lane % 2H) over those lanes is left in s[0].
template <int H> __device__ __forceinline__ void fold(double* s, int lane)
{
    bool up = lane & H;
    #pragma unroll
    for (int r = 0; r < H; r++) {
        double keep = up ? s[r + H] : s[r], give = up ? s[r] : s[r + H];
        s[r] = keep + __shfl_xor_sync(0xffffffffu, give, H);
    }
    fold<H / 2>(s, lane);
}

template <> __device__ __forceinline__ void fold<0>(double*, int)
{
}

// R rows are a warp's tile, in shared memory; the next one comes while this one is summed. A lane has the columns
// lane, lane + 32, ...; a transposed reduction leaves the score of row (lane % R) in each lane, so that a term is computed
// once for every R lanes. The sum stays in registers until the end.
extern "C" __global__ void __launch_bounds__(128) slope_sum_dense(
    const float* __restrict__ rows, const long long* __restrict__ chosen, const Label* __restrict__ labels,
    const double* __restrict__ weights, const double* __restrict__ shares, double* __restrict__ total,
    long long count, int width, Numbers numbers)
{
    extern __shared__ __align__(16) float tiles[];
    const int K = COLUMNS, R = ROWS;
    int lane = threadIdx.x & 31, size = (R * width + 3) & ~3;
    float* own = tiles + (threadIdx.x >> 5) * STAGES * size;
    long long warp = (blockIdx.x * (long long)blockDim.x + threadIdx.x) >> 5;
    long long step = ((gridDim.x * (long long)blockDim.x) >> 5) * R;
    double w[K], sum[K];
    #pragma unroll
    for (int k = 0; k < K; k++) {
        int j = lane + 32 * k;
        w[k] = j < width ? weights[j] : 0.0;
        sum[k] = 0.0;
    }
    long long ahead = warp * R;
    #pragma unroll
    for (int s = 0; s < STAGES - 1; s++, ahead += step) {
        if (PICKED) send_chosen(own + s * size, rows, chosen, ahead, count, R, width, lane);
        else send_rows(own + s * size, rows, ahead, count, R, width, lane, 32);
    }
    long long mine = warp * R + lane % R;
    double next_label = mine < count ? (double)labels[mine] : 1.0;
    double next_share = (SHARED && mine < count) ? shares[mine] : 1.0;
    int stage = 0, last = STAGES - 1;
    for (long long first = warp * R; first < count; first += step, ahead += step) {
        if (PICKED) send_chosen(own + last * size, rows, chosen, ahead, count, R, width, lane);
        else send_rows(own + last * size, rows, ahead, count, R, width, lane, 32);
        double label = next_label, share = next_share;
        mine += step;
        next_label = mine < count ? (double)labels[mine] : 1.0;
        if (SHARED) next_share = mine < count ? shares[mine] : 1.0;
        arrived<STAGES - 1>();
        __syncwarp();
        const float* x = own + stage * size + lane;
        double s[R];
        #pragma unroll
        for (int r = 0; r < R; r++) {
            s[r] = 0.0;
            #pragma unroll
            for (int k = 0; k < K; k++)
                if (k + 1 < K || lane + 32 * k < width) s[r] += (double)x[r * width + 32 * k] * w[k];
        }
        fold<R / 2>(s, lane);
        double score = s[0];
        #pragma unroll
        for (int other = R; other < 32; other <<= 1) score += __shfl_xor_sync(0xffffffffu, score, other);
        double factor = term(numbers, score, label, share);
        #pragma unroll
        for (int r = 0; r < R; r++) {
            double by = __shfl_sync(0xffffffffu, factor, r);
            #pragma unroll
            for (int k = 0; k < K; k++)
                if (k + 1 < K || lane + 32 * k < width) sum[k] += by * (double)x[r * width + 32 * k];
        }
        __syncwarp();  // nothing is sent to a tile that a lane still reads
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        last = last + 1 == STAGES ? 0 : last + 1;
    }
    arrived<0>();
    #pragma unroll
    for (int k = 0; k < K; k++) {
        int j = lane + 32 * k;
        if (j < width) atomicAdd(total + j, sum[k]);
    }
}

// Products of matrices by the float64 units: D += A B of 8 x 4 and 4 x 8. A lane has A(lane / 4, lane % 4),
// B(lane % 4, lane / 4) and D(lane / 4, 2 (lane % 4)), D(lane / 4, 2 (lane % 4) + 1).
__device__ __forceinline__ void multiply(double (&d)[2], double a, double b)
{
#if ASYNC
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                 : "+d"(d[0]), "+d"(d[1]) : "d"(a), "d"(b));
#endif
}

// The upper triangle of X'X. A block of threads has GRAM_ROWS rows at once; its warp number w has the rows w and
// TILES - 1 - w of the tiles, so all have as many.
extern "C" __global__ void __launch_bounds__(TILES * 16) gram_dense(
    const float* __restrict__ rows, double* __restrict__ total, long long count, int width)
{
    extern __shared__ __align__(16) float tiles[];
    const int T = TILES, H = TILES / 2, R = GRAM_ROWS;
    int lane = threadIdx.x & 31, low = threadIdx.x >> 5, high = T - 1 - low;
    int size = R * width + 8 * T;  // the last tile of the last row reads on
    double first[T][2], second[T - H][2];
    #pragma unroll
    for (int t = 0; t < T; t++) first[t][0] = first[t][1] = 0.0;
    #pragma unroll
    for (int t = 0; t < T - H; t++) second[t][0] = second[t][1] = 0.0;
    size = (size + 3) & ~3;
    long long step = gridDim.x * (long long)R;
    send_rows(tiles, rows, blockIdx.x * (long long)R, count, R, width, threadIdx.x, blockDim.x);
    int stage = 0;
    for (long long at = blockIdx.x * (long long)R; at < count; at += step) {
        send_rows(tiles + (1 - stage) * size, rows, at + step, count, R, width, threadIdx.x, blockDim.x);
        arrived<1>();
        __syncthreads();
        const float* x = tiles + stage * size + (lane & 3) * width + (lane >> 2);
        for (int r = 0; r < R; r += 4, x += 4 * width) {
            double a = x[8 * low], b = x[8 * high];
            #pragma unroll
            for (int t = 0; t < T; t++) {
                double c = x[8 * t];
                if (t >= low) multiply(first[t], a, c);
                if (t >= H && t >= high) multiply(second[t - H], b, c);
            }
        }
        __syncthreads();
        stage = 1 - stage;
    }
    arrived<0>();
    #pragma unroll
    for (int t = 0; t < T; t++)
        #pragma unroll
        for (int c = 0; c < 2; c++) {
            int j = 8 * t + 2 * (lane & 3) + c, i = 8 * low + (lane >> 2);
            if (t >= low && i <= j && j < width) atomicAdd(total + i * (long long)width + j, first[t][c]);
            i = 8 * high + (lane >> 2);
            if (t >= H && t >= high && i <= j && j < width) atomicAdd(total + i * (long long)width + j, second[t < H ? 0 : t - H][c]);
        }
}

// |P'x_i| of 16 rows a warp, P lower triangular, in shared memory, with zeros behind its last row and column. Entries of
// P'x are exact; their squares are added in the order of the columns, none fused, by each lane of the four that share a row.
extern "C" __global__ void __launch_bounds__(256) lengths_triangular(
    const float* __restrict__ rows, const double* __restrict__ matrix, double* __restrict__ found, long long count, int width)
{
    extern __shared__ __align__(16) double held[];
    const int T = TILES, S = 2 * TILES, W = 8 * TILES + 4;  // W: lanes that read four rows of P meet no bank twice
    for (int i = threadIdx.x; i < 8 * T * 8 * T; i += blockDim.x) {
        int row = i / (8 * T), column = i % (8 * T);
        held[row * W + column] = row < width && column < width ? matrix[row * (long long)width + column] : 0.0;
    }
    __syncthreads();
    int lane = threadIdx.x & 31, mine = lane & 3, row = lane >> 2;
    long long warp = (blockIdx.x * (long long)blockDim.x + threadIdx.x) >> 5;
    long long warps = (gridDim.x * (long long)blockDim.x) >> 5;
    for (long long first = warp * 16; first < count; first += warps * 16) {
        double x[2][S], total[2] = {0.0, 0.0};
        #pragma unroll
        for (int h = 0; h < 2; h++) {
            long long at = first + 8 * h + row;
            #pragma unroll
            for (int s = 0; s < S; s++)
                x[h][s] = at < count && 4 * s + mine < width ? (double)__ldg(rows + at * width + 4 * s + mine) : 0.0;
        }
        #pragma unroll
        for (int t = 0; t < T; t++) {
            double z[2][2] = {{0.0, 0.0}, {0.0, 0.0}};
            #pragma unroll
            for (int s = 2 * t; s < S; s++) {
                double p = held[(4 * s + mine) * W + 8 * t + row];
                multiply(z[0], x[0][s], p);
                multiply(z[1], x[1][s], p);
            }
            #pragma unroll
            for (int h = 0; h < 2; h++) {
                double even = MUL(z[h][0], z[h][0]), odd = MUL(z[h][1], z[h][1]);
                #pragma unroll
                for (int q = 0; q < 4; q++) {
                    total[h] = ADD(total[h], __shfl_sync(0xffffffffu, even, q, 4));
                    total[h] = ADD(total[h], __shfl_sync(0xffffffffu, odd, q, 4));
                }
            }
        }
        #pragma unroll
        for (int h = 0; h < 2; h++)
            if (mine == 0 && first + 8 * h + row < count) found[first + 8 * h + row] = __dsqrt_rn(total[h]);
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
