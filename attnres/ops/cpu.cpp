// Depth attention on the CPU, behind a plain C interface. Formulas: closed_form.py.
//
// A token's S rows are read from memory once: the first pass over them finds the scalars, the
// second finds them in cache. While a row is worked on a later one is fetched: the processor's own
// prefetcher starts anew at each row. Sums over tokens are taken in a fixed order, whatever the
// number of threads.

#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu_rows.h"

extern "C" {

struct Read {
    int64_t dtype;  // 0 float32, 1 bfloat16, 2 float16, 3 float64
    int64_t n_rows, dim, n_sources, n_queries, n_threads;
    int64_t stream;  // write past the caches
    double eps;
    const void* folded;             // [Q, D], as lse, rstd and logits in the arithmetic's type
    const void* const* sources;     // S times rows of dim, one at each multiple of the stride
    const int64_t* source_strides;  // in numbers
    const void* given_mix;          // [Q, R, D] or null
    const void* given_lse;          // [Q, R] or null
};

struct Gradients {
    const void* const* grad_mixes;  // Q times [R, D], null is zero
    const void* grad_lse;           // [Q, R] or null
    const void* rstd;               // [R, S]
    const void* logits;             // [Q, R, S]
    void* const* buffers;           // S times rows of dim, null where not asked for
    const int64_t* buffer_strides;  // in numbers
    const uint8_t* accumulate;      // S times: add to the buffer
    void* folded;                   // [Q, D] or null
    void* given_mix;                // [Q, R, D], and
    void* given_lse;                // [Q, R], where given
};
}

namespace {

constexpr int64_t TASKS = 64;             // at most; each sums its rows' share of dL/dfolded
constexpr int64_t ROWS_A_TASK = 16;       // at least
constexpr int64_t ROWS_IN_FLOAT = 32;     // summed in the rows' precision, then in double
constexpr int64_t NEAR_BYTES = 1 << 14;   // half of a first-level cache
constexpr int64_t TILE_BYTES = 3 << 15;   // part of a second-level one: gradients pass too
constexpr int64_t LEAD_BYTES = 1 << 12;   // fetched ahead: the time that memory takes to answer

// Typed pointers into a read, and a thread's room for the scalars of a tile: a few tokens whose
// rows stay in the second-level cache, so that of each source several rows are read in one go.
template <class T> struct Tile {
    using A = Arithmetic<T>;
    const Read& read;
    const int64_t S, Q, R, dim, width;
    const int64_t n, first;  // of what is mixed: the sources, after what is given
    const int64_t most;      // tokens
    const int64_t lead;      // rows
    Lines<A> folded_rows;
    std::vector<A> alpha;
    std::vector<const A*> folded;
    std::vector<const T*> values;

    Tile(const Read& r, int64_t wide_rows)
        : read(r), S(r.n_sources), Q(r.n_queries), R(r.n_rows), dim(r.dim),
          width(Wide<T>::width(dim)), n(S + (r.given_mix != nullptr)), first(n - S),
          most(std::clamp<int64_t>(
              TILE_BYTES / (S * dim * sizeof(T) + wide_rows * width * sizeof(A)), 1, 16)),
          lead(std::max<int64_t>(1, LEAD_BYTES / (dim * sizeof(T)))), folded_rows(Q * width),
          alpha(most * Q * n), folded(Q), values(n) {
        for (int64_t q = 0; q < Q; ++q) {
            const A* plain = static_cast<const A*>(r.folded) + q * dim;
            for (int64_t i = 0; i < dim; ++i)
                folded_rows[q * width + Wide<T>::place(i)] = quiet(plain[i]);
            folded[q] = &folded_rows[q * width];
        }
    }

    const T* source(int64_t s, int64_t row) const {
        return static_cast<const T*>(read.sources[s]) + row * read.source_strides[s];
    }
    const T* given(int64_t q, int64_t row) const {
        return static_cast<const T*>(read.given_mix) + (q * R + row) * dim;
    }
    // what the first pass over a tile, source by source, reads `lead` rows after this one
    const T* following(int64_t s, int64_t row, int64_t tile, int64_t tile_end, int64_t end) const {
        const int64_t count = tile_end - tile, place = s * count + row - tile + lead;
        if (place < S * count) return source(place / count, tile + place % count);
        const int64_t later = tile_end + place - S * count;
        return later < end ? source(0, later) : nullptr;
    }
    const T* const* values_of(int64_t q, int64_t row) {
        for (int64_t s = 0; s < S; ++s) values[first + s] = source(s, row);
        if (first) values[0] = given(q, row);
        return values.data();
    }
    A* alpha_of(int64_t t, int64_t q) { return &alpha[(t * Q + q) * n]; }
    A weigh(int64_t t, int64_t q, int64_t row, const A* logits) {
        const A* given_lse = first ? static_cast<const A*>(read.given_lse) + q * R + row : nullptr;
        return softmax(logits, S, given_lse, alpha_of(t, q));
    }
};

template <class T, bool STREAM>
void forward_rows(const Read& read, int64_t begin, int64_t end, T* out, Arithmetic<T>* lse,
                  Arithmetic<T>* rstd, Arithmetic<T>* logits) {
    using A = Arithmetic<T>;
    Tile<T> tile(read, 0);
    const int64_t S = tile.S, Q = tile.Q, R = tile.R, n = tile.n, dim = tile.dim;
    std::vector<Write<STREAM, T>> mixes(Q);
    for (int64_t from = begin, to; from < end; from = to) {
        to = std::min(end, from + tile.most);
        by_four(Q, [&](int64_t q, auto many) {
            for (int64_t s = 0; s < S; ++s)
                for (int64_t r = from; r < to; ++r) {
                    const T* row = tile.source(s, r);
                    A dots[many()], *squares = &rstd[r * S + s];
                    if (q == 0)
                        products<many(), true>(row, &tile.folded[q], dim,
                                               tile.following(s, r, from, to, end), dots, squares);
                    else
                        products<many(), false, T>(row, &tile.folded[q], dim, nullptr, dots,
                                                   nullptr);
                    for (int64_t p = 0; p < many(); ++p)
                        logits[((q + p) * R + r) * S + s] = dots[p];
                }
        });
        for (int64_t r = from; r < to; ++r) {
            A* scales = rstd + r * S;
            for (int64_t s = 0; s < S; ++s)
                scales[s] = 1 / std::sqrt(scales[s] / dim + static_cast<A>(read.eps));
            for (int64_t q = 0; q < Q; ++q) {
                A* scores = logits + (q * R + r) * S;
                for (int64_t s = 0; s < S; ++s) scores[s] *= scales[s];
                lse[q * R + r] = tile.weigh(r - from, q, r, scores);
                mixes[q].row = out + (q * R + r) * dim;
            }
            by_four(Q, [&](int64_t q, auto many) {
                if (!tile.first)
                    mix<many()>(tile.values_of(q, r), n, tile.alpha_of(r - from, q), dim,
                                &mixes[q]);
                else
                    for (int64_t p = q; p < q + many(); ++p)
                        mix<1>(tile.values_of(p, r), n, tile.alpha_of(r - from, p), dim, &mixes[p]);
            });
        }
    }
}

template <class T, bool STREAM> struct Backward {
    using A = Arithmetic<T>;
    const Gradients& gradients;
    Tile<T> tile;
    const int64_t S, Q, R, n, first, dim, width;
    const int64_t columns;  // whose wide rows stay in the first-level cache
    const A *logits, *rstd, *grad_lse;
    Lines<A> e_rows, folded_part;
    std::vector<A> inner, slope, key_slope, alpha_SQ, slope_SQ, radial;
    std::vector<const A*> e;
    std::vector<AddWide<T>> parts;
    int64_t n_summed = 0;

    Backward(const Read& read, const Gradients& g)
        : gradients(g), tile(read, read.n_queries), S(tile.S), Q(tile.Q), R(tile.R), n(tile.n),
          first(tile.first), dim(tile.dim), width(tile.width),
          columns(std::max<int64_t>(NEAR_BYTES / ((tile.most + 1) * Q * sizeof(A)) / 64, 1) * 64),
          logits(static_cast<const A*>(g.logits)), rstd(static_cast<const A*>(g.rstd)),
          grad_lse(static_cast<const A*>(g.grad_lse)), e_rows(tile.most * Q * width),
          inner(tile.most * Q * n), slope(n), key_slope(tile.most * Q * S),
          alpha_SQ(tile.most * S * Q), slope_SQ(tile.most * S * Q), radial(tile.most * S),
          folded_part(g.folded ? Q * width : 0), e(tile.most * Q), parts(Q) {
        for (int64_t i = 0; i < tile.most * Q; ++i) e[i] = &e_rows[i * width];
        for (int64_t q = 0; q < Q; ++q) parts[q].row = folded_part.data() + q * width;
    }

    // Rows begin to end; their share of dL/dfolded is added to folded_sum, wide rows.
    void run(int64_t begin, int64_t end, std::vector<double>& folded_sum) {
        for (int64_t from = begin, to; from < end; from = to) {
            to = std::min(end, from + tile.most);
            find_inner(from, to, end);
            for (int64_t r = from; r < to; ++r) {
                for (int64_t q = 0; q < Q; ++q) find_slope(r - from, q, r);
                find_radial(r - from, r);
            }
            for (int64_t i = 0; i < dim; i += columns)
                for (int64_t s = 0; s < S; ++s)
                    for (int64_t r = from; gradients.buffers[s] && r < to; ++r)
                        fill(s, r, from, to, i, std::min(columns, dim - i));
            if (gradients.folded) add_folded(from, to, to == end, folded_sum);
        }
    }

    void find_inner(int64_t from, int64_t to, int64_t end) {
        for (int64_t r = from; r < to; ++r)
            for (int64_t q = 0; q < Q; ++q)
                if (const T* grad = static_cast<const T*>(gradients.grad_mixes[q]))
                    Wide<T>::read(&e_rows[((r - from) * Q + q) * width], grad + r * dim, dim);
        by_four(Q, [&](int64_t q, auto many) {
            for (int64_t s = 0; s < S; ++s)
                for (int64_t r = from; r < to; ++r) {
                    const T* next = q == 0 ? tile.following(s, r, from, to, end) : nullptr;
                    const int64_t tq = (r - from) * Q + q;
                    A dots[many()];
                    products<many(), false, T>(tile.source(s, r), &e[tq], dim, next, dots, nullptr);
                    for (int64_t p = 0; p < many(); ++p) inner[(tq + p) * n + first + s] = dots[p];
                }
        });
    }

    // dL/dlogit of every source for one query, and the gradients of what is given
    void find_slope(int64_t t, int64_t q, int64_t r) {
        tile.weigh(t, q, r, logits + (q * R + r) * S);
        const A* alpha = tile.alpha_of(t, q);
        A* inner_n = &inner[(t * Q + q) * n];
        if (first)
            products<1, false, T>(tile.given(q, r), &e[t * Q + q], dim, nullptr, inner_n, nullptr);
        double mean = 0;
        for (int64_t i = 0; i < n; ++i) mean += double(alpha[i]) * inner_n[i];
        const double shift = (grad_lse ? quiet(grad_lse[q * R + r]) : 0) - mean;
        for (int64_t i = 0; i < n; ++i) slope[i] = static_cast<A>(alpha[i] * (inner_n[i] + shift));
        for (int64_t s = 0; s < S; ++s)
            key_slope[(t * Q + q) * S + s] = slope[first + s] * rstd[r * S + s];
        if (!first) return;
        static_cast<A*>(gradients.given_lse)[q * R + r] = slope[0];
        T* out = static_cast<T*>(gradients.given_mix) + (q * R + r) * dim;
        over<1, T>(dim, [&](int64_t i, auto, auto how_much) {
            const Pack<T> pack = scaled(alpha[0], Wide<T>::at(e[t * Q + q], i));
            store<STREAM>(out + i, pack, how_much);
        });
    }

    // the scalars of every source's gradient, query by query
    void find_radial(int64_t t, int64_t r) {
        for (int64_t s = 0; s < S; ++s) {
            A sum = 0;
            for (int64_t q = 0; q < Q; ++q) {
                const A key = key_slope[(t * Q + q) * S + s];
                alpha_SQ[(t * S + s) * Q + q] = tile.alpha_of(t, q)[first + s];
                slope_SQ[(t * S + s) * Q + q] = key;
                sum -= key * logits[(q * R + r) * S + s];
            }
            radial[t * S + s] = sum * rstd[r * S + s] / dim;
        }
    }

    T* buffer(int64_t s, int64_t r) const {
        return static_cast<T*>(gradients.buffers[s]) + r * gradients.buffer_strides[s];
    }

    // Columns i to i + count of the gradient of source s; fetches what is added to next.
    void fill(int64_t s, int64_t r, int64_t from, int64_t to, int64_t i, int64_t count) {
        const int64_t after = r + 1 < to ? s : s + 1;
        const bool is_added_to = after < S && gradients.accumulate[after];
        const T* next = is_added_to ? buffer(after, r + 1 < to ? r + 1 : from) + i : nullptr;
        const auto fill = gradients.accumulate[s] ? source_gradient<true, false, T>
                                                  : source_gradient<false, STREAM, T>;
        const int64_t t = r - from, at = t * S + s;
        fill(tile.source(s, r) + i, radial[at], &e[t * Q], &alpha_SQ[at * Q], tile.folded.data(),
             &slope_SQ[at * Q], Q, i, count, buffer(s, r) + i, next);
    }

    void add_folded(int64_t from, int64_t to, bool last, std::vector<double>& folded_sum) {
        for (int64_t r = from; r < to; ++r)
            by_four(Q, [&](int64_t q, auto many) {
                const A* weights = &key_slope[((r - from) * Q + q) * S];
                mix<many()>(tile.values_of(0, r) + first, S, weights, dim, &parts[q]);
            });
        n_summed += to - from;
        if (n_summed < ROWS_IN_FLOAT && !last) return;
        for (int64_t i = 0; i < Q * width; ++i) folded_sum[i] += folded_part[i];
        std::fill(folded_part.begin(), folded_part.end(), A(0));
        n_summed = 0;
    }
};

template <class T, bool STREAM> void backward(const Read& read, const Gradients& gradients) {
    using A = Arithmetic<T>;
    const int64_t R = read.n_rows, width = Wide<T>::width(read.dim);
    const int64_t n_folded = gradients.folded ? read.n_queries * width : 0;
    const int64_t tasks = std::clamp((R + ROWS_A_TASK - 1) / ROWS_A_TASK, int64_t(1), TASKS);
    const int64_t rows = (R + tasks - 1) / tasks;
    std::vector<A> parts(tasks * n_folded);
#pragma omp parallel num_threads(read.n_threads)
    {
        Backward<T, STREAM> work(read, gradients);
        std::vector<double> total(n_folded);
#pragma omp for schedule(static)
        for (int64_t task = 0; task < tasks; ++task) {
            std::fill(total.begin(), total.end(), 0.0);
            work.run(std::min(R, task * rows), std::min(R, (task + 1) * rows), total);
            std::copy(total.begin(), total.end(), parts.begin() + task * n_folded);
        }
#pragma omp for schedule(static)
        for (int64_t i = 0; i < (n_folded ? read.n_queries * read.dim : 0); ++i) {
            const int64_t at = i / read.dim * width + Wide<T>::place(i % read.dim);
            double sum = 0;
            for (int64_t task = 0; task < tasks; ++task) sum += parts[task * n_folded + at];
            static_cast<A*>(gradients.folded)[i] = static_cast<A>(sum);
        }
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

}  // namespace

extern "C" {

// mix [Q, R, D], lse [Q, R], rstd [R, S] and logits [Q, R, S]. Not 0: an unknown dtype.
int attnres_forward(const Read* read, void* mix, void* lse, void* rstd, void* logits) {
    return by_type(read->dtype, [&](auto number) {
        using T = decltype(number);
        using A = Arithmetic<T>;
        const int64_t R = read->n_rows, threads = read->n_threads;
        const int64_t block = std::max<int64_t>(1, (R + threads - 1) / threads);
        const auto rows = read->stream ? forward_rows<T, true> : forward_rows<T, false>;
#pragma omp parallel for schedule(static) num_threads(threads)
        for (int64_t begin = 0; begin < R; begin += block)
            rows(*read, begin, std::min(R, begin + block), static_cast<T*>(mix),
                 static_cast<A*>(lse), static_cast<A*>(rstd), static_cast<A*>(logits));
    });
}

int attnres_backward(const Read* read, const Gradients* gradients) {
    return by_type(read->dtype, [&](auto number) {
        using T = decltype(number);
        const auto run = read->stream ? backward<T, true> : backward<T, false>;
        run(*read, *gradients);
    });
}
}
