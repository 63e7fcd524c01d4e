// Depth attention on the CPU, behind a plain C interface. Formulas: closed_form.py.
//
// A token's S rows are read from memory once: the first pass over them finds the scalars, the
// second finds them in cache. Each pass fetches half of what a later token will read, so that
// memory is never idle: the processor's own prefetcher starts anew at each row. Sums over tokens
// are taken in a fixed order, whatever the number of threads.

#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu_interface.h"
#include "cpu_rows.h"

namespace {

constexpr int64_t TASKS = 64;             // at most; each sums its rows' share of dL/dfolded
constexpr int64_t ROWS_A_TASK = 16;       // at least
constexpr int64_t ROWS_IN_FLOAT = 32;     // summed in the rows' precision, then in double
constexpr int64_t NEAR_BYTES = 1 << 14;   // half of a first-level cache
constexpr int64_t LEAD_BYTES = 1 << 13;   // fetched ahead, at least: memory takes time to answer

// Typed pointers into a read, and a thread's room for the scalars of one token.
template <class T> struct Token {
    using A = Arithmetic<T>;
    const Read& read;
    const int64_t S, Q, R, dim, width;
    const int64_t n, first;  // of what is mixed: the sources, after what is given
    const int64_t lead;      // tokens
    int64_t r = 0;
    Lines<A> folded_rows;
    std::vector<A> alpha;  // [Q, n]
    std::vector<const A*> folded;
    std::vector<const T*> values, later, later_halves;  // n rows each

    explicit Token(const Read& read)
        : read(read), S(read.n_sources), Q(read.n_queries), R(read.n_rows), dim(read.dim),
          width(Wide<T>::width(dim)), n(S + (read.given_mix != nullptr)), first(n - S),
          lead((LEAD_BYTES - 1) / int64_t(n * dim * sizeof(T)) + 1), folded_rows(Q * width),
          alpha(Q * n), folded(Q), values(n), later(n), later_halves(n) {
        for (int64_t q = 0; q < Q; ++q) {
            const A* plain = static_cast<const A*>(read.folded) + q * dim;
            for (int64_t i = 0; i < dim; ++i)
                folded_rows[q * width + Wide<T>::place(i)] = quiet(plain[i]);
            folded[q] = &folded_rows[q * width];
        }
    }

    void enter(int64_t row) {
        r = row;
        const int64_t then = std::min(R - 1, r + lead);
        for (int64_t i = 0; i < n; ++i) {
            later[i] = i < first ? given(0, then) : source(i - first, then);
            later_halves[i] = later[i] + dim / 2;
            values[i] = i < first ? nullptr : source(i - first, r);
        }
    }
    const T* source(int64_t s, int64_t row) const {
        const int64_t stride = read.source_strides ? read.source_strides[s] : dim;
        return static_cast<const T*>(read.sources[s]) + row * stride;
    }
    const T* given(int64_t q, int64_t row) const {
        return static_cast<const T*>(read.given_mix) + (q * R + row) * dim;
    }
    // What is mixed for query q; the first query fetches.
    const T* const* values_of(int64_t q) {
        if (first) values[0] = given(q, r);
        return values.data();
    }
    const T* const* fetched_by(int64_t q) const { return q ? values.data() : later_halves.data(); }

    // out(q, s) takes the product of source s and with[q].
    template <bool SQUARES, class Out> void products_of(const A* const* with, A* squares, Out out) {
        by_four(Q, [&](int64_t q, auto queries) {
            constexpr int ROWS = queries() == 1 ? 4 : 2;
            in_groups<ROWS>(S, [&](int64_t s, auto count) {
                A dots[queries()][count()];
                const T* const* rows = &values[first + s];
                if (q == 0)
                    products<queries(), count(), SQUARES>(rows, with, dim, &later[first + s], dots,
                                                          squares + s);
                else
                    products<queries(), count(), false>(rows, with + q, dim, rows, dots, squares);
                for (int64_t p = 0; p < queries(); ++p)
                    for (int64_t j = 0; j < count(); ++j) out(q + p, s + j) = dots[p][j];
            });
        });
    }
    A* alpha_of(int64_t q) { return &alpha[q * n]; }
    A weigh(int64_t q, const A* logits) {
        if (read.centered) {
            if (first) *alpha_of(q) = 1;
            return excess(logits, S, alpha_of(q) + first);
        }
        const A* given_lse = first ? static_cast<const A*>(read.given_lse) + q * R + r : nullptr;
        return softmax(logits, S, given_lse, alpha_of(q));
    }
};

// Two rows of dim and their sum; null where there are none.
template <class T> struct Sum {
    const T *a = nullptr, *b = nullptr;
    T* total = nullptr;
    void take(int64_t r, int64_t then, int64_t dim) const {
        if (total) add_rows(a + r * dim, b + r * dim, total + r * dim, dim, (then - r) * dim);
    }
};

// Where a forward writes: mixes of Q queries, and [Q, R], [R, S] and [Q, R, S].
template <class T> struct Outputs {
    T* const* mixes;
    Arithmetic<T> *lse, *rstd, *logits;
    const Arithmetic<T>* norm_weight = nullptr;  // a wide row, where a mix is normed
    double norm_eps = 0;
};

template <class T, bool STREAM>
void forward_rows(const Read& read, const Sum<T>& sum, int64_t begin, int64_t end,
                  const Outputs<T>& out) {
    using A = Arithmetic<T>;
    Token<T> token(read);
    const int64_t S = token.S, Q = token.Q, R = token.R, n = token.n, dim = token.dim;
    std::vector<Write<STREAM, T>> mixes(Q);
    A *const lse = out.lse, *const logits = out.logits;
    for (int64_t r = begin; r < end; ++r) {
        A* scales = out.rstd + r * S;
        sum.take(r, std::min(R - 1, r + token.lead), dim);
        const auto logit = [&](int64_t q, int64_t s) -> A& { return logits[(q * R + r) * S + s]; };
        token.enter(r);
        token.template products_of<true>(token.folded.data(), scales, logit);
        for (int64_t s = 0; s < S; ++s)
            scales[s] = 1 / std::sqrt(scales[s] / dim + static_cast<A>(read.eps));
        for (int64_t q = 0; q < Q; ++q) {
            for (int64_t s = 0; s < S; ++s) logit(q, s) *= scales[s];
            lse[q * R + r] = token.weigh(q, &logit(q, 0));
            mixes[q].row = out.mixes[q] + r * dim;
        }
        // what is given differs from query to query
        const auto mix_some = [&](int64_t q, auto many) {
            mix<many()>(token.values_of(q), n, token.alpha_of(q), dim, token.fetched_by(q),
                        &mixes[q]);
        };
        if (token.first) in_groups<1>(Q, mix_some);
        else by_four(Q, mix_some);
        if (out.norm_weight) normalise(mixes[0].row, out.norm_weight, out.norm_eps, dim);
    }
}

template <class T, bool STREAM> struct Backward {
    using A = Arithmetic<T>;
    const Gradients& gradients;
    Token<T> token;
    const int64_t S, Q, R, n, first, dim, width;
    const int64_t columns;  // whose wide rows stay in the first-level cache
    const A *logits, *rstd, *grad_lse;
    Lines<A> e_rows, folded_part;
    std::vector<A> inner, slope, key_slope, alpha_SQ, slope_SQ, radial;
    std::vector<const A*> e;
    std::vector<AddWide<T>> parts;
    std::vector<int64_t> written, added_to;  // sources, by what is done to their buffers
    int64_t n_summed = 0;

    Backward(const Read& read, const Gradients& g)
        : gradients(g), token(read), S(token.S), Q(token.Q), R(token.R), n(token.n),
          first(token.first), dim(token.dim), width(token.width),
          columns(std::max<int64_t>(NEAR_BYTES / (2 * Q * sizeof(A)) / 64, 1) * 64),
          logits(static_cast<const A*>(g.logits)), rstd(static_cast<const A*>(g.rstd)),
          grad_lse(static_cast<const A*>(g.grad_lse)), e_rows(Q * width),
          folded_part(g.folded ? Q * width : 0), inner(Q * n), slope(n), key_slope(Q * S),
          alpha_SQ(S * Q), slope_SQ(S * Q), radial(S), e(Q), parts(Q) {
        for (int64_t s = 0; s < S; ++s)
            if (g.buffers[s]) (g.accumulate[s] ? added_to : written).push_back(s);
        for (int64_t q = 0; q < Q; ++q) {
            e[q] = &e_rows[q * width];
            parts[q].row = folded_part.data() + q * width;
        }
    }

    // Rows begin to end; their share of dL/dfolded is added to folded_sum, wide rows.
    void run(int64_t begin, int64_t end, std::vector<double>& folded_sum) {
        for (int64_t r = begin; r < end; ++r) {
            token.enter(r);
            find_inner();
            for (int64_t q = 0; q < Q; ++q) find_slope(q);
            find_radial();
            for (int64_t i = 0; i < dim; i += columns) {
                fill<false>(written, i);
                fill<true>(added_to, i);
            }
            if (gradients.folded) add_folded(r + 1 == end, folded_sum);
        }
    }

    void find_inner() {
        for (int64_t q = 0; q < Q; ++q)
            if (const T* grad = static_cast<const T*>(gradients.grad_mixes[q]))
                Wide<T>::read(&e_rows[q * width], grad + token.r * dim, dim);
        token.template products_of<false>(e.data(), nullptr, [&](int64_t q, int64_t s) -> A& {
            return inner[q * n + first + s];
        });
    }

    // dL/dlogit of every source for one query, and the gradients of what is given
    void find_slope(int64_t q) {
        const int64_t row = q * R + token.r;
        token.weigh(q, logits + row * S);
        const A* alpha = token.alpha_of(q);
        A* inner_n = &inner[q * n];
        if (first) {
            A dot[1][1];
            products<1, 1, false>(token.values_of(q), &e[q], dim, token.fetched_by(q), dot,
                                  inner_n);
            inner_n[0] = dot[0][0];
        }
        const double less = token.read.centered, total = less ? S : 1;  // of the weights
        double mean = 0;
        for (int64_t i = 0; i < n; ++i) mean += (alpha[i] + less) * inner_n[i] / total;
        const double shift = (grad_lse ? quiet(grad_lse[row]) : 0) - mean;
        for (int64_t i = 0; i < n; ++i)
            slope[i] = static_cast<A>((alpha[i] + less) * (inner_n[i] + shift));
        for (int64_t s = 0; s < S; ++s)
            key_slope[q * S + s] = slope[first + s] * rstd[token.r * S + s];
        if (!first) return;
        static_cast<A*>(gradients.given_lse)[row] = slope[0];
        T* out = static_cast<T*>(gradients.given_mix) + row * dim;
        over<1, T>(dim, [&](int64_t i, auto, auto how_much) {
            store<STREAM>(out + i, scaled(alpha[0], Wide<T>::at(e[q], i)), how_much);
        });
    }

    // the scalars of every source's gradient, query by query
    void find_radial() {
        for (int64_t s = 0; s < S; ++s) {
            A sum = 0;
            for (int64_t q = 0; q < Q; ++q) {
                const A key = key_slope[q * S + s];
                alpha_SQ[s * Q + q] = token.alpha_of(q)[first + s];
                slope_SQ[s * Q + q] = key;
                sum -= key * logits[(q * R + token.r) * S + s];
            }
            radial[s] = sum * rstd[token.r * S + s] / dim;
        }
    }

    T* buffer(int64_t s, int64_t r) const {
        return static_cast<T*>(gradients.buffers[s]) + r * gradients.buffer_strides[s];
    }

    // Columns from i on of the gradients of some sources.
    template <bool ADD> void fill(const std::vector<int64_t>& which, int64_t i) {
        constexpr int AT_ONCE = STREAM ? 4 / Pack<T>::vectors : 4;  // past caches: whole lines
        in_groups<AT_ONCE>(which.size(), [&](int64_t from, auto many) {
            SourceGradient<T> some[many()];
            for (int64_t j = 0; j < many(); ++j) {
                const int64_t s = which[from + j];
                const T* next_out = ADD ? buffer(s, std::min(R - 1, token.r + token.lead)) : nullptr;
                some[j] = {token.values[first + s] + i, buffer(s, token.r) + i,
                           token.later_halves[first + s] + i / 2, next_out + (ADD ? i : 0),
                           radial[s], &alpha_SQ[s * Q], &slope_SQ[s * Q]};
            }
            source_gradients<many(), ADD, STREAM && !ADD>(some, e.data(), token.folded.data(), Q,
                                                          i, std::min(columns, dim - i));
        });
    }

    void add_folded(bool last, std::vector<double>& folded_sum) {
        const T* const* rows = token.values.data() + first;
        by_four(Q, [&](int64_t q, auto many) {
            mix<many(), T>(rows, S, &key_slope[q * S], dim, rows, &parts[q]);
        });
        if (++n_summed < ROWS_IN_FLOAT && !last) return;
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

template <class T> void forward(const Read& read, const Sum<T>& sum, const Outputs<T>& out) {
    const int64_t R = read.n_rows, threads = read.n_threads;
    const int64_t block = std::max<int64_t>(1, (R + threads - 1) / threads);
    const auto rows = read.stream ? forward_rows<T, true> : forward_rows<T, false>;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t begin = 0; begin < R; begin += block)
        rows(read, sum, begin, std::min(R, begin + block), out);
}

}  // namespace

extern "C" {

// mix [Q, R, D], lse [Q, R], rstd [R, S] and logits [Q, R, S]. Not 0: an unknown dtype.
int attnres_forward(const Read* read, void* mix, void* lse, void* rstd, void* logits) {
    return by_type(read->dtype, [&](auto number) {
        using T = decltype(number);
        using A = Arithmetic<T>;
        std::vector<T*> mixes(read->n_queries);
        for (int64_t q = 0; q < read->n_queries; ++q)
            mixes[q] = static_cast<T*>(mix) + q * read->n_rows * read->dim;
        forward<T>(*read, {}, {mixes.data(), static_cast<A*>(lse), static_cast<A*>(rstd),
                               static_cast<A*>(logits)});
    });
}

int attnres_quick(const QuickRead* quick) {
    return by_type(quick->read.dtype, [&](auto number) {
        using T = decltype(number);
        using A = Arithmetic<T>;
        Read read = quick->read;
        const int64_t R = read.n_rows, S = read.n_sources, Q = read.n_queries, dim = read.dim;
        std::vector<A> folded(Q * dim), scalars(R * (Q + S + Q * S));
        const auto fold = [&](int64_t q, auto like) {
            using P = decltype(like);
            const P* query = static_cast<const P*>(quick->queries[q]);
            const P* weight = static_cast<const P*>(quick->key_weights[q]);
            for (int64_t i = 0; i < dim; ++i)
                folded[q * dim + i] = widened(query[i]) * widened(weight[i]);
        };
        for (int64_t q = 0; q < Q; ++q) quick->wide ? fold(q, A{}) : fold(q, T{});
        read.folded = folded.data();
        A* const lse = quick->lse ? static_cast<A*>(quick->lse) : scalars.data();
        A *const rstd = scalars.data() + Q * R, *const logits = rstd + R * S;
        const Sum<T> sum{static_cast<const T*>(quick->terms[0]),
                         static_cast<const T*>(quick->terms[1]), static_cast<T*>(quick->total)};
        Lines<A> norm_weight(quick->norm_weight ? Wide<T>::width(dim) : 0);
        if (quick->norm_weight)
            Wide<T>::read(norm_weight.data(), static_cast<const T*>(quick->norm_weight), dim);
        forward<T>(read, sum,
                   {reinterpret_cast<T* const*>(quick->mixes), lse, rstd, logits,
                    quick->norm_weight ? norm_weight.data() : nullptr, quick->norm_eps});
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
