"""The forward of depth attention as Triton kernels; `triton_table.py` has the letters.

forward_online   one query, a row in registers: reads each source once
forward_sweeps   any queries, any width: reads each source once from memory and, right after,
                 once more from a cache, since a running mix of every query does not fit
"""

import triton
import triton.language as tl

from attnres.ops.triton_table import by_row, read, rms_reciprocal


@triton.jit(do_not_specialize=["n_rows", "n_sources"])
def forward_online(
    p_table,
    p_folded,
    p_given_mix,
    p_given_lse,
    p_mix,
    p_lse,
    p_rstd,
    p_logits,
    n_rows,
    n_sources,
    eps,
    DIM: tl.constexpr,
    BR: tl.constexpr,
    BC: tl.constexpr,
    ALIGN: tl.constexpr,
    DTYPE: tl.constexpr,
    HAS_GIVEN: tl.constexpr,
):
    """One query, DIM <= BC: softmax and mix run along, rescaled where a larger logit comes."""
    o_R = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)  # [BR]
    o_D = tl.arange(0, BC)  # [BC]
    m_R = o_R < n_rows
    m_RD = m_R[:, None] & (o_D < DIM)[None, :]  # [BR, BC]
    p_mix_RD = p_mix + o_R[:, None] * DIM + o_D[None, :]
    b_folded = tl.load(p_folded + o_D, mask=o_D < DIM, other=0.0)[None, :]  # [1, BC]
    if HAS_GIVEN:
        b_max = tl.load(p_given_lse + o_R, mask=m_R, other=0.0)  # [BR]
        b_sum = tl.full([BR], 1.0, tl.float32)
        p_given = p_given_mix + o_R[:, None] * DIM + o_D[None, :]
        b_mix = tl.load(p_given, mask=m_RD, other=0.0).to(tl.float32)
    else:
        b_max = tl.full([BR], float("-inf"), tl.float32)
        b_sum = tl.zeros([BR], tl.float32)
        b_mix = tl.zeros([BR, BC], tl.float32) * -1.0  # -0 alters no summand
    b_next = read(p_table, 0, o_R, o_D, m_RD, ALIGN, DTYPE)
    for i in range(n_sources):
        b_value = b_next.to(tl.float32)  # [BR, BC]
        i_next = tl.minimum(i + 1, n_sources - 1)
        m_next = m_RD & (by_row(i + 1, o_R) < n_sources)
        b_next = read(p_table, i_next, o_R, o_D, m_next, ALIGN, DTYPE)
        b_rstd = rms_reciprocal(tl.sum(b_value * b_value, axis=1), eps, DIM)  # [BR]
        b_logit = b_rstd * tl.sum(b_value * b_folded, axis=1)
        tl.store(p_rstd + o_R * n_sources + i, b_rstd, mask=m_R)
        tl.store(p_logits + o_R * n_sources + i, b_logit, mask=m_R)
        b_new_max = tl.maximum(b_max, b_logit)
        b_kept, b_weight = tl.exp(b_max - b_new_max), tl.exp(b_logit - b_new_max)
        b_max = b_new_max
        b_sum = b_sum * b_kept + b_weight
        b_mix = b_mix * b_kept[:, None] + b_weight[:, None] * b_value
    b_mix = b_mix * tl.div_rn(1.0, b_sum)[:, None]
    tl.store(p_mix_RD, b_mix.to(DTYPE), mask=m_RD)
    tl.store(p_lse + o_R, b_max + tl.log(b_sum), mask=m_R)


@triton.jit(do_not_specialize=["n_rows", "n_sources", "dim"])
def forward_sweeps(
    p_table,
    p_folded,
    p_given_mix,
    p_given_lse,
    p_mix,
    p_lse,
    p_rstd,
    p_logits,
    n_rows,
    n_sources,
    eps,
    dim,  # as DIM, but unknown to the compiler, which would unroll the loops over it
    DIM: tl.constexpr,
    Q: tl.constexpr,
    BR: tl.constexpr,
    BC: tl.constexpr,
    BS: tl.constexpr,
    ALIGN: tl.constexpr,
    DTYPE: tl.constexpr,
    HAS_GIVEN: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """All logits of BR tokens in a first sweep over their sources, the mixes in a second."""
    o_R = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)  # [BR]
    m_R = o_R < n_rows
    for i in range(n_sources):
        b_square = tl.zeros([BR, BC], tl.float32)
        b_dots = ()
        for _ in tl.static_range(Q):
            b_dots = b_dots + (tl.zeros([BR, BC], tl.float32),)
        for start in tl.range(0, dim, BC, loop_unroll_factor=UNROLL):
            o_D = start + tl.arange(0, BC)  # [BC]
            m_RD = m_R[:, None] & (o_D < DIM)[None, :]
            b_value = read(p_table, i, o_R, o_D, m_RD, ALIGN, DTYPE).to(tl.float32)  # [BR, BC]
            b_square += b_value * b_value
            b_more = ()
            for q in tl.static_range(Q):
                b_folded = tl.load(p_folded + q * DIM + o_D, mask=o_D < DIM, other=0.0)
                b_more = b_more + (b_dots[q] + b_value * b_folded[None, :],)
            b_dots = b_more
        b_rstd = rms_reciprocal(tl.sum(b_square, axis=1), eps, DIM)  # [BR]
        tl.store(p_rstd + o_R * n_sources + i, b_rstd, mask=m_R)
        for q in tl.static_range(Q):
            o_logit = (q * n_rows + o_R) * n_sources + i
            tl.store(p_logits + o_logit, b_rstd * tl.sum(b_dots[q], axis=1), mask=m_R)
    tl.debug_barrier()  # the logits are read by other threads than wrote them
    o_S = tl.arange(0, BS)  # [BS]
    b_maxima, b_scales = (), ()
    for q in tl.static_range(Q):
        p_logit = p_logits + (q * n_rows + o_R)[:, None] * n_sources + o_S[None, :]
        m_RS = m_R[:, None] & (o_S < n_sources)[None, :]
        b_logit = tl.load(p_logit, mask=m_RS, other=0.0)
        b_logit = tl.where((o_S < n_sources)[None, :], b_logit, float("-inf"))  # [BR, BS]
        b_max = tl.max(b_logit, axis=1)  # [BR]
        if HAS_GIVEN:
            b_lse = tl.load(p_given_lse + q * n_rows + o_R, mask=m_R, other=0.0)
            b_max = tl.maximum(b_max, b_lse)
            b_sum = tl.exp(b_lse - b_max) + tl.sum(tl.exp(b_logit - b_max[:, None]), axis=1)
        else:
            b_sum = tl.sum(tl.exp(b_logit - b_max[:, None]), axis=1)
        tl.store(p_lse + q * n_rows + o_R, b_max + tl.log(b_sum), mask=m_R)
        b_maxima = b_maxima + (b_max,)
        b_scales = b_scales + (tl.div_rn(1.0, b_sum),)
    for start in range(0, dim, BC):
        o_D = start + tl.arange(0, BC)  # [BC]
        m_RD = m_R[:, None] & (o_D < DIM)[None, :]
        b_mixes = ()
        for q in tl.static_range(Q):
            b_mix = tl.zeros([BR, BC], tl.float32) * -1.0  # -0 alters no summand
            if HAS_GIVEN:
                o_given = (q * n_rows + o_R)[:, None] * DIM + o_D[None, :]
                b_given = tl.load(p_given_mix + o_given, mask=m_RD, other=0.0).to(tl.float32)
                b_lse = tl.load(p_given_lse + q * n_rows + o_R, mask=m_R, other=0.0)
                b_mix = tl.exp(b_lse - b_maxima[q])[:, None] * b_given
            b_mixes = b_mixes + (b_mix,)
        for i in range(n_sources):
            b_value = read(p_table, i, o_R, o_D, m_RD, ALIGN, DTYPE).to(tl.float32)
            b_more = ()
            for q in tl.static_range(Q):
                o_logit = (q * n_rows + o_R) * n_sources + i
                b_one = tl.load(p_logits + o_logit, mask=m_R, other=0.0)  # [BR]
                b_weight = tl.exp(b_one - b_maxima[q])[:, None]
                b_more = b_more + (b_mixes[q] + b_weight * b_value,)
            b_mixes = b_more
        for q in tl.static_range(Q):
            o_mix = (q * n_rows + o_R)[:, None] * DIM + o_D[None, :]
            b_mix = b_mixes[q] * b_scales[q][:, None]
            tl.store(p_mix + o_mix, b_mix.to(DTYPE), mask=m_RD)
