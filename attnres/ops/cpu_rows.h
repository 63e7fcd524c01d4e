// What is done to a row: products with other rows, mixing, a source's gradient, the softmax.
#pragma once

#include <algorithm>
#include <cmath>

#include "cpu_vector.h"

// Fetches lines of p, as many as n numbers take, from the number at i on.
template <class T> INLINE inline void fetch(const T* p, int64_t i, int n) {
    const char* at = reinterpret_cast<const char*>(p + i);
    for (int b = 0; b < n * int(sizeof(T)); b += LINE_BYTES) __builtin_prefetch(at + b);
}

constexpr int CHAINS = 8;        // sums under way at once hide the latency of adding
constexpr int64_t SPAN = 1024;  // numbers summed before a sum is put aside: longer ones lose digits

// out[q][r] = rows[r] . with[q] for some wide rows, and squares[r] = rows[r] . rows[r] where asked;
// fetches as much of each row of `next` as half a row.
template <int QUERIES, int ROWS, bool SQUARES, class T>
inline void products(const T* const* rows, const Arithmetic<T>* const* with, int64_t dim,
                     const T* const* next, Arithmetic<T> (&out)[QUERIES][ROWS],
                     Arithmetic<T>* squares) {
    constexpr int COLUMNS = std::max(1, CHAINS / (QUERIES + SQUARES) / ROWS);
    using V = Vector<Arithmetic<T>>;
    V total[QUERIES + SQUARES][ROWS] = {};
    for (int64_t begin = 0; begin < dim; begin += SPAN) {
        V part[QUERIES + SQUARES][ROWS][COLUMNS] = {};
        over<4, T>(std::min(SPAN, dim - begin), [&](int64_t i, auto how_many, auto how_much) INLINE {
            constexpr int n = how_many() * Pack<T>::lanes;
            repeat<ROWS>([&](auto r) INLINE { fetch(next[r], (begin + i) / 2, n / 2); });
            repeat<how_many()>([&](auto g) INLINE {
                const int64_t at = begin + i + g * Pack<T>::lanes;
                repeat<ROWS>([&](auto r) INLINE {
                    const Pack<T> x = load(rows[r] + at, how_much);
                    repeat<QUERIES>([&](auto q) INLINE {
                        add_product<T>(part[q][r][g % COLUMNS], x, Wide<T>::at(with[q], at));
                    });
                    if constexpr (SQUARES) add_product<T>(part[QUERIES][r][g % COLUMNS], x, x);
                });
            });
        });
        repeat<QUERIES + SQUARES>([&](auto q) INLINE {
            repeat<ROWS>([&](auto r) INLINE {
                repeat<COLUMNS>([&](auto c) INLINE { total[q][r] += part[q][r][c]; });
            });
        });
    }
    repeat<ROWS>([&](auto r) INLINE {
        repeat<QUERIES>([&](auto q) INLINE { out[q][r] = sum(total[q][r]); });
        if constexpr (SQUARES) squares[r] = sum(total[QUERIES][r]);
    });
}

// What to do with a finished group of packs: write it as T, past the caches or not, or add it to a
// wide row.
template <bool STREAM, class T> struct Write {
    T* row;
    template <class H> void operator()(int64_t i, const Pack<T>& pack, H how_much) const {
        store<STREAM>(row + i, pack, how_much);
    }
};
template <class T> struct AddWide {
    Arithmetic<T>* row;
    template <class H> void operator()(int64_t i, Pack<T> pack, H) const {
        add(pack, 1, Wide<T>::at(row, i));
        Wide<T>::put(row, i, pack);
    }
};

// out[q] takes sum over n of weights[q][n] * rows[n].
template <int QUERIES, class T, class Out>
inline void mix(const T* const* rows, int64_t n, const Arithmetic<T>* weights, int64_t dim,
                const T* const* next, const Out* out) {
    constexpr int GROUP = std::max(1, CHAINS / QUERIES / Pack<T>::vectors);
    over<GROUP, T>(dim, [&](int64_t i, auto how_many, auto how_much) INLINE {
        Pack<T> total[QUERIES][how_many()];
        for (int64_t s = 0; s < n; ++s) fetch(next[s], i / 2, how_many() * Pack<T>::lanes / 2);
        repeat<how_many()>([&](auto g) INLINE {
            const Pack<T> x = load(rows[0] + i + g * Pack<T>::lanes, how_much);
            repeat<QUERIES>([&](auto q) INLINE { total[q][g] = scaled(weights[q * n], x); });
        });
        for (int64_t s = 1; s < n; ++s)
            repeat<how_many()>([&](auto g) INLINE {
                const Pack<T> x = load(rows[s] + i + g * Pack<T>::lanes, how_much);
                repeat<QUERIES>([&](auto q) INLINE { add(total[q][g], weights[q * n + s], x); });
            });
        repeat<QUERIES>([&](auto q) INLINE {
            repeat<how_many()>([&](auto g) INLINE {
                out[q](i + g * Pack<T>::lanes, total[q][g], how_much);
            });
        });
    });
}

// row = weight * (row / RMS(row)), the quotient rounded to T; `weight` is a wide row.
template <class T>
inline void normalise(T* row, const Arithmetic<T>* weight, double eps, int64_t dim) {
    using A = Arithmetic<T>;
    const T* const rows[] = {row};
    A unused[1][1], square;
    products<1, 1, true>(rows, &weight, dim, rows, unused, &square);
    const A scale = 1 / std::sqrt(square / dim + static_cast<A>(eps));
    over<1, T>(dim, [&](int64_t i, auto, auto how_much) INLINE {
        store<false>(row + i, scaled(scale, load(row + i, how_much)), how_much);
        Pack<T> x = load(row + i, how_much);
        multiply(x, Wide<T>::at(weight, i));
        store<false>(row + i, x, how_much);
    });
}

// out = a + b; fetches the rows that are `later` numbers further on.
template <class T>
inline void add_rows(const T* a, const T* b, T* out, int64_t dim, int64_t later) {
    over<4, T>(dim, [&](int64_t i, auto how_many, auto how_much) INLINE {
        fetch(a + later, i, how_many() * Pack<T>::lanes);
        fetch(b + later, i, how_many() * Pack<T>::lanes);
        repeat<how_many()>([&](auto g) INLINE {
            const int64_t at = i + g * Pack<T>::lanes;
            Pack<T> total = load(a + at, how_much);
            add(total, 1, load(b + at, how_much));
            store<false>(out + at, total, how_much);
        });
    });
}

// What a source's gradient is made of at one token: radial * row + sum over queries of
// alpha[q] * e[q] + slope[q] * folded[q].
template <class T> struct SourceGradient {
    using A = Arithmetic<T>;
    const T* row;
    T* out;
    const T *later_half, *later_out;  // fetched
    A radial;
    const A *alpha, *slope;
};

// Gradients of some sources, written or added; the wide rows from `begin` on.
template <int SOURCES, bool ADD, bool STREAM, class T>
inline void source_gradients(const SourceGradient<T>* some, const Arithmetic<T>* const* e,
                             const Arithmetic<T>* const* folded, int64_t Q, int64_t begin,
                             int64_t count) {
    constexpr int GROUP = std::max(1, CHAINS / SOURCES / Pack<T>::vectors);
    over<GROUP, T>(count, [&](int64_t i, auto how_many, auto how_much) INLINE {
        Pack<T> total[SOURCES][how_many()];
        repeat<SOURCES>([&](auto s) INLINE {
            constexpr int n = how_many() * Pack<T>::lanes;
            fetch(some[s].later_half, i / 2, n / 2);
            if constexpr (ADD) fetch(some[s].later_out, i, n);
            repeat<how_many()>([&](auto g) INLINE {
                const int64_t at = i + g * Pack<T>::lanes;
                total[s][g] = scaled(some[s].radial, load(some[s].row + at, how_much));
                if constexpr (ADD) add(total[s][g], 1, load(some[s].out + at, how_much));
            });
        });
        for (int64_t q = 0; q < Q; ++q)
            repeat<how_many()>([&](auto g) INLINE {
                const int64_t at = begin + i + g * Pack<T>::lanes;
                const Pack<T> u = Wide<T>::at(folded[q], at), upstream = Wide<T>::at(e[q], at);
                repeat<SOURCES>([&](auto s) INLINE {
                    add(total[s][g], some[s].slope[q], u);
                    add(total[s][g], some[s].alpha[q], upstream);
                });
            });
        repeat<SOURCES>([&](auto s) INLINE {
            repeat<how_many()>([&](auto g) INLINE {
                store<STREAM>(some[s].out + i + g * Pack<T>::lanes, total[s][g], how_much);
            });
        });
    });
}

// body(i, how many) in groups of N, then one by one.
template <int N, class Body> inline void in_groups(int64_t n, Body body) {
    int64_t i = 0;
    for (; i + N <= n; i += N) body(i, std::integral_constant<int, N>{});
    for (; N > 1 && i < n; ++i) body(i, std::integral_constant<int, 1>{});
}
template <class Body> inline void by_four(int64_t n, Body body) { in_groups<4>(n, body); }

// Weights of one query: alpha[0] of what is given, if anything is, then of the sources; and lse.
template <class A> inline A softmax(const A* logits, int64_t S, const A* given_lse, A* alpha) {
    const int64_t n = S + (given_lse != nullptr);
    if (given_lse) alpha[0] = quiet(*given_lse);
    std::copy(logits, logits + S, alpha + n - S);
    const A largest = *std::max_element(alpha, alpha + n);
    double total = 0;  // S may be in the hundreds
    for (int64_t i = 0; i < n; ++i) total += alpha[i] = std::exp(alpha[i] - largest);
    const A divisor = static_cast<A>(total);
    for (int64_t i = 0; i < n; ++i) alpha[i] /= divisor;
    return largest + std::log(divisor);
}

// S * alpha - 1 of each source: exactly 0 where all logits are equal.
template <class A> inline A excess(const A* logits, int64_t S, A* weights) {
    const A largest = *std::max_element(logits, logits + S);
    double total = 0;
    for (int64_t s = 0; s < S; ++s) total += weights[s] = std::exp(logits[s] - largest);
    for (int64_t s = 0; s < S; ++s)
        weights[s] = static_cast<A>((S * double(weights[s]) - total) / total);
    return largest + std::log(static_cast<A>(total));
}
