"""The backward of depth attention as Triton kernels; `triton_table.py` has the letters.

The formulas are those of `closed_form.py`. A program takes tile after tile of tokens; it reads the
sources of a tile once from memory and, right after, once more from a cache. Each program has its
own part of du, and nothing is added atomically, so results repeat to the bit.

The scratch of a program holds scalars of its tile: [BR, S, 2 Q + 1], for every query v . e and
later the slope dL/dlogit / rms, then the weights, then the factor of the source itself; and
[Q, BR], what is given . e and later its weight. The query is last, so that one address serves all.
"""

import triton
import triton.language as tl

from attnres.ops.triton_table import by_row, read, rows


@triton.jit
def given_dots(
    p_upstream,
    p_given_mix,
    p_given,
    n_rows,
    o_R,
    o_tile,
    DIM: tl.constexpr,
    Q: tl.constexpr,
    BR: tl.constexpr,
    BC: tl.constexpr,
    ALIGN: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """What is given . e of each query, into the scratch."""
    for q in range(Q):
        b_product = tl.zeros([BR, BC], tl.float32)
        for start in range(0, DIM, BC):
            o_D = start + tl.arange(0, BC)  # [BC]
            m_RD = (o_R < n_rows)[:, None] & (o_D < DIM)[None, :]
            o_given = (q * n_rows + o_R)[:, None] * DIM + o_D[None, :]
            b_given = tl.load(p_given_mix + o_given, mask=m_RD, other=0.0).to(tl.float32)
            b_up = read(p_upstream, q, o_R, o_D, m_RD, ALIGN, DTYPE).to(tl.float32)
            b_product += b_given * b_up
        tl.store(p_given + q * BR + o_tile, tl.sum(b_product, axis=1))


@triton.jit
def dots(
    p_table,
    p_upstream,
    p_scratch,
    n_rows,
    n_sources,
    o_R,
    o_tile,
    DIM: tl.constexpr,
    Q: tl.constexpr,
    BR: tl.constexpr,
    BC: tl.constexpr,
    ALIGN: tl.constexpr,
    DTYPE: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """v . e of each source and query, into the scratch."""
    for i in range(n_sources):
        b_products = ()
        for _ in tl.static_range(Q):
            b_products = b_products + (tl.zeros([BR, BC], tl.float32),)
        for start in tl.range(0, DIM, BC, loop_unroll_factor=UNROLL):
            o_D = start + tl.arange(0, BC)  # [BC]
            m_RD = (o_R < n_rows)[:, None] & (o_D < DIM)[None, :]
            b_value = read(p_table, i, o_R, o_D, m_RD, ALIGN, DTYPE).to(tl.float32)  # [BR, BC]
            b_more = ()
            for q in tl.static_range(Q):
                b_up = read(p_upstream, q, o_R, o_D, m_RD, ALIGN, DTYPE).to(tl.float32)
                b_more = b_more + (b_products[q] + b_value * b_up,)
            b_products = b_more
        p_scalars = p_scratch + (o_tile * n_sources + i) * (2 * Q + 1)  # [BR]
        for q in tl.static_range(Q):
            tl.store(p_scalars + q, tl.sum(b_products[q], axis=1))


@triton.jit
def slopes(
    p_given_lse,
    p_rstd,
    p_logits,
    p_lse_gradient,
    p_given_lse_gradient,
    p_scratch,
    p_given,
    n_rows,
    n_sources,
    o_R,
    o_tile,
    DIM: tl.constexpr,
    Q: tl.constexpr,
    BR: tl.constexpr,
    BS: tl.constexpr,
    HAS_GIVEN: tl.constexpr,
    HAS_LSE_GRADIENT: tl.constexpr,
):
    """Weights and slopes from the products with e, all in the scratch."""
    o_S = tl.arange(0, BS)  # [BS]
    m_R = o_R < n_rows
    m_S = (o_S < n_sources)[None, :]
    m_RS = m_R[:, None] & m_S  # [BR, BS]
    p_scalars = p_scratch + (o_tile[:, None] * n_sources + o_S[None, :]) * (2 * Q + 1)
    b_rstd = tl.load(p_rstd + o_R[:, None] * n_sources + o_S[None, :], mask=m_RS, other=0.0)
    b_radial = tl.zeros([BR, BS], tl.float32)
    for q in range(Q):
        p_logit = p_logits + (q * n_rows + o_R)[:, None] * n_sources + o_S[None, :]
        b_logit = tl.load(p_logit, mask=m_RS, other=0.0)
        b_max = tl.max(tl.where(m_S, b_logit, float("-inf")), axis=1)  # [BR]
        if HAS_GIVEN:
            b_lse = tl.load(p_given_lse + q * n_rows + o_R, mask=m_R, other=0.0)
            b_max = tl.maximum(b_max, b_lse)
        b_weight = tl.where(m_S, tl.exp(b_logit - b_max[:, None]), 0.0)  # [BR, BS]
        b_sum = tl.sum(b_weight, axis=1)
        if HAS_GIVEN:
            b_given_alpha = tl.exp(b_lse - b_max)
            b_sum += b_given_alpha
        b_scale = tl.div_rn(1.0, b_sum)  # [BR]
        b_alpha = b_weight * b_scale[:, None]
        b_dot = tl.load(p_scalars + q, mask=m_RS, other=0.0)
        b_mean = tl.sum(b_alpha * b_dot, axis=1)  # [BR], mix . e
        if HAS_GIVEN:
            b_given_alpha *= b_scale
            b_given_dot = tl.load(p_given + q * BR + o_tile)
            b_mean += b_given_alpha * b_given_dot
            b_given_slope = b_given_alpha * (b_given_dot - b_mean)
        b_slope = b_alpha * (b_dot - b_mean[:, None])
        if HAS_LSE_GRADIENT:
            b_up = tl.load(p_lse_gradient + q * n_rows + o_R, mask=m_R, other=0.0)
            b_slope += b_alpha * b_up[:, None]
            if HAS_GIVEN:
                b_given_slope += b_given_alpha * b_up
        if HAS_GIVEN:
            tl.store(p_given_lse_gradient + q * n_rows + o_R, b_given_slope, mask=m_R)
        b_slope *= b_rstd
        b_radial -= b_slope * b_logit
        tl.debug_barrier()  # all threads have read the products that are now overwritten
        if HAS_GIVEN:
            tl.store(p_given + q * BR + o_tile, b_given_alpha)
        tl.store(p_scalars + q, b_slope, mask=m_RS)
        tl.store(p_scalars + Q + q, b_alpha, mask=m_RS)
    tl.store(p_scalars + 2 * Q, b_radial * b_rstd / DIM, mask=m_RS)


@triton.jit
def gradients(
    p_table,
    p_folded,
    p_upstream,
    p_buffers,
    p_added,
    p_given_mix_gradient,
    p_scratch,
    p_given,
    p_part,
    n_rows,
    n_sources,
    o_R,
    o_tile,
    start,
    DIM: tl.constexpr,
    Q: tl.constexpr,
    BR: tl.constexpr,
    BC: tl.constexpr,
    ALIGN: tl.constexpr,
    DTYPE: tl.constexpr,
    HAS_GIVEN: tl.constexpr,
    NEEDS_FOLDED: tl.constexpr,
):
    """BC columns of all gradients of the tile."""
    o_D = start + tl.arange(0, BC)  # [BC]
    m_R, m_D = o_R < n_rows, o_D < DIM
    m_RD = m_R[:, None] & m_D[None, :]
    b_ups, b_parts = (), ()
    for q in tl.static_range(Q):
        b_up = read(p_upstream, q, o_R, o_D, m_RD, ALIGN, DTYPE)  # [BR, BC]
        b_ups = b_ups + (b_up,)
        b_parts = b_parts + (tl.zeros([BR, BC], tl.float32),)
        if HAS_GIVEN:
            o_given = (q * n_rows + o_R)[:, None] * DIM + o_D[None, :]
            b_given_alpha = tl.load(p_given + q * BR + o_tile)[:, None]
            b_given = b_given_alpha * b_up.to(tl.float32)
            tl.store(p_given_mix_gradient + o_given, b_given.to(DTYPE), mask=m_RD)
    for i in range(n_sources):
        b_value = read(p_table, i, o_R, o_D, m_RD, ALIGN, DTYPE).to(tl.float32)
        p_scalars = p_scratch + (o_tile * n_sources + i) * (2 * Q + 1)  # [BR]
        b_gradient = tl.load(p_scalars + 2 * Q, mask=m_R, other=0.0)[:, None] * b_value
        b_more = ()
        for q in tl.static_range(Q):
            b_slope = tl.load(p_scalars + q, mask=m_R, other=0.0)[:, None]  # [BR, 1]
            b_alpha = tl.load(p_scalars + Q + q, mask=m_R, other=0.0)[:, None]
            b_folded = tl.load(p_folded + q * DIM + o_D, mask=m_D, other=0.0)[None, :]
            b_gradient += b_slope * b_folded
            b_gradient += b_alpha * b_ups[q].to(tl.float32)
            b_more = b_more + (b_parts[q] + b_slope * b_value,)
        b_parts = b_more
        p_buffer, m_there = rows(p_buffers, i, o_R, ALIGN, DTYPE)
        m_added = m_there & (by_row(tl.load(p_added + i), o_R) != 0)
        p_buffer += o_D[None, :]  # [BR, BC]
        b_gradient += tl.load(p_buffer, mask=m_RD & m_added, other=0.0).to(tl.float32)
        tl.store(p_buffer, b_gradient.to(DTYPE), mask=m_RD & m_there)
    if NEEDS_FOLDED:
        b_sums = ()
        for q in tl.static_range(Q):
            b_before = tl.load(p_part + q * DIM + o_D, mask=m_D, other=0.0)  # [BC]
            b_sums = b_sums + (b_before + tl.sum(b_parts[q], axis=0),)
        tl.debug_barrier()  # all threads have read what is now overwritten
        for q in tl.static_range(Q):
            tl.store(p_part + q * DIM + o_D, b_sums[q], mask=m_D)


@triton.jit(do_not_specialize=["n_rows", "n_sources"])
def backward_tiles(
    p_table,  # sources, then upstream gradients, then gradient buffers, then what is added to
    p_folded,
    p_given_mix,
    p_given_lse,
    p_rstd,
    p_logits,
    p_lse_gradient,
    p_scratch,
    p_partial,
    p_given_mix_gradient,
    p_given_lse_gradient,
    n_rows,
    n_sources,
    DIM: tl.constexpr,
    Q: tl.constexpr,
    BR: tl.constexpr,
    BC: tl.constexpr,
    BS: tl.constexpr,
    ALIGN: tl.constexpr,
    DTYPE: tl.constexpr,
    HAS_GIVEN: tl.constexpr,
    HAS_LSE_GRADIENT: tl.constexpr,
    NEEDS_FOLDED: tl.constexpr,
    UNROLL: tl.constexpr,
):
    i_program = tl.program_id(0).to(tl.int64)
    o_tile = tl.arange(0, BR).to(tl.int64)  # [BR]
    p_upstream = p_table + 2 * n_sources
    p_buffers = p_upstream + 2 * Q
    p_added = p_buffers + 2 * n_sources
    p_scratch += i_program * BR * ((2 * Q + 1) * n_sources + Q)
    p_given = p_scratch + BR * (2 * Q + 1) * n_sources
    p_part = p_partial
    if NEEDS_FOLDED:
        p_part += i_program * Q * DIM
    for i_tile in range(tl.program_id(0), tl.cdiv(n_rows, BR), tl.num_programs(0)):
        o_R = i_tile * BR + o_tile  # [BR]
        if HAS_GIVEN:
            given_dots(
                *(p_upstream, p_given_mix, p_given, n_rows, o_R, o_tile),
                *(DIM, Q, BR, BC, ALIGN, DTYPE),
            )
        dots(
            *(p_table, p_upstream, p_scratch, n_rows, n_sources, o_R, o_tile),
            *(DIM, Q, BR, BC, ALIGN, DTYPE, UNROLL),
        )
        tl.debug_barrier()  # here and below other threads read what was written
        slopes(
            *(p_given_lse, p_rstd, p_logits, p_lse_gradient, p_given_lse_gradient),
            *(p_scratch, p_given, n_rows, n_sources, o_R, o_tile),
            *(DIM, Q, BR, BS, HAS_GIVEN, HAS_LSE_GRADIENT),
        )
        tl.debug_barrier()
        for start in range(0, DIM, BC):
            gradients(
                *(p_table, p_folded, p_upstream, p_buffers, p_added, p_given_mix_gradient),
                *(p_scratch, p_given, p_part),
                *(n_rows, n_sources, o_R, o_tile, start),
                *(DIM, Q, BR, BC, ALIGN, DTYPE, HAS_GIVEN, NEEDS_FOLDED),
            )
        tl.debug_barrier()
