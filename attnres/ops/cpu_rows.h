// What is done to a row: products with other rows, mixing, a source's gradient, the softmax.
#pragma once

#include <algorithm>
#include <cmath>

#include "cpu_vector.h"

constexpr int ACCUMULATORS = 8; // vectors that leave registers for the operands

template <class T> inline void fetch(const T* p, int64_t i, int packs) {
    const char* at = reinterpret_cast<const char*>(p + i);
    for (int b = 0; b < packs * VECTOR_BYTES; b += LINE_BYTES) __builtin_prefetch(at + b);
}

// out[q] = row . with[q] for QUERIES wide rows, and the sum of squares where asked; fetches `next`.
template <int QUERIES, bool SQUARES, class T>
inline void products(const T* row, const Arithmetic<T>* const* with, int64_t dim, const T* next,
                     Arithmetic<T>* out, Arithmetic<T>* squares) {
    // a lone query keeps half of the accumulators for squares
    constexpr int vectors = QUERIES == 1 ? ACCUMULATORS / 2 : ACCUMULATORS / QUERIES;
    constexpr int GROUP = std::max(1, vectors / Pack<T>::vectors);
    Pack<T> dot[QUERIES][GROUP] = {}, square[GROUP] = {};
    over<GROUP, T>(dim, [&](int64_t i, auto how_many, auto how_much) INLINE {
        if (next) fetch(next, i, how_many());
        repeat<how_many()>([&](auto g) INLINE {
            const int64_t at = i + g * Pack<T>::lanes;
            const Pack<T> x = load(row + at, how_much);
            repeat<QUERIES>([&](auto q) INLINE { add(dot[q][g], x, Wide<T>::at(with[q], at)); });
            if constexpr (SQUARES) add(square[g], x, x);
        });
    });
    repeat<QUERIES>([&](auto q) INLINE { out[q] = sum_of(dot[q]); });
    if constexpr (SQUARES) *squares = sum_of(square);
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
                const Out* out) {
    constexpr int GROUP = std::max(1, ACCUMULATORS / QUERIES / Pack<T>::vectors);
    over<GROUP, T>(dim, [&](int64_t i, auto how_many, auto how_much) INLINE {
        Pack<T> total[QUERIES][how_many()];
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

// out = radial * row + sum over queries of alpha[q] * e[q] + slope[q] * folded[q], written or
// added; the wide rows from `begin` on.
template <bool ADD, bool STREAM, class T>
void source_gradient(const T* row, Arithmetic<T> radial, const Arithmetic<T>* const* e,
                     const Arithmetic<T>* alpha, const Arithmetic<T>* const* folded,
                     const Arithmetic<T>* slope, int64_t Q, int64_t begin, int64_t count, T* out,
                     const T* next) {
    constexpr int GROUP = 4;
    over<GROUP, T>(count, [&](int64_t i, auto how_many, auto how_much) INLINE {
        Pack<T> total[how_many()];
        if (next) fetch(next, i, how_many());
        repeat<how_many()>([&](auto g) INLINE {
            const int64_t at = i + g * Pack<T>::lanes;
            total[g] = scaled(radial, load(row + at, how_much));
            if constexpr (ADD) add(total[g], 1, load(out + at, how_much));
        });
        for (int64_t q = 0; q < Q; ++q)
            repeat<how_many()>([&](auto g) INLINE {
                const int64_t at = begin + i + g * Pack<T>::lanes;
                add(total[g], slope[q], Wide<T>::at(folded[q], at));
                add(total[g], alpha[q], Wide<T>::at(e[q], at));
            });
        repeat<how_many()>([&](auto g) INLINE {
            store<STREAM>(out + i + g * Pack<T>::lanes, total[g], how_much);
        });
    });
}

// body(q, how many) for the queries in groups of four, then one by one.
template <class Body> inline void by_four(int64_t n_queries, Body body) {
    int64_t q = 0;
    for (; q + 4 <= n_queries; q += 4) body(q, std::integral_constant<int, 4>{});
    for (; q < n_queries; ++q) body(q, std::integral_constant<int, 1>{});
}

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
