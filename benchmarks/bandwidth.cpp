// Memory probes for the bandwidth floor: nothing but the loads or the stores that a floor counts.
#include <omp.h>
#include <stdint.h>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

typedef uint64_t Half __attribute__((vector_size(32)));
struct Line { Half half[2]; };  // one cache line

static const int64_t STREAMS = 4;  // as many rows are summed at once
static const int64_t AHEAD = 16;   // lines

// `stride` lines apart: 1 reads on, a quarter of all reads four streams.
static Half read_span(const Line* data, int64_t n, int64_t stride, int64_t step) {
  Half sum[2 * STREAMS] = {};
  const int64_t quarter = n / STREAMS;
  for (int64_t i = 0; i < quarter; ++i)
#pragma GCC unroll 4
    for (int64_t s = 0; s < STREAMS; ++s) {
      const Line* line = data + s * stride + i * step;
      __builtin_prefetch(line + AHEAD * step);
      sum[2 * s] += line->half[0];
      sum[2 * s + 1] += line->half[1];
    }
  for (int64_t i = quarter * STREAMS; i < n; ++i) sum[0] += data[i].half[0] + data[i].half[1];
  for (int64_t s = 1; s < 2 * STREAMS; ++s) sum[0] += sum[s];
  return sum[0];
}

static void store_past_caches(Line* to, const Line& line) {
#if defined(__AVX__)
  for (int i = 0; i < 2; ++i)
    _mm256_stream_si256((__m256i*)to + i, (__m256i)line.half[i]);
#elif defined(__SSE2__)
  for (int i = 0; i < 4; ++i)
    _mm_stream_si128((__m128i*)to + i, ((const __m128i*)&line)[i]);
#else
  *to = line;
#endif
}

static void fence() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

template <typename Work>
static void each_thread(int64_t n, int threads, Work work) {
#pragma omp parallel num_threads(threads)
  {
    const int64_t i = omp_get_thread_num(), all = omp_get_num_threads();
    work(n * i / all, n * (i + 1) / all);
  }
}

// All take n lines of 64 bytes, aligned to 64 bytes.
extern "C" uint64_t read_lines(const Line* data, int64_t n, int threads, int streams) {
  uint64_t total = 0;
  each_thread(n, threads, [&](int64_t begin, int64_t end) {
    const int64_t own_lines = end - begin, quarter = own_lines / STREAMS;
    const Half sum = streams > 1 ? read_span(data + begin, own_lines, quarter, 1)
                                 : read_span(data + begin, own_lines, 1, STREAMS);
    const uint64_t own = sum[0] + sum[1] + sum[2] + sum[3];
#pragma omp atomic
    total += own;
  });
  return total;
}

extern "C" void fill_lines(Line* data, int64_t n, int threads) {
  each_thread(n, threads, [&](int64_t begin, int64_t end) {
    const Line line = {{{1, 2, 3, 4}, {5, 6, 7, 8}}};
    for (int64_t i = begin; i < end; ++i) store_past_caches(data + i, line);
    fence();
  });
}

extern "C" void copy_lines(Line* to, const Line* from, int64_t n, int threads) {
  each_thread(n, threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      __builtin_prefetch(from + i + AHEAD);
      store_past_caches(to + i, from[i]);
    }
    fence();
  });
}
