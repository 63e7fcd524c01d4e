// Vectors of the widest unit that this is compiled for, and the numbers that they are read from.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
constexpr int VECTOR_BYTES = 64;
#elif defined(__AVX2__)
constexpr int VECTOR_BYTES = 32;
#else
constexpr int VECTOR_BYTES = 16;
#endif
constexpr int LINE_BYTES = 64;

// Memory whose vectors do not lie across two cache lines.
template <class A> struct OnLines {
    using value_type = A;
    OnLines() = default;
    template <class B> OnLines(const OnLines<B>&) {}
    static constexpr std::align_val_t line{LINE_BYTES};
    A* allocate(size_t n) { return static_cast<A*>(::operator new(n * sizeof(A), line)); }
    void deallocate(A* p, size_t) { ::operator delete(p, line); }
    bool operator==(const OnLines&) const = default;
};
template <class A> using Lines = std::vector<A, OnLines<A>>;

struct BFloat16 { uint16_t bits; };
struct Float16 { uint16_t bits; };

template <class T> struct ArithmeticOf { using type = float; };
template <> struct ArithmeticOf<double> { using type = double; };
template <class T> using Arithmetic = typename ArithmeticOf<T>::type;

template <class A> struct VectorOf {
    static constexpr int lanes = VECTOR_BYTES / sizeof(A);
    typedef A type __attribute__((vector_size(VECTOR_BYTES)));
};
template <class A> using Vector = typename VectorOf<A>::type;

using Floats = Vector<float>;
typedef uint32_t Words __attribute__((vector_size(VECTOR_BYTES)));

// A vector's bytes of numbers T as vectors of the arithmetic's type. Sixteen-bit numbers make two:
// of bfloat16 the even places and the odd ones, because these need no shuffle.
template <class T> struct Pack {
    static constexpr int vectors = sizeof(Arithmetic<T>) / sizeof(T);
    static constexpr int lanes = VECTOR_BYTES / sizeof(T);
    Vector<Arithmetic<T>> v[vectors];
};

#define INLINE __attribute__((always_inline))

// body(0), body(1), ... body(N - 1) with constants: arrays that they index stay in registers.
template <int N, class Body> INLINE inline void repeat(Body body) {
    [&]<int... I>(std::integer_sequence<int, I...>) INLINE {
        (body(std::integral_constant<int, I>{}), ...);
    }(std::make_integer_sequence<int, N>{});
}

template <class To, class From> INLINE inline To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

template <class V, class T> INLINE inline V unaligned(const T* p) {
    V v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

template <class V> INLINE inline auto sum(V v) {
    if constexpr (sizeof(V) == 16) {
        auto total = v[0] + v[1];
        if constexpr (sizeof(v[0]) == 4) total += v[2] + v[3];
        return total;
    } else {
        typedef std::remove_reference_t<decltype(v[0])> Half
            __attribute__((vector_size(sizeof(V) / 2)));
        Half halves[2];
        std::memcpy(halves, &v, sizeof v);
        return sum(halves[0] + halves[1]);
    }
}

INLINE inline float widened(float x) { return x; }
INLINE inline double widened(double x) { return x; }
INLINE inline float widened(BFloat16 x) { return bits_as<float>(uint32_t(x.bits) << 16); }
INLINE inline float widened(Float16 x) { return bits_as<_Float16>(x.bits); }

INLINE inline Pack<float> widen(const float* p) { return {unaligned<Floats>(p)}; }
INLINE inline Pack<double> widen(const double* p) { return {unaligned<Vector<double>>(p)}; }
INLINE inline Pack<BFloat16> widen(const BFloat16* p) {
    const Words pairs = unaligned<Words>(p);
    return {bits_as<Floats>(pairs << 16), bits_as<Floats>(pairs & 0xffff0000)};
}
INLINE inline Pack<Float16> widen(const Float16* p) {
    Pack<Float16> pack;
    constexpr int floats = Pack<float>::lanes;
    for (int j = 0; j < 2; ++j) {
#if defined(__AVX512F__)
        pack.v[j] = bits_as<Floats>(_mm512_cvtph_ps(unaligned<__m256i>(p + j * floats)));
#elif defined(__F16C__)
        pack.v[j] = bits_as<Floats>(_mm256_cvtph_ps(unaligned<__m128i>(p + j * floats)));
#else
        for (int i = 0; i < floats; ++i)
            pack.v[j][i] = widened(p[j * floats + i]);
#endif
    }
    return pack;
}

INLINE inline Floats narrow(Pack<float> pack) { return pack.v[0]; }
INLINE inline Vector<double> narrow(Pack<double> pack) { return pack.v[0]; }
// In the upper half of each word, ties to even. A NaN stays one if it came from a bfloat16 or from
// `quiet`: others could carry over into the sign.
INLINE inline Words rounded_to_bfloat16(Floats v) {
    const Words bits = bits_as<Words>(v);
    return bits + 0x7fff + ((bits >> 16) & 1);
}
template <class A> INLINE inline A quiet(A x) {
    return x == x ? x : std::numeric_limits<A>::quiet_NaN();
}
INLINE inline Words narrow(Pack<BFloat16> pack) {
    return (rounded_to_bfloat16(pack.v[0]) >> 16) |
           (rounded_to_bfloat16(pack.v[1]) & 0xffff0000);
}
INLINE inline Words narrow(Pack<Float16> pack) {
    uint16_t halves[Pack<Float16>::lanes];
    constexpr int floats = Pack<float>::lanes;
    for (int j = 0; j < 2; ++j) {
#if defined(__AVX512F__)
        const auto part = _mm512_cvtps_ph(bits_as<__m512>(pack.v[j]), _MM_FROUND_TO_NEAREST_INT);
        std::memcpy(halves + j * floats, &part, sizeof part);
#elif defined(__F16C__)
        const auto part = _mm256_cvtps_ph(bits_as<__m256>(pack.v[j]), _MM_FROUND_TO_NEAREST_INT);
        std::memcpy(halves + j * floats, &part, sizeof part);
#else
        for (int i = 0; i < floats; ++i)
            halves[j * floats + i] = bits_as<uint16_t>(static_cast<_Float16>(pack.v[j][i]));
#endif
    }
    return unaligned<Words>(halves);
}

// A store past the caches, for aligned memory that is not read again soon.
template <class V> INLINE inline void stream(void* p, V v) {
#if defined(__AVX512F__)
    _mm512_stream_si512(static_cast<__m512i*>(p), bits_as<__m512i>(v));
#elif defined(__AVX2__)
    _mm256_stream_si256(static_cast<__m256i*>(p), bits_as<__m256i>(v));
#elif defined(__x86_64__)
    _mm_stream_si128(static_cast<__m128i*>(p), bits_as<__m128i>(v));
#else
    std::memcpy(p, &v, sizeof v);
#endif
}

// How much of a pack there is: all of it, or the first `n` numbers at the end of a row.
struct Whole {};
struct Part { int n; };

template <class T> INLINE inline Pack<T> load(const T* p, Whole) { return widen(p); }
template <class T> INLINE inline Pack<T> load(const T* p, Part part) {
    T padded[Pack<T>::lanes] = {};
    std::memcpy(padded, p, part.n * sizeof(T));
    return widen(padded);
}

template <bool STREAM, class T> INLINE inline void store(T* p, Pack<T> pack, Whole) {
    const auto narrowed = narrow(pack);
    if constexpr (STREAM) stream(p, narrowed);
    else std::memcpy(p, &narrowed, sizeof narrowed);
}
template <bool STREAM, class T> INLINE inline void store(T* p, Pack<T> pack, Part part) {
    const auto narrowed = narrow(pack);
    std::memcpy(p, &narrowed, part.n * sizeof(T));
}

template <class T>
INLINE inline void add(Pack<T>& total, Arithmetic<T> weight, const Pack<T>& pack) {
    repeat<Pack<T>::vectors>([&](auto j) INLINE { total.v[j] += weight * pack.v[j]; });
}

template <class T>
INLINE inline void add_product(Vector<Arithmetic<T>>& total, const Pack<T>& a, const Pack<T>& b) {
    repeat<Pack<T>::vectors>([&](auto j) INLINE { total += a.v[j] * b.v[j]; });
}
template <class T> INLINE inline Pack<T> scaled(Arithmetic<T> weight, Pack<T> pack) {
    repeat<Pack<T>::vectors>([&](auto j) INLINE { pack.v[j] *= weight; });
    return pack;
}

template <class T> INLINE inline void multiply(Pack<T>& total, const Pack<T>& pack) {
    repeat<Pack<T>::vectors>([&](auto j) INLINE { total.v[j] *= pack.v[j]; });
}

// body(i, how many packs, how much of each) along a row: groups, single packs, the rest.
template <int GROUP, class T, class Body> INLINE inline void over(int64_t dim, Body body) {
    constexpr int lanes = Pack<T>::lanes;
    int64_t i = 0;
    for (; i + GROUP * lanes <= dim; i += GROUP * lanes)
        body(i, std::integral_constant<int, GROUP>{}, Whole{});
    for (; i + lanes <= dim; i += lanes) body(i, std::integral_constant<int, 1>{}, Whole{});
    if (i < dim) body(i, std::integral_constant<int, 1>{}, Part{static_cast<int>(dim - i)});
}

// A row in the arithmetic's type, in the order of packs of T, with zeros up to a whole pack.
template <class T> class Wide {
    using A = Arithmetic<T>;

  public:
    static int64_t width(int64_t dim) {
        return (dim + Pack<T>::lanes - 1) / Pack<T>::lanes * Pack<T>::lanes;
    }
    INLINE static Pack<T> at(const A* row, int64_t i) {
        Pack<T> pack;
        repeat<Pack<T>::vectors>([&](auto j) INLINE {
            pack.v[j] = unaligned<Vector<A>>(row + i + j * VectorOf<A>::lanes);
        });
        return pack;
    }
    INLINE static void put(A* row, int64_t i, const Pack<T>& pack) {
        repeat<Pack<T>::vectors>([&](auto j) INLINE {
            std::memcpy(row + i + j * VectorOf<A>::lanes, &pack.v[j], sizeof pack.v[j]);
        });
    }
    static void read(A* row, const T* from, int64_t dim) {
        over<1, T>(dim, [&](int64_t i, auto, auto how_much) {
            put(row, i, load(from + i, how_much));
        });
    }
    // where the number at i of a plain row stands
    static int64_t place(int64_t i) {
        if constexpr (!std::is_same_v<T, BFloat16>) return i;
        constexpr int64_t lanes = Pack<T>::lanes;
        return i / lanes * lanes + i % 2 * (lanes / 2) + i % lanes / 2;
    }
};
