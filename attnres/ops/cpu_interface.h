// What cpu.py hands over: structs of plain C, in the order in which it packs them.
#pragma once

#include <cstdint>

extern "C" {

struct Read {
    int64_t dtype;  // 0 float32, 1 bfloat16, 2 float16, 3 float64
    int64_t n_rows, dim, n_sources, n_queries, n_threads;
    int64_t stream;  // write past the caches
    double eps;
    const void* folded;             // [Q, D], as lse, rstd and logits in the arithmetic's type
    const void* const* sources;     // S times rows of dim, one at each multiple of the stride
    const int64_t* source_strides;  // in numbers; null is dim
    const void* given_mix;          // [Q, R, D] or null
    const void* given_lse;          // [Q, R], not read where centered
    int64_t centered;               // sources weigh S * alpha - 1, what is given 1
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

// A read without gradients, of dense rows; `folded` is made here, so it is never out of date.
struct QuickRead {
    Read read;
    int64_t wide;  // queries and key weights are of the arithmetic's type, not of the sources'
    const void* const* queries;      // Q times [D]
    const void* const* key_weights;  // Q times [D]
    void* const* mixes;              // Q times [R, D]
    void* lse;                       // [Q, R] or null
    const void* terms[2];            // [R, D] each, or null
    void* total;                     // their sum, which is the last source
    const void* norm_weight;         // [D] of the sources' dtype: of an RMSNorm of the mix of one
                                     // query, which is then written in the mix's place; or null
    double norm_eps;
};
}
