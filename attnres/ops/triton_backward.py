"""The backward of depth attention as Triton kernels; `triton_table.py` has the letters.

The formulas are those of `closed_form.py`. A program takes tile after tile of tokens; it reads the
sources of a tile once from memory and, right after, once more from a cache. Each program has its
own part of du, and nothing is added atomically, so results repeat to the bit.
"""

# pyright: reportInvalidTypeForm=false, reportIndexIssue=false, reportOptionalMemberAccess=false

import triton
import triton.language as tl

from attnres.ops.triton_table import by_row, read, rows


@triton.jit
def given_dots(
    p_upstream,
    p_given_mix,
    n_rows,
    o_R,
    m_R,
    DIM: tl.constexpr,
    Q: tl.constexpr,
    BR: tl.constexpr,
    BC: tl.constexpr,
    ALIGN: tl.constexpr,
    DTYPE: tl.constexpr,
    HAS_GIVEN: tl.constexpr,
):
    """given mix . e of each query, [BR]; nothing where nothing is given."""
    b_dots = ()
    if HAS_GIVEN:
        for q in tl.static_range(Q):
            b_product = tl.zeros([BR, BC], tl.float32)
            for start in range(0, DIM, BC):
                o_D = start + tl.arange(0, BC)  # [BC]
                m_RD = m_R[:, None] & (o_D < DIM)[None, :]
                o_given = (q * n_rows + o_R)[:, None] * DIM + o_D[None, :]
                b_given = tl.load(p_given_mix + o_given, mask=m_RD, other=0.0).to(tl.float32)
                b_up = read(p_upstream, q, o_R, o_D, m_RD, ALIGN, DTYPE).to(tl.float32)
                b_product += b_given * b_up
            b_dots = b_dots + (tl.sum(b_product, axis=1),)
    return b_dots


@triton.jit
def dots(
    p_table,
    p_upstream,
    p_dot,
    n_sources,
    o_R,
    o_tile,
    m_R,
    DIM: tl.constexpr,
    Q: tl.constexpr,
    BR: tl.constexpr,
    BC: tl.constexpr,
    ALIGN: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """v . e of each source and query, into the scratch."""
    for i in range(n_sources):
        b_products = ()
        for _ in tl.static_range(Q):
            b_products = b_products + (tl.zeros([BR, BC], tl.float32),)
        for start in tl.range(0, DIM, BC, loop_unroll_factor=4):
            o_D = start + tl.arange(0, BC)  # [BC]
            m_RD = m_R[:, None] & (o_D < DIM)[None, :]
            b_value = read(p_table, i, o_R, o_D, m_RD, ALIGN, DTYPE).to(tl.float32)  # [BR, BC]
            b_more = ()
            for q in tl.static_range(Q):
                b_up = read(p_upstream, q, o_R, o_D, m_RD, ALIGN, DTYPE).to(tl.float32)
                b_more = b_more + (b_products[q] + b_value * b_up,)
            b_products = b_more
        for q in tl.static_range(Q):
            p_scalar = p_dot + (q * BR + o_tile) * n_sources + i
            tl.store(p_scalar, tl.sum(b_products[q], axis=1))


@triton.jit
def slopes(
    p_given_lse,
    p_rstd,
    p_logits,
    p_lse_gradient,
    p_given_lse_gradient,
    p_alpha,
    p_slope,
    p_radial,
    b_given_dots,
    n_rows,
    n_sources,
    o_R,
    o_tile,
    m_R,
    DIM: tl.constexpr,
    Q: tl.constexpr,
    BR: tl.constexpr,
    BS: tl.constexpr,
    HAS_GIVEN: tl.constexpr,
    HAS_LSE_GRADIENT: tl.constexpr,
):
    """Weights and slopes of the sources from v . e, into the scratch; the weight of the given."""
    o_S = tl.arange(0, BS)  # [BS]
    m_RS = m_R[:, None] & (o_S < n_sources)[None, :]  # [BR, BS]
    o_scalar = o_tile[:, None] * n_sources + o_S[None, :]
    b_rstd = tl.load(p_rstd + o_R[:, None] * n_sources + o_S[None, :], mask=m_RS, other=0.0)
    b_radial = tl.zeros([BR, BS], tl.float32)
    b_given_alphas = ()
    for q in tl.static_range(Q):
        p_logit = p_logits + (q * n_rows + o_R)[:, None] * n_sources + o_S[None, :]
        b_logit = tl.load(p_logit, mask=m_RS, other=0.0)
        b_logit = tl.where((o_S < n_sources)[None, :], b_logit, float("-inf"))
        b_max = tl.max(b_logit, axis=1)  # [BR]
        if HAS_GIVEN:
            b_lse = tl.load(p_given_lse + q * n_rows + o_R, mask=m_R, other=0.0)
            b_max = tl.maximum(b_max, b_lse)
        b_weight = tl.exp(b_logit - b_max[:, None])  # [BR, BS]
        b_sum = tl.sum(b_weight, axis=1)
        if HAS_GIVEN:
            b_given_weight = tl.exp(b_lse - b_max)
            b_sum += b_given_weight
        b_scale = tl.div_rn(1.0, b_sum)  # [BR]
        b_alpha = b_weight * b_scale[:, None]
        o_query = q * BR * n_sources + o_scalar
        b_dot = tl.load(p_slope + o_query, mask=m_RS, other=0.0)
        b_mean = tl.sum(b_alpha * b_dot, axis=1)  # [BR], mix . e
        if HAS_GIVEN:
            b_given_alpha = b_given_weight * b_scale
            b_mean += b_given_alpha * b_given_dots[q]
            b_given_slope = b_given_alpha * (b_given_dots[q] - b_mean)
            b_given_alphas = b_given_alphas + (b_given_alpha,)
        b_slope = b_alpha * (b_dot - b_mean[:, None])
        if HAS_LSE_GRADIENT:
            b_up = tl.load(p_lse_gradient + q * n_rows + o_R, mask=m_R, other=0.0)
            b_slope += b_alpha * b_up[:, None]
            if HAS_GIVEN:
                b_given_slope += b_given_alpha * b_up
        if HAS_GIVEN:
            tl.store(p_given_lse_gradient + q * n_rows + o_R, b_given_slope, mask=m_R)
        b_slope *= b_rstd
        b_radial -= tl.where(m_RS, b_slope * b_logit, 0.0)
        tl.store(p_alpha + o_query, b_alpha, mask=m_RS)
        tl.store(p_slope + o_query, b_slope, mask=m_RS)
    tl.store(p_radial + o_scalar, b_radial * b_rstd / DIM, mask=m_RS)
    return b_given_alphas


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
):
    """Tile after tile of BR tokens: v . e of each source, then slopes, then the gradients.

    The scratch of a program is [2 Q + 1, BR, n_sources]: alpha, then v . e and later the slope of
    the key, of each query, then the factor of the source itself. Its part of du is [Q, DIM].
    """
    i_program = tl.program_id(0).to(tl.int64)
    p_upstream = p_table + 2 * n_sources
    p_buffers = p_upstream + 2 * Q
    p_added = p_buffers + 2 * n_sources
    o_tile = tl.arange(0, BR).to(tl.int64)  # [BR]
    p_alpha = p_scratch + i_program * (2 * Q + 1) * BR * n_sources
    p_slope = p_alpha + Q * BR * n_sources
    p_radial = p_slope + Q * BR * n_sources
    p_part = p_partial + i_program * Q * DIM
    for i_tile in range(tl.program_id(0), tl.cdiv(n_rows, BR), tl.num_programs(0)):
        o_R = i_tile * BR + o_tile  # [BR]
        m_R = o_R < n_rows
        b_given_dots = given_dots(
            p_upstream, p_given_mix, n_rows, o_R, m_R, DIM, Q, BR, BC, ALIGN, DTYPE, HAS_GIVEN
        )
        dots(
            p_table, p_upstream, p_slope, n_sources, o_R, o_tile, m_R, DIM, Q, BR, BC, ALIGN, DTYPE
        )
        tl.debug_barrier()  # here and below other threads read what was written
        b_given_alphas = slopes(
            p_given_lse,
            p_rstd,
            p_logits,
            p_lse_gradient,
            p_given_lse_gradient,
            p_alpha,
            p_slope,
            p_radial,
            b_given_dots,
            n_rows,
            n_sources,
            o_R,
            o_tile,
            m_R,
            DIM,
            Q,
            BR,
            BS,
            HAS_GIVEN,
            HAS_LSE_GRADIENT,
        )
        tl.debug_barrier()
        for start in range(0, DIM, BC):
            o_D = start + tl.arange(0, BC)  # [BC]
            m_D = o_D < DIM
            m_RD = m_R[:, None] & m_D[None, :]
            b_ups, b_parts = (), ()
            for q in tl.static_range(Q):
                b_up = read(p_upstream, q, o_R, o_D, m_RD, ALIGN, DTYPE).to(tl.float32)
                b_ups = b_ups + (b_up,)
                b_parts = b_parts + (tl.zeros([BR, BC], tl.float32),)
                if HAS_GIVEN:
                    o_given = (q * n_rows + o_R)[:, None] * DIM + o_D[None, :]
                    b_gradient = b_given_alphas[q][:, None] * b_up
                    tl.store(p_given_mix_gradient + o_given, b_gradient.to(DTYPE), mask=m_RD)
            for i in range(n_sources):
                b_value = read(p_table, i, o_R, o_D, m_RD, ALIGN, DTYPE).to(tl.float32)
                o_scalar = o_tile * n_sources + i  # [BR]
                b_radial = tl.load(p_radial + o_scalar, mask=m_R, other=0.0)
                b_gradient = b_radial[:, None] * b_value  # [BR, BC]
                b_more = ()
                for q in tl.static_range(Q):
                    b_alpha = tl.load(p_alpha + q * BR * n_sources + o_scalar, mask=m_R, other=0.0)
                    b_slope = tl.load(p_slope + q * BR * n_sources + o_scalar, mask=m_R, other=0.0)
                    b_folded = tl.load(p_folded + q * DIM + o_D, mask=m_D, other=0.0)
                    b_gradient += b_slope[:, None] * b_folded[None, :]
                    b_gradient += b_alpha[:, None] * b_ups[q]
                    b_more = b_more + (b_parts[q] + b_slope[:, None] * b_value,)
                b_parts = b_more
                p_buffer, m_there = rows(p_buffers, i, o_R, ALIGN, DTYPE)
                m_buffer = m_RD & m_there
                m_added = m_buffer & (by_row(tl.load(p_added + i), o_R) != 0)
                b_before = tl.load(p_buffer + o_D[None, :], mask=m_added, other=0.0)
                b_gradient += b_before.to(tl.float32)
                tl.store(p_buffer + o_D[None, :], b_gradient.to(DTYPE), mask=m_buffer)
            if NEEDS_FOLDED:
                for q in tl.static_range(Q):
                    p_sum = p_part + q * DIM + o_D
                    b_sum = tl.load(p_sum, mask=m_D, other=0.0) + tl.sum(b_parts[q], axis=0)
                    tl.store(p_sum, b_sum, mask=m_D)
        tl.debug_barrier()
