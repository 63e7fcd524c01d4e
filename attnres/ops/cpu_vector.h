// Vectors of the widest unit that this file is compiled for, and the number types they are read from.
#pragma once

#include <cstdint>
#include <cstring>
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
template <class T> constexpr int LANES = VectorOf<Arithmetic<T>>::lanes;

using Floats = Vector<float>;
constexpr int FLOATS = VectorOf<float>::lanes;
typedef uint32_t Words __attribute__((vector_size(VECTOR_BYTES)));
typedef uint16_t Halves __attribute__((vector_size(VECTOR_BYTES / 2)));

template <class To, class From> inline To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

template <class V, class T> inline V unaligned(const T* p) {
    V v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

inline Floats widen(const float* p) { return unaligned<Floats>(p); }
inline Vector<double> widen(const double* p) { return unaligned<Vector<double>>(p); }
inline Floats widen(const BFloat16* p) {
    return bits_as<Floats>(__builtin_convertvector(unaligned<Halves>(p), Words) << 16);
}
inline Floats widen(const Float16* p) {
#if defined(__AVX512F__)
    return bits_as<Floats>(_mm512_cvtph_ps(unaligned<__m256i>(p)));
#elif defined(__F16C__)
    return bits_as<Floats>(_mm256_cvtph_ps(unaligned<__m128i>(p)));
#else
    Floats v;
    for (int i = 0; i < FLOATS; ++i) v[i] = bits_as<_Float16>(p[i].bits);
    return v;
#endif
}

inline Floats narrow(Floats v, float) { return v; }
inline Vector<double> narrow(Vector<double> v, double) { return v; }
inline Halves narrow(Floats v, BFloat16) {
#if defined(__AVX512BF16__)
    return bits_as<Halves>(_mm512_cvtneps_pbh(bits_as<__m512>(v)));
#else
    const Words bits = bits_as<Words>(v);
    const Words rounded = bits + 0x7fff + ((bits >> 16) & 1);  // to nearest, ties to even
    const Words is_nan = bits_as<Words>(v != v);
    return __builtin_convertvector(((is_nan & (bits | 0x400000)) | (~is_nan & rounded)) >> 16, Halves);
#endif
}
inline Halves narrow(Floats v, Float16) {
#if defined(__AVX512F__)
    return bits_as<Halves>(_mm512_cvtps_ph(bits_as<__m512>(v), _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
    return bits_as<Halves>(_mm256_cvtps_ph(bits_as<__m256>(v), _MM_FROUND_TO_NEAREST_INT));
#else
    Halves halves;
    for (int i = 0; i < FLOATS; ++i) halves[i] = bits_as<uint16_t>(static_cast<_Float16>(v[i]));
    return halves;
#endif
}

// A store past the caches, for aligned memory that is not read again soon.
template <class V> inline void stream(void* p, V v) {
#if defined(__AVX512F__)
    if constexpr (sizeof v == 64) return _mm512_stream_si512((__m512i*)p, bits_as<__m512i>(v));
#endif
#if defined(__AVX2__)
    if constexpr (sizeof v == 32) return _mm256_stream_si256((__m256i*)p, bits_as<__m256i>(v));
    if constexpr (sizeof v == 16) return _mm_stream_si128((__m128i*)p, bits_as<__m128i>(v));
#endif
    std::memcpy(p, &v, sizeof v);
}

// How much of a vector there is: all of it, or the first `n` lanes at the end of a row.
struct Whole {};
struct Part { int n; };

template <class T> inline auto load(const T* p, Whole) { return widen(p); }
template <class T> inline auto load(const T* p, Part part) {
    T padded[LANES<T>] = {};
    std::memcpy(padded, p, part.n * sizeof(T));
    return widen(padded);
}

template <bool STREAM, class T> inline void store(T* p, Vector<Arithmetic<T>> v, Whole) {
    const auto narrowed = narrow(v, T{});
    if constexpr (STREAM) stream(p, narrowed);
    else std::memcpy(p, &narrowed, sizeof narrowed);
}
template <bool STREAM, class T> inline void store(T* p, Vector<Arithmetic<T>> v, Part part) {
    const auto narrowed = narrow(v, T{});
    std::memcpy(p, &narrowed, part.n * sizeof(T));
}

template <class V> inline auto sum(V v) {
    constexpr int lanes = sizeof(V) / sizeof(v[0]);
    auto total = v[0];
    for (int i = 1; i < lanes; ++i) total += v[i];
    return total;
}
