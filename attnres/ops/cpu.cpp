// Depth attention on the CPU, behind a plain C interface. Formulas: closed_form.py.
//
// A token's S rows are read from memory once: the first pass over them finds the scalars, the second
// finds them in cache. While a row is reduced the next one is fetched: the processor's own
// prefetcher starts anew at each row. Sums over tokens are taken in a fixed order, whatever the
// number of threads.

#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu_vector.h"

namespace {

constexpr int64_t TASKS = 64;          // at most; each sums its rows' share of dL/dfolded
constexpr int64_t ROWS_A_TASK = 16;    // at least
constexpr int64_t ROWS_IN_FLOAT = 32;  // summed in the rows' precision, then in double

}  // namespace

extern "C" {

struct Read {
    int64_t dtype;  // 0 float32, 1 bfloat16, 2 float16, 3 float64
    int64_t n_rows, dim, n_sources, n_queries, n_threads;
    int64_t stream;  // write past the caches
    double eps;
    const void* folded;             // [Q, D], as lse, rstd and logits in the arithmetic's type
    const void* const* sources;     // S rows of dim at each multiple of the stride
    const int64_t* source_strides;  // in elements
    const void* given_mix;          // [Q, R, D] or null
    const void* given_lse;          // [Q, R] or null
};

struct Gradients {
    const void* const* grad_mixes;  // Q times [R, D], null is zero
    const void* grad_lse;           // [Q, R] or null
    const void* rstd;               // [R, S]
    const void* logits;             // [Q, R, S]
    void* const* buffers;           // S times [R, D], null where not asked for
    const int64_t* buffer_strides;  // in elements
    const uint8_t* accumulate;      // S times: add to the buffer
    void* folded;                   // [Q, D] or null
    void* given_mix;                // [Q, R, D], and
    void* given_lse;                // [Q, R], where given
};
}

namespace {

template <class T> struct Rows {
    using A = Arithmetic<T>;
    const Read& read;
    const int64_t dim, S, Q;

    explicit Rows(const Read& r) : read(r), dim(r.dim), S(r.n_sources), Q(r.n_queries) {}

    const T* source(int64_t s, int64_t row) const {
        return static_cast<const T*>(read.sources[s]) + row * read.source_strides[s];
    }
    const A* folded(int64_t q) const { return static_cast<const A*>(read.folded) + q * dim; }
    const T* given(int64_t q, int64_t row) const {
        return static_cast<const T*>(read.given_mix) + (q * read.n_rows + row) * dim;
    }
    A given_lse(int64_t q, int64_t row) const {
        return static_cast<const A*>(read.given_lse)[q * read.n_rows + row];
    }
    // the row that is read after source s of this row
    const T* after(int64_t s, int64_t row, int64_t end) const {
        if (s + 1 < S) return source(s + 1, row);
        return source(0, std::min(row + 1, end - 1));
    }
};

template <int UNROLL, class T> inline void fetch(const T* p, int64_t i) {
    constexpr int bytes = UNROLL * LANES<T> * sizeof(T);
    const char* at = reinterpret_cast<const char*>(p + i);
    for (int b = 0; b < bytes; b += LINE_BYTES) __builtin_prefetch(at + b);
}

// body(i, how many vectors, how much of each) along a row: groups, single vectors, the rest.
template <int UNROLL, int LANES_A_VECTOR, class Body> inline void by_group(int64_t dim, Body body) {
    constexpr int step = UNROLL * LANES_A_VECTOR;
    int64_t i = 0;
    for (; i + step <= dim; i += step) body(i, std::integral_constant<int, UNROLL>{}, Whole{});
    for (; i + LANES_A_VECTOR <= dim; i += LANES_A_VECTOR)
        body(i, std::integral_constant<int, 1>{}, Whole{});
    if (i < dim) body(i, std::integral_constant<int, 1>{}, Part{static_cast<int>(dim - i)});
}

// out[q] = row . with[q] for QUERIES rows, and the sum of squares where asked; fetches `next`.
template <int QUERIES, bool SQUARES, class T, class W>
inline void products(const T* row, const W* const* with, int64_t dim, const T* next,
                     Arithmetic<T>* out, Arithmetic<T>* squares) {
    constexpr int UNROLL = QUERIES == 1 ? 4 : 2;
    Vector<Arithmetic<T>> dot[QUERIES][UNROLL] = {}, square[UNROLL] = {};
    by_group<UNROLL, LANES<T>>(dim, [&](int64_t i, auto how_many, auto how_much) {
        fetch<how_many()>(next, i);
        for (int u = 0; u < how_many(); ++u) {
            const int64_t at = i + u * LANES<T>;
            const auto v = load(row + at, how_much);
            for (int q = 0; q < QUERIES; ++q) dot[q][u] += v * load(with[q] + at, how_much);
            if (SQUARES) square[u] += v * v;
        }
    });
    for (int u = 1; u < UNROLL; ++u) {
        for (int q = 0; q < QUERIES; ++q) dot[q][0] += dot[q][u];
        square[0] += square[u];
    }
    for (int q = 0; q < QUERIES; ++q) out[q] = sum(dot[q][0]);
    if (SQUARES) *squares = sum(square[0]);
}

// out[q] = sum over n of weights[q][n] * rows[n], written or added, for QUERIES rows at a time.
template <int QUERIES, bool ADD, bool STREAM, class T, class O>
inline void mix(const T* const* rows, int64_t n, const Arithmetic<T>* weights, int64_t dim,
                O* const* out) {
    constexpr int UNROLL = QUERIES == 1 ? 4 : 2;
    using V = Vector<Arithmetic<T>>;
    constexpr int lanes = LANES<T>;
    const auto group = [&](int64_t i, auto how_many, auto how_much) {
        constexpr int vectors = how_many();
        V total[QUERIES][vectors];
        for (int u = 0; u < vectors; ++u) {
            const V v = load(rows[0] + i + u * lanes, how_much);
            for (int q = 0; q < QUERIES; ++q) {
                total[q][u] = weights[q * n] * v;
                if (ADD) total[q][u] += load(out[q] + i + u * lanes, how_much);
            }
        }
        for (int64_t s = 1; s < n; ++s)
            for (int u = 0; u < vectors; ++u) {
                const V v = load(rows[s] + i + u * lanes, how_much);
                for (int q = 0; q < QUERIES; ++q) total[q][u] += weights[q * n + s] * v;
            }
        for (int q = 0; q < QUERIES; ++q)
            for (int u = 0; u < vectors; ++u)
                store<STREAM>(out[q] + i + u * lanes, total[q][u], how_much);
    };
    by_group<UNROLL, lanes>(dim, group);
}

// body(q, how many) for the queries in groups of four, then one by one.
template <class Body> inline void by_four(int64_t n_queries, Body body) {
    int64_t q = 0;
    for (; q + 4 <= n_queries; q += 4) body(q, std::integral_constant<int, 4>{});
    for (; q < n_queries; ++q) body(q, std::integral_constant<int, 1>{});
}

// Weights of one query: alpha[0] of what is given, if anything is, then of the sources. Returns lse.
template <class A> inline A softmax(const A* logits, int64_t S, const A* given_lse, A* alpha) {
    const int64_t first = given_lse != nullptr;
    if (given_lse) alpha[0] = *given_lse;
    std::copy(logits, logits + S, alpha + first);
    const A largest = *std::max_element(alpha, alpha + first + S);
    double total = 0;  // S may be in the hundreds
    for (int64_t i = 0; i < first + S; ++i) total += alpha[i] = std::exp(alpha[i] - largest);
    for (int64_t i = 0; i < first + S; ++i) alpha[i] /= static_cast<A>(total);
    return largest + static_cast<A>(std::log(total));
}

template <class T, bool STREAM>
void forward_rows(const Read& read, int64_t begin, int64_t end, T* out, Arithmetic<T>* lse,
                  Arithmetic<T>* rstd, Arithmetic<T>* logits) {
    using A = Arithmetic<T>;
    const Rows<T> rows(read);
    const int64_t S = rows.S, Q = rows.Q, R = read.n_rows, dim = rows.dim;
    const int64_t n = S + (read.given_mix != nullptr), first = n - S;
    std::vector<A> logits_QS(Q * S), alpha(Q * n), dots(Q);
    std::vector<const T*> values(Q * n);
    std::vector<const A*> folded(Q);
    std::vector<T*> mixes(Q);
    for (int64_t q = 0; q < Q; ++q) folded[q] = rows.folded(q);
    for (int64_t r = begin; r < end; ++r) {
        for (int64_t s = 0; s < S; ++s) {
            const T* row = rows.source(s, r);
            A squares = 0;
            const T* next = rows.after(s, r, end);
            by_four(Q, [&](int64_t q, auto many) {
                if (q == 0) products<many(), true>(row, &folded[q], dim, next, &dots[q], &squares);
                else products<many(), false>(row, &folded[q], dim, next, &dots[q], &squares);
            });
            const A scale = 1 / std::sqrt(squares / dim + static_cast<A>(read.eps));
            if (rstd) rstd[r * S + s] = scale;
            for (int64_t q = 0; q < Q; ++q) logits_QS[q * S + s] = scale * dots[q];
        }
        for (int64_t q = 0; q < Q; ++q) {
            const A given = first ? rows.given_lse(q, r) : 0;
            lse[q * R + r] = softmax(&logits_QS[q * S], S, first ? &given : nullptr, &alpha[q * n]);
            if (logits) std::copy_n(&logits_QS[q * S], S, logits + (q * R + r) * S);
            mixes[q] = out + (q * R + r) * dim;
            for (int64_t s = 0; s < S; ++s) values[q * n + first + s] = rows.source(s, r);
            if (first) values[q * n] = rows.given(q, r);
        }
        if (first)
            for (int64_t q = 0; q < Q; ++q)
                mix<1, false, STREAM>(&values[q * n], n, &alpha[q * n], dim, &mixes[q]);
        else
            by_four(Q, [&](int64_t q, auto many) {
                mix<many(), false, STREAM>(&values[0], n, &alpha[q * n], dim, &mixes[q]);
            });
    }
}

// out = radial * row + sum over queries of alpha[q] * e[q] + slope[q] * folded[q], written or added.
template <bool ADD, bool STREAM, class T>
void source_gradient(const T* row, Arithmetic<T> radial, const T* const* e,
                     const Arithmetic<T>* alpha, const Arithmetic<T>* const* folded,
                     const Arithmetic<T>* slope, int64_t Q, int64_t dim, T* out, const T* next) {
    constexpr int UNROLL = 4, lanes = LANES<T>;
    const auto group = [&](int64_t i, auto how_many, auto how_much) {
        constexpr int vectors = how_many();
        Vector<Arithmetic<T>> total[vectors];
        fetch<vectors>(next, i);
        for (int u = 0; u < vectors; ++u) {
            total[u] = radial * load(row + i + u * lanes, how_much);
            if (ADD) total[u] += load(out + i + u * lanes, how_much);
        }
        for (int64_t q = 0; q < Q; ++q)
            for (int u = 0; u < vectors; ++u) {
                total[u] += slope[q] * load(folded[q] + i + u * lanes, how_much);
                total[u] += alpha[q] * load(e[q] + i + u * lanes, how_much);
            }
        for (int u = 0; u < vectors; ++u) store<STREAM>(out + i + u * lanes, total[u], how_much);
    };
    by_group<UNROLL, lanes>(dim, group);
}

template <class T, bool STREAM>
void backward_rows(const Read& read, const Gradients& gradients, int64_t begin, int64_t end,
                   double* folded_sum) {
    using A = Arithmetic<T>;
    const Rows<T> rows(read);
    const int64_t S = rows.S, Q = rows.Q, R = read.n_rows, dim = rows.dim;
    const int64_t n = S + (read.given_mix != nullptr), first = n - S;
    std::vector<A> alpha(Q * n), inner(Q * n), slope(Q * n), key_slope(Q * S), dots(Q);
    std::vector<A> alpha_Q(Q), slope_Q(Q), folded_part(folded_sum ? Q * dim : 0);
    std::vector<T> zeros(dim);
    std::vector<const T*> e(Q), values(S);
    std::vector<const A*> folded(Q);
    std::vector<A*> parts(Q);
    for (int64_t q = 0; q < Q; ++q) {
        folded[q] = rows.folded(q);
        parts[q] = folded_part.data() + q * dim;
    }
    const A* logits = static_cast<const A*>(gradients.logits);
    const A* rstd = static_cast<const A*>(gradients.rstd);
    const A* grad_lse = static_cast<const A*>(gradients.grad_lse);
    for (int64_t r = begin; r < end; ++r) {
        for (int64_t q = 0; q < Q; ++q) {
            const T* grad = static_cast<const T*>(gradients.grad_mixes[q]);
            e[q] = grad ? grad + r * dim : zeros.data();
        }
        for (int64_t s = 0; s < S; ++s) {
            values[s] = rows.source(s, r);
            const T* next = s + 1 < S ? rows.source(s + 1, r) : values[s];
            by_four(Q, [&](int64_t q, auto many) {
                products<many(), false>(values[s], &e[q], dim, next, &dots[q], (A*)nullptr);
            });
            for (int64_t q = 0; q < Q; ++q) inner[q * n + first + s] = dots[q];
        }
        for (int64_t q = 0; q < Q; ++q) {
            const A given = first ? rows.given_lse(q, r) : 0;
            A* weights = &alpha[q * n];
            const A* scores = logits + (q * R + r) * S;
            softmax(scores, S, first ? &given : nullptr, weights);
            if (first) {
                const T* mixed = rows.given(q, r);
                products<1, false>(mixed, &e[q], dim, mixed, &inner[q * n], (A*)nullptr);
            }
            double mean = 0;
            for (int64_t i = 0; i < n; ++i) mean += double(weights[i]) * inner[q * n + i];
            const double shift = (grad_lse ? grad_lse[q * R + r] : 0) - mean;
            for (int64_t i = 0; i < n; ++i)
                slope[q * n + i] = static_cast<A>(weights[i] * (inner[q * n + i] + shift));
            for (int64_t s = 0; s < S; ++s)
                key_slope[q * S + s] = slope[q * n + first + s] * rstd[r * S + s];
            if (first) {
                static_cast<A*>(gradients.given_lse)[q * R + r] = slope[q * n];
                T* out = static_cast<T*>(gradients.given_mix) + (q * R + r) * dim;
                mix<1, false, STREAM>(&e[q], 1, weights, dim, &out);
            }
        }
        for (int64_t s = 0; s < S; ++s) {
            if (!gradients.buffers[s]) continue;
            A radial = 0;
            for (int64_t q = 0; q < Q; ++q) {
                alpha_Q[q] = alpha[q * n + first + s];
                slope_Q[q] = key_slope[q * S + s];
                radial -= slope_Q[q] * logits[(q * R + r) * S + s];
            }
            radial *= rstd[r * S + s] / dim;
            T* out = static_cast<T*>(gradients.buffers[s]) + r * gradients.buffer_strides[s];
            const T* next = s + 1 < S && gradients.accumulate[s + 1]
                ? static_cast<T*>(gradients.buffers[s + 1]) + r * gradients.buffer_strides[s + 1]
                : rows.after(s, r, end);
            if (gradients.accumulate[s])
                source_gradient<true, false>(values[s], radial, e.data(), alpha_Q.data(),
                                             folded.data(), slope_Q.data(), Q, dim, out, next);
            else
                source_gradient<false, STREAM>(values[s], radial, e.data(), alpha_Q.data(),
                                               folded.data(), slope_Q.data(), Q, dim, out, next);
        }
        if (!folded_sum) continue;
        by_four(Q, [&](int64_t q, auto many) {
            mix<many(), true, false>(values.data(), S, &key_slope[q * S], dim, &parts[q]);
        });
        if ((r - begin + 1) % ROWS_IN_FLOAT && r + 1 < end) continue;
        for (int64_t i = 0; i < Q * dim; ++i) folded_sum[i] += folded_part[i];
        std::fill(folded_part.begin(), folded_part.end(), A(0));
    }
}

template <class Body> int by_type(int64_t dtype, Body body) {
    switch (dtype) {
        case 0: body(float{}); return 0;
        case 1: body(BFloat16{}); return 0;
        case 2: body(Float16{}); return 0;
        case 3: body(double{}); return 0;
        default: return 1;
    }
}

template <class T> void backward(const Read& read, const Gradients& gradients) {
    using A = Arithmetic<T>;
    const int64_t R = read.n_rows, width = read.n_queries * read.dim;
    const int64_t tasks = std::clamp((R + ROWS_A_TASK - 1) / ROWS_A_TASK, int64_t(1), TASKS);
    const int64_t rows = (R + tasks - 1) / tasks;
    std::vector<A> parts(gradients.folded ? tasks * width : 0);
#pragma omp parallel num_threads(read.n_threads)
    {
        std::vector<double> total(gradients.folded ? width : 0);
#pragma omp for schedule(static)
        for (int64_t task = 0; task < tasks; ++task) {
            std::fill(total.begin(), total.end(), 0.0);
            const int64_t begin = std::min(R, task * rows), end = std::min(R, begin + rows);
            double* folded_sum = gradients.folded ? total.data() : nullptr;
            if (read.stream) backward_rows<T, true>(read, gradients, begin, end, folded_sum);
            else backward_rows<T, false>(read, gradients, begin, end, folded_sum);
            if (folded_sum) std::copy(total.begin(), total.end(), &parts[task * width]);
        }
#pragma omp for schedule(static)
        for (int64_t i = 0; i < (gradients.folded ? width : 0); ++i) {
            double sum = 0;
            for (int64_t task = 0; task < tasks; ++task) sum += parts[task * width + i];
            static_cast<A*>(gradients.folded)[i] = static_cast<A>(sum);
        }
    }
}

}  // namespace

extern "C" {

// mix [Q, R, D], lse [Q, R]; rstd [R, S] and logits [Q, R, S] or null. Not 0: an unknown dtype.
int attnres_forward(const Read* read, void* mix, void* lse, void* rstd, void* logits) {
    return by_type(read->dtype, [&](auto number) {
        using T = decltype(number);
        using A = Arithmetic<T>;
        const int64_t block = std::max<int64_t>(1, (read->n_rows + read->n_threads - 1) / read->n_threads);
        const auto rows = read->stream ? forward_rows<T, true> : forward_rows<T, false>;
#pragma omp parallel for schedule(static) num_threads(read->n_threads)
        for (int64_t begin = 0; begin < read->n_rows; begin += block)
            rows(*read, begin, std::min(read->n_rows, begin + block), static_cast<T*>(mix),
                 static_cast<A*>(lse), static_cast<A*>(rstd), static_cast<A*>(logits));
    });
}

int attnres_backward(const Read* read, const Gradients* gradients) {
    return by_type(read->dtype, [&](auto number) {
        backward<decltype(number)>(*read, *gradients);
    });
}
}
