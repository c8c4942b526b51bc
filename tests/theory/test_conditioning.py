"""How well conditioned a gated solve is: the bounds of docs/theory.md, against matrices inverted by brute force."""

import numpy as np
import numpy.typing as npt
import pytest
import torch

import resolvent as rv
from resolvent.ops import reference
from tests.operator_cases import solve

Matrix = npt.NDArray[np.float64]

RECURRENT = [spec for spec in rv.PAPER_STRUCTURES if rv.pattern(spec).recurrent] + ["stride:3*k+2+cache", "offsets:2,5"]
GATES = [0.0, 0.5, 0.9, 0.999, 1.0]
SLACK = 1 + 1e-9  # rounding in float64


def gated(spec: str, n: int, g_max: float, seed: int, sharpness: float) -> Matrix:
    """B ≥ 0 on the pattern; rows sum to gates of which the largest is g_max. Sharp rows look at one position."""
    generator = np.random.default_rng(seed)
    mask = rv.pattern(spec).mask(n, "b")
    weights = np.where(mask, np.exp(sharpness * generator.normal(size=(n, n))), 0.0)
    rows = weights.sum(1, keepdims=True)
    gates = g_max * generator.uniform(size=(n, 1)) ** 0.1
    gates[generator.integers(n)] = g_max
    return np.divide(gates * weights, rows, out=np.zeros((n, n)), where=rows > 0)


def inverse(b: Matrix) -> Matrix:
    """The sum of B^k, by brute force."""
    total = term = np.eye(len(b))
    for _ in range(len(b)):
        term = term @ b
        total = total + term
    return total


def norms(matrix: Matrix) -> tuple[float, float, float]:
    return np.linalg.norm(matrix, np.inf), np.linalg.norm(matrix, 1), np.linalg.norm(matrix, 2)


def geometric(g: float, n: int) -> float:
    """1 + g + … + g^(n-1), at most min(n, 1 / (1 - g))."""
    return sum(g**k for k in range(n))


def test_gated_inverse_is_bounded() -> None:
    for spec in RECURRENT:
        for g_max in GATES:
            for sharpness in [0.0, 1.0, 10.0]:
                for n in (1, 2, 7, 40):
                    b = gated(spec, n, g_max, n, sharpness)
                    by_rows, by_columns, spectral = norms(inverse(b))
                    most = geometric(g_max, n)
                    assert most <= SLACK * min(n, 1 / (1 - g_max) if g_max < 1 else n)
                    assert by_rows <= SLACK * most
                    assert by_columns <= SLACK * (1 + (n - 1) * g_max)
                    assert spectral <= SLACK * np.sqrt(n * most)
                    assert by_rows * norms(np.eye(n) - b)[0] <= SLACK * (1 + g_max) * most
                    off_diagonal = inverse(b)[np.tril_indices(n, -1)]
                    assert (off_diagonal <= SLACK * g_max).all()
                    assert (off_diagonal >= 0).all()


def test_conditioning_bounds_are_attained() -> None:
    """By a chain, each token reading the one before, for rows; by a star, all reading the first, for columns."""
    for n in [2, 5, 64]:
        for g in GATES:
            chain = g * np.eye(n, k=-1)
            by_rows, _, _ = norms(inverse(chain))
            assert by_rows == pytest.approx(geometric(g, n), rel=1e-12)
            assert by_rows * norms(np.eye(n) - chain)[0] == pytest.approx((1 + g) * geometric(g, n), rel=1e-12)
            star = np.zeros((n, n))
            star[1:, 0] = g
            assert norms(inverse(star))[1] == pytest.approx(1 + (n - 1) * g, rel=1e-12)
            assert norms(inverse(star))[2] >= g * np.sqrt(n - 1)


@pytest.mark.parametrize("gate", [0.25, 0.9375, 1.0])
@pytest.mark.parametrize("spec", RECURRENT)
def test_float32_errs_no_more_than_the_bound(spec: str, gate: float) -> None:
    """Coefficients are multiples of 2^-16, so that rows sum to one exactly; any order of summation obeys the bound."""
    p, n, unit = rv.pattern(spec), 100, 2.0**-24
    table = p.table(n)
    generator = np.random.default_rng(0)
    alpha = np.zeros((n, 1 + table.shape[1] if p.direct == "all" else 1))
    beta = np.zeros(table.shape)
    for i, row in enumerate(table):
        reads = int((row >= 0).sum())
        direct = 1 + reads if p.direct == "all" else 1
        share = round(gate * 2**16) if reads else 0
        alpha[i, :direct] = generator.multinomial(2**16 - share, np.full(direct, 1 / direct)) / 2**16
        if reads:
            beta[i, :reads] = generator.multinomial(share, np.full(reads, 1 / reads)) / 2**16
    x = torch.from_numpy(generator.uniform(-1, 1, size=(1, 1, n, 8))).float()
    coefficients = [torch.from_numpy(c)[None, None] for c in (alpha, beta)]
    exact = reference.solve(x.double(), *coefficients, p)
    resolvent = 1 / (1 - gate) if gate < 1 else n
    terms = alpha.shape[1] + beta.shape[1]
    local = terms * unit / (1 - terms * unit) * min(n, resolvent)
    most = local / (1 - local) * x.abs().max().item()
    for backend in ("reference", "cpu", "torch"):
        y = solve(x, p, *(c.float() for c in coefficients), backend=backend)
        assert (y.double() - exact).abs().max().item() <= most, backend
