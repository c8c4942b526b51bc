"""What all kernels are made of: masks from bits, rows of tensors, products, inverses.

Numbers are widened as soon as they are loaded, and everything is summed in float32 (float64 stays). No product of
float32 operands goes through plain tf32: `PRECISION` is "tf32x3" on CUDA, which is as exact as float32, and "ieee"
elsewhere. Scores of half-precision queries and keys may use "tf32", which holds such numbers exactly.
"""

import triton
import triton.language as tl


@triton.jit
def bits_to_mask(bits, columns):
    """(rows,) numbers and (columns,) places: (rows, columns) whether that bit is set."""
    return ((bits[:, None] >> columns[None, :].to(tl.int64)) & 1) != 0


@triton.jit
def readers_to_mask(bits, rows):
    """(listed,) numbers and (rows,) places: (rows, listed) whether that bit is set."""
    return ((bits[None, :] >> rows[:, None].to(tl.int64)) & 1) != 0


@triton.jit
def load_rows(pointer, rows, valid, columns, D: tl.constexpr, COMPUTE: tl.constexpr):
    """Rows of a (rows, D) matrix as numbers to compute with; zero where not valid, and in columns beyond D."""
    inside = valid[:, None] & (columns < D)[None, :]
    return tl.load(pointer + rows[:, None] * D + columns[None, :], mask=inside, other=0.0).to(COMPUTE)


@triton.jit
def store_rows(pointer, values, rows, valid, columns, D: tl.constexpr):
    inside = valid[:, None] & (columns < D)[None, :]
    tl.store(pointer + rows[:, None] * D + columns[None, :], values.to(pointer.dtype.element_ty), mask=inside)


@triton.jit
def load_block(blocks, block, count):
    """First new row, number within its sequence, rows and first tile of a block."""
    first = tl.load(blocks + block)
    number = tl.load(blocks + count + block)
    size = tl.load(blocks + 2 * count + block)
    tile = tl.load(blocks + 3 * count + block)
    return first, number, size, tile


@triton.jit
def after_known(du, head, new, known, recurrent, D: tl.constexpr):
    """Where a head's gradients of A x begin: after those of known rows, which only feedback has.

    Whether there is feedback is a number, not a constant: it decides a few addresses, not worth twice the kernels.
    """
    return du + (head * (known * recurrent + new) + known * recurrent) * D


@triton.jit
def load_tile(weights, tile, rows, listed, BLOCK: tl.constexpr, TILE: tl.constexpr):
    """The (rows, listed) weights of one tile of reads before a block."""
    return tl.load(weights + tile.to(tl.int64) * TILE * BLOCK + rows[:, None] * TILE + listed[None, :])


@triton.jit
def product(weights, values, PRECISION: tl.constexpr):
    return tl.dot(weights, values, input_precision=PRECISION, out_dtype=weights.dtype)


@triton.jit
def scores(queries, keys, scale, PRECISION: tl.constexpr):
    return tl.dot(queries, tl.trans(keys), input_precision=PRECISION, out_dtype=queries.dtype) * scale


@triton.jit
def scores_of(
    a, a_rows, a_valid, b, b_rows, b_valid, scale,
    M: tl.constexpr, N: tl.constexpr, D: tl.constexpr, CHUNK: tl.constexpr, COMPUTE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Products of rows of one matrix with rows of another, CHUNK columns at a time: wide rows do not fit registers.

    Grids are (blocks, heads), so that the third number of a program is 0, which no compiler knows: else it would unroll
    a loop of many parts, load all of them at once, and spill.
    """
    total = tl.zeros((M, N), dtype=COMPUTE)
    after = D if D <= 4 * CHUNK else D + tl.program_id(2)
    for first in range(0, after, CHUNK):
        columns = first + tl.arange(0, CHUNK)
        left = load_rows(a, a_rows, a_valid, columns, D, COMPUTE)
        right = load_rows(b, b_rows, b_valid, columns, D, COMPUTE)
        total += tl.dot(left, tl.trans(right), input_precision=PRECISION, out_dtype=COMPUTE)
    return total * scale


@triton.jit
def scores_with(
    q, a, a_rows, a_valid, b, b_rows, b_valid, scale,
    M: tl.constexpr, N: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, COMPUTE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """As `scores_of`, with q, the rows of the first matrix as they are loaded already, where these are not wide."""
    chunk: tl.constexpr = 16 if BD > 64 and PRECISION == "tf32x3" else 32  # three products for one hold more registers
    if BD > 64 or (BD > 32 and PRECISION == "tf32x3"):
        result = scores_of(a, a_rows, a_valid, b, b_rows, b_valid, scale, M, N, D, chunk, COMPUTE, PRECISION)
    else:
        result = scores(q, load_rows(b, b_rows, b_valid, tl.arange(0, BD), D, COMPUTE), scale, PRECISION)
    return result


@triton.jit
def safe(largest):
    """Something finite to subtract where a row has read nothing yet."""
    return tl.where(largest == float("-inf"), 0.0, largest)


@triton.jit
def inverse(near, BLOCK: tl.constexpr, LEVELS: tl.constexpr, PRECISION: tl.constexpr):
    """(I - N)^-1 for strictly lower N ≥ 0 and 2^LEVELS rows: the product of I + N^(2^s), in which nothing cancels."""
    rows = tl.arange(0, BLOCK)
    power = near
    result = near + tl.where(rows[:, None] == rows[None, :], 1.0, 0.0).to(near.dtype)
    for _ in range(LEVELS - 1):
        power = tl.dot(power, power, input_precision=PRECISION, out_dtype=near.dtype)
        result += tl.dot(result, power, input_precision=PRECISION, out_dtype=near.dtype)
    return result
