"""Sources that are not stacked, for the Triton kernels: a table says where each one is.

Letters of all Triton files: `p_` pointer, `b_` registers, `o_` offset, `m_` mask, `i_` program
index; a tile has BR rows (tokens) and BC columns, a vector over sources has BS elements.

The table is int64: of each tensor the address, 0 for none, and the row stride in units of ALIGN
elements. ALIGN elements are 16 bytes where every row begins at a multiple of 16 bytes, so that wide
loads are possible, and one element otherwise.
"""

import triton
import triton.language as tl

WORDS = 32  # of the table, written by one launch of `fill_table`


@triton.jit(do_not_specialize=["n_words", *(f"w{i}" for i in range(WORDS))])
def fill_table(
    p_table,
    n_words,
    w0: tl.int64,
    w1: tl.int64,
    w2: tl.int64,
    w3: tl.int64,
    w4: tl.int64,
    w5: tl.int64,
    w6: tl.int64,
    w7: tl.int64,
    w8: tl.int64,
    w9: tl.int64,
    w10: tl.int64,
    w11: tl.int64,
    w12: tl.int64,
    w13: tl.int64,
    w14: tl.int64,
    w15: tl.int64,
    w16: tl.int64,
    w17: tl.int64,
    w18: tl.int64,
    w19: tl.int64,
    w20: tl.int64,
    w21: tl.int64,
    w22: tl.int64,
    w23: tl.int64,
    w24: tl.int64,
    w25: tl.int64,
    w26: tl.int64,
    w27: tl.int64,
    w28: tl.int64,
    w29: tl.int64,
    w30: tl.int64,
    w31: tl.int64,
):
    """Addresses come as arguments: no copy from the host, so a CUDA graph can hold the launch."""
    words = (
        w0,
        w1,
        w2,
        w3,
        w4,
        w5,
        w6,
        w7,
        w8,
        w9,
        w10,
        w11,
        w12,
        w13,
        w14,
        w15,
        w16,
        w17,
        w18,
        w19,
        w20,
        w21,
        w22,
        w23,
        w24,
        w25,
        w26,
        w27,
        w28,
        w29,
        w30,
        w31,
    )
    for i in tl.static_range(32):
        tl.store(p_table + i, words[i], mask=i < n_words)


@triton.jit
def by_row(number, o_R):
    """The number for each row: under the interpreter no scalar can be part of a mask."""
    return (tl.zeros_like(o_R) + number)[:, None]  # [BR, 1]


@triton.jit
def rows(p_table, i, o_R, ALIGN: tl.constexpr, DTYPE: tl.constexpr):
    """Pointers to the rows of tensor i of the table, and whether it is there."""
    address = tl.load(p_table + 2 * i)
    stride = tl.load(p_table + 2 * i + 1) * ALIGN  # a hint at a load is lost where it is hoisted
    p_tensor = address.to(tl.pointer_type(DTYPE))
    if ALIGN > 1:
        p_tensor = tl.multiple_of(p_tensor, 16)
    return (p_tensor + o_R * stride)[:, None], by_row(address, o_R) != 0  # each [BR, 1]


@triton.jit
def read(p_table, i, o_R, o_D, m_RD, ALIGN: tl.constexpr, DTYPE: tl.constexpr):
    """A tile of tensor i of the table, [BR, BC]; zeros where there is none."""
    p_R, m_there = rows(p_table, i, o_R, ALIGN, DTYPE)
    return tl.load(p_R + o_D[None, :], mask=m_RD & m_there, other=0.0)


@triton.jit
def rms_reciprocal(b_squares, eps, DIM: tl.constexpr):
    return tl.div_rn(1.0, tl.sqrt_rn(b_squares / DIM + eps))
