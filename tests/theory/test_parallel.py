"""The solve, parallel in time: chunks with transfer matrices, blocks of rows; same outputs, multiply-adds counted."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest

import resolvent as rv

Matrix = npt.NDArray[np.float64]

HEAD_DIM = 64


@dataclass
class Counter:
    """Multiply-adds of a solve with d channels; entries that are zero for every choice of B cost nothing."""

    madds: int = 0

    def product(self, left: Matrix, right: Matrix) -> Matrix:
        """A matrix product, at the price of the non-zeros that meet."""
        self.madds += int(((left != 0).sum(0) * (right != 0).sum(1)).sum())
        return left @ right

    def substitute(self, b: Matrix, u: Matrix) -> Matrix:
        """(I - b)^-1 u, row by row."""
        y = u.copy()
        for i in range(len(b)):
            y[i] += self.product(b[i : i + 1, :i], y[:i])[0]
        return y


def problem(spec: str, n: int, d: int) -> tuple[rv.Pattern, Matrix, Matrix, Matrix]:
    """A pattern, B on it, the right-hand side u = A x, and y. Nothing cancels: zeros are structural."""
    p, generator = rv.pattern(spec), np.random.default_rng(n)
    b = np.where(p.mask(n, "b"), generator.uniform(0.5, 1, size=(n, n)), 0.0)
    b /= np.maximum(b.sum(1, keepdims=True), 1)
    u = generator.uniform(size=(n, d))
    return p, b, u, np.linalg.solve(np.eye(n) - b, u)


def chunked(p: rv.Pattern, b: Matrix, u: Matrix, c: int) -> tuple[Matrix, int]:
    """Chunks of c rows: local solves and transfer matrices side by side, then a carry through the live positions."""
    n, count, y = len(b), Counter(), np.empty_like(u)
    local = []
    for s in range(0, n, c):  # independent of one another
        rows, live = slice(s, min(s + c, n)), p.held(s)
        inside, before = b[rows, rows], b[rows][:, live]
        local.append((rows, live, count.substitute(inside, u[rows]), count.substitute(inside, before)))
    for rows, live, y0, phi in local:  # in turn: only rows that are live at the end of a chunk have to wait
        y[rows] = y0 + count.product(phi, y[live])
    return y, count.madds


def blocked(b: Matrix, u: Matrix, size: int) -> tuple[Matrix, int]:
    """Blocks of rows: diagonal blocks are inverted side by side, then one product per block."""
    n, count, y = len(b), Counter(), np.empty_like(u)
    blocks = [slice(s, min(s + size, n)) for s in range(0, n, size)]
    inverses = [count.substitute(b[rows, rows], np.eye(rows.stop - rows.start)) for rows in blocks]
    for rows, inverse in zip(blocks, inverses, strict=True):
        before = slice(0, rows.start)
        v = u[rows] + count.product(b[rows, before], y[before])
        y[rows] = v + count.product(inverse - np.eye(len(v)), v)
    return y, count.madds


def test_chunks_with_transfer_matrices_give_the_same_outputs() -> None:
    """The state between chunks is what the cache holds; the transfer matrix has no channels."""
    for spec in ["exponential+cache", "quadratic+cache", "stride:3*k+2+cache", "order:3", "first-order"]:
        for c in [1, 7, 16, 100]:
            p, b, u, y = problem(spec, 100, 3)
            np.testing.assert_allclose(chunked(p, b, u, c)[0], y, rtol=1e-12)


def test_blocks_of_rows_give_the_same_outputs() -> None:
    for spec in ["exponential", "quadratic", "dense", "order:3", "offsets:2,5"]:
        for size in [1, 5, 8, 32, 100]:
            _, b, u, y = problem(spec, 100, 3)
            np.testing.assert_allclose(blocked(b, u, size)[0], y, rtol=1e-12)


def sequential(b: Matrix) -> int:
    return int((b != 0).sum()) * HEAD_DIM


@pytest.mark.parametrize(("spec", "ratio"), [("exponential+cache", 1.54), ("quadratic+cache", 1.40)])
def test_chunks_cost_half_as_much_again(spec: str, ratio: float) -> None:
    """At n = 1,024 with chunks of four times the live positions."""
    p, b, u, _ = problem(spec, 1024, HEAD_DIM)
    assert chunked(p, b, u, 4 * p.reads(1023))[1] / sequential(b) == pytest.approx(ratio, abs=0.01)


@pytest.mark.parametrize(
    ("spec", "ratios"),
    [("exponential", (1.17, 1.53, 2.37)), ("quadratic", (1.07, 1.23, 1.56)), ("dense", (1, 1, 1.01))],
)
def test_blocks_cost_little_while_they_are_small(spec: str, ratios: tuple[float, ...]) -> None:
    """At n = 1,024 with blocks of 8, 16 and 32 rows."""
    _, b, u, _ = problem(spec, 1024, HEAD_DIM)
    for size, ratio in zip((8, 16, 32), ratios, strict=True):
        assert blocked(b, u, size)[1] / sequential(b) == pytest.approx(ratio, abs=0.01)


def test_aligned_chunks_of_the_exponential_pattern() -> None:
    """1-based: in rows s+1 … s+2^t, 2^t | s, fine levels repeat from chunk to chunk, and coarse ones stand still."""
    n = 256
    mask = rv.pattern("exponential+cache").mask(n)
    for t in range(6):
        c = 2**t
        for k in range(8):
            a = 2 ** max(k - 1, 0)  # lattice steps 1, 1, 2, 4, …
            rows = [i for i in range(c + 1, n + 1) if i > 2**k]
            level = {i: a * -(-(i - 2**k) // a) for i in rows}
            for i in rows:
                assert mask[i - 1, level[i] - 1]
                first = (i - 1) // c * c + 1
                if a >= c and first in level:
                    assert level[i] == level[first]
                if a <= c and i - c in level:
                    assert level[i] - level[i - c] == c
