"""The definition, its dense form and its adjoint; and the layers everybody knows as identities."""

import math
from functools import partial
from itertools import pairwise

import mpmath
import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import resolvent as rv
from resolvent.ops import reference
from tests import operator_cases
from tests.operator_cases import TOLERANCE, as_tuple, assert_close

solve = partial(operator_cases.solve, backend="reference")
mix = partial(operator_cases.mix, backend="reference")

PATTERNS = [
    *rv.PAPER_STRUCTURES,
    "stride:k**3+1+cache",
    "stride:3*k+2+cache",
    "offsets:2,5",
    "local:1",
    "exponential+attention",
    "binomial:4",
    operator_cases.FEW_READS,
]
LENGTHS = [1, 2, 17]
ROUNDING = TOLERANCE[torch.float64]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def mixer_inputs(n: int, dim: int = 4) -> dict[str, Tensor]:
    names = ("x", "qa", "ka", "qb", "kb")
    inputs = {name: random(2, 3, n, dim, seed=i) for i, name in enumerate(names)}
    return inputs | {"gate": random(2, 3, n, seed=9).sigmoid()}


def coefficients(p: rv.Pattern, n: int) -> tuple[Tensor, Tensor | None]:
    """Signed ones, with NaN wherever a backend has no business to look."""
    table = torch.from_numpy(p.table(n))
    beta = random(2, 3, *table.shape, seed=1).masked_fill(table < 0, math.nan)
    alpha = random(2, 3, n, 1 + table.shape[1], seed=2)
    alpha[..., 1:] = alpha[..., 1:].masked_fill(table < 0, math.nan)
    return alpha if p.direct == "all" else alpha[..., :1], beta if p.recurrent else None


@pytest.mark.parametrize("spec", PATTERNS)
def test_rows_are_the_dense_form(spec: str) -> None:
    p = rv.pattern(spec)
    for n in LENGTHS:
        x = random(2, 3, n, 4)
        alpha, beta = coefficients(p, n)
        y = solve(x, p, alpha, beta)
        a, b = reference.matrices(alpha, beta, p)
        assert_close(y, torch.linalg.inv(torch.eye(n, dtype=x.dtype) - b) @ a @ x)
        assert_close(y, reference.transfer(a, b) @ x)
        assert_close(reference.transfer_by_hops(a, b).sum(0), reference.transfer(a, b))
        assert torch.equal(a != 0, torch.from_numpy(p.mask(n, "a")).expand_as(a))
        assert torch.equal(b != 0, torch.from_numpy(p.mask(n, "b")).expand_as(b))


@pytest.mark.parametrize("spec", PATTERNS[:-2])
def test_hop_split_follows_the_hops(spec: str) -> None:
    """B^k A first touches (i, j) when k + 1 hops suffice (k, where A is diagonal): signal and analysis agree."""
    p, n = rv.pattern(spec), 17
    alpha, beta = coefficients(p, n)
    alpha, beta = alpha.abs(), None if beta is None else beta.abs()  # nothing cancels
    terms = reference.transfer_by_hops(*reference.matrices(alpha, beta, p))
    matrix = rv.hop_matrix(p, n)
    for i in range(n):
        for j in range(i):
            touched = terms[:, 0, 0, i, j].nonzero().flatten().tolist()
            first = matrix[i, j] - (1 if p.direct == "all" else 0)
            assert (touched[0] if touched else None) == (first if matrix[i, j] > 0 else None)


@pytest.mark.parametrize("spec", PATTERNS)
def test_adjoint_is_autograd(spec: str) -> None:
    p = rv.pattern(spec)
    for n in LENGTHS:
        alpha, beta = (None if c is None else c.nan_to_num(0.5) for c in coefficients(p, n))
        leaves = [t.requires_grad_() for t in (random(2, 3, n, 4), alpha, beta) if t is not None]
        y = solve(leaves[0], p, *leaves[1:])
        grad_y = random(*y.shape, seed=5)
        expected = torch.autograd.grad(y, leaves, grad_y, materialize_grads=True)
        inputs = [leaf.detach() for leaf in leaves]
        found = reference.solve_adjoint(grad_y, inputs[0], y.detach(), inputs[1], *(inputs[2:] or [None]), p)
        for mine, theirs in zip(found, expected, strict=False):
            assert_close(mine, theirs)


@pytest.mark.parametrize("spec", PATTERNS)
def test_gated_rows_sum_to_one(spec: str) -> None:
    for n in LENGTHS:
        check_gated_rows(spec, n)


def check_gated_rows(spec: str, n: int) -> None:
    """(A + B) 1 = 1 and so T 1 = 1, the first row and rows without feedback included; |y| ≤ max |x|."""
    p, inputs = rv.pattern(spec), mixer_inputs(n)
    alpha, beta = reference.gated_softmax(as_tuple(inputs), p, 0.5)
    a, b = reference.matrices(alpha, beta, p)
    ones = torch.ones(2, 3, n, dtype=torch.float64)
    assert_close((a + b).sum(-1), ones)
    assert_close(reference.transfer(a, b).sum(-1), ones)
    inverse = torch.linalg.inv(torch.eye(n, dtype=a.dtype) - b)
    assert inverse.min() > -ROUNDING
    assert inverse.max() < 1 + ROUNDING
    y = mix(inputs, p)
    assert (y.abs().amax((-2, -1)) <= inputs["x"].abs().amax((-2, -1)) + ROUNDING).all()


def test_signed_rows_that_sum_to_one_do_blow_up() -> None:
    n = 60
    x = torch.ones(1, 1, n, 1, dtype=torch.float64)
    x[..., 0, 0] = -1
    beta = torch.full((1, 1, n, 1), -1.5, dtype=torch.float64)
    alpha = 1 - beta
    assert solve(x, "first-order", alpha, beta).abs().max() > 1e6


# Special cases are identities.


def test_attention_is_sdpa() -> None:
    for n in LENGTHS:
        i = mixer_inputs(n)
        expected = scaled_dot_product_attention(i["qa"], i["ka"], i["x"], is_causal=True)
        assert_close(mix({name: i[name] for name in ("x", "qa", "ka")}, "attention"), expected)


def test_local_attention_is_sdpa_with_a_band() -> None:
    i, n = mixer_inputs(17), 17
    for w in (1, 2, 5):
        band = torch.ones(n, n, dtype=torch.bool).tril().triu(-(w - 1))
        expected = scaled_dot_product_attention(i["qa"], i["ka"], i["x"], attn_mask=band)
        assert_close(mix(i, f"local:{w}"), expected)


def test_first_order_is_a_gated_scan() -> None:
    i = mixer_inputs(17)
    state, outputs = torch.zeros(2, 3, 4, dtype=torch.float64), []
    for t in range(17):
        g = i["gate"][..., t, None] * (t > 0)
        state = g * state + (1 - g) * i["x"][..., t, :]
        outputs.append(state)
    assert_close(mix(i, "first-order"), torch.stack(outputs, -2))


@pytest.mark.parametrize("k", [1, 2, 8])
def test_kth_order_is_a_linear_filter(k: int) -> None:
    """Constant coefficients: an autoregressive moving average, as a plain loop writes it."""
    n, ar, ma = 30, random(k, seed=3) * 0.3, random(k + 1, seed=4)
    x = random(1, 1, n, 2)
    alpha, beta = ma.expand(1, 1, n, k + 1), ar.expand(1, 1, n, k)
    expected: list[Tensor] = []
    for t in range(n):
        y = sum(ma[c] * x[0, 0, t - c] for c in range(min(t, k) + 1))
        expected.append(y + sum((ar[c - 1] * expected[t - c] for c in range(1, min(t, k) + 1)), torch.zeros(2)))
    assert_close(solve(x, f"order:{k}", alpha, beta)[0, 0], torch.stack(expected))


def test_chacal_is_a_constant_gate() -> None:
    """A fixed γ: (1-γ) (I - γ B~)^-1 A~ x, the first token, which has nothing to feed back, undamped."""
    n, gamma = 13, 0.7
    i = mixer_inputs(n)
    causal = torch.ones(n, n, dtype=torch.bool).tril()
    a = (i["qa"] @ i["ka"].mT / 2).masked_fill(~causal, -math.inf).softmax(-1)
    b = (i["qb"] @ i["kb"].mT / 2).masked_fill(~causal.tril(-1), -math.inf).softmax(-1).nan_to_num()
    direct = torch.full((n, 1), 1 - gamma, dtype=torch.float64)
    direct[0] = 1
    expected = torch.linalg.inv(torch.eye(n, dtype=torch.float64) - gamma * b) @ (direct * (a @ i["x"]))
    constant = torch.full_like(i["gate"], gamma)
    assert_close(mix(i | {"gate": constant}, "dense"), expected)


@pytest.mark.parametrize("spec", ["dense", "order:8", "exponential", "quadratic+cache", "stride:3*k+2+cache"])
def test_weight_sharing_in_both_forms(spec: str) -> None:
    """A = BD + D': the short recurrence, the written-out coefficients and the matrix identity agree."""
    p, n = rv.pattern(spec), 17
    x, d, d_prime = random(2, 3, n, 4), random(2, 3, n, seed=6), random(2, 3, n, seed=7)
    beta = coefficients(p, n)[1]
    y = reference.solve_tied(x, beta, d, d_prime, p)
    alpha = reference.tied_alpha(beta, d, d_prime, p)
    assert_close(y, solve(x, p, alpha, beta))
    a, b = reference.matrices(alpha, beta, p)
    assert_close(a, b @ torch.diag_embed(d) + torch.diag_embed(d_prime))
    inverse = torch.linalg.inv(torch.eye(n, dtype=x.dtype) - b)
    assert_close(y, inverse @ ((d + d_prime)[..., None] * x) - d[..., None] * x)


@pytest.mark.parametrize(
    ("spec", "diagonal"), [("dense", "dense+diagonal"), ("exponential+cache", "exponential+diagonal+cache")]
)
def test_normalized_weight_sharing_with_constant_delta(spec: str, diagonal: str) -> None:
    """D = δ, d' = 1 - B(1 + d): u_i = g Σ B~ u + (1-g) x, y = (1+δ) u - δ x; A ≥ 0 exactly while g ≤ 1/(1+δ)."""
    p, n, delta = rv.pattern(spec), 12, 0.5
    i = mixer_inputs(n)
    for limit in (1 / (1 + delta), 1.0):
        gate = limit * i["gate"] / i["gate"][..., 1:].max()
        _, beta = reference.gated_softmax(as_tuple({**i, "gate": gate}), p, 0.5)
        fed_back = beta.sum(-1)  # g, and 0 in the first row
        d_prime = 1 - fed_back * (1 + delta)
        alpha = reference.tied_alpha(beta, torch.full_like(d_prime, delta), d_prime, p)
        u = solve(i["x"], diagonal, (1 - fed_back)[..., None], beta)
        assert_close(solve(i["x"], p, alpha, beta), (1 + delta) * u - delta * i["x"])
        assert (alpha.min() >= -ROUNDING) == (limit < 1)


@pytest.mark.parametrize("spec", ["dense", "exponential", "quadratic+cache", "first-order"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_joint_softmax_is_the_normalized_transfer(spec: str, dtype: torch.dtype) -> None:
    """Scores so large that exp overflows: the log-domain recurrence against 60-digit arithmetic on the plain way."""
    p, n = rv.pattern(spec), 14
    width = p.table(n).shape[1]
    score_a = (60 * random(1, 1, n, 1 + width if p.direct == "all" else 1, seed=1)).to(dtype)
    score_b = (60 * random(1, 1, n, width, seed=2) + 80).to(dtype)
    x = random(1, 1, n, 1).to(dtype)
    plain = solve(x, p, score_a.exp(), score_b.exp())
    if dtype == torch.float32:
        assert not plain.isfinite().all()

    w, v = reference.joint_softmax(score_a, score_b, p)
    a, b = reference.matrices(w, v, p)
    assert_close((a + b).sum(-1), torch.ones(1, 1, n, dtype=dtype))
    y = solve(x, p, w, v)
    with mpmath.workdps(60):
        weights: list[list[mpmath.mpf]] = []  # rows of T~, by its definition
        for i in range(n):
            row = [mpmath.mpf(0)] * n
            row[i] += mpmath.exp(score_a[0, 0, i, 0].item())
            for c, j in enumerate(p.sources(i)[::-1].tolist()):
                if p.direct == "all":
                    row[j] += mpmath.exp(score_a[0, 0, i, 1 + c].item())
                feedback = mpmath.exp(score_b[0, 0, i, c].item())
                row = [r + feedback * t for r, t in zip(row, weights[j], strict=True)]
            weights.append(row)
        expected = [sum(t * x[0, 0, j, 0].item() for j, t in enumerate(row)) / sum(row) for row in weights]
    tolerance = 1e-10 if dtype == torch.float64 else 1e-5  # scores of hundreds: what exp makes of their rounding
    torch.testing.assert_close(
        y[0, 0, :, 0].double(),
        torch.tensor([float(e) for e in expected], dtype=torch.float64),
        rtol=tolerance,
        atol=tolerance,
    )


@pytest.mark.parametrize("spec", PATTERNS)
def test_chunks_and_single_tokens(spec: str) -> None:
    """From a cache, too: also without feedback, where known rows have values and no outputs."""
    inputs = mixer_inputs(30)
    heads, d, dk = inputs["x"].shape[1], inputs["x"].shape[-1], inputs["qa"].shape[-1]
    cache = rv.DecodeCache(spec, inputs["x"].shape[0], heads, d, dk, dtype=torch.float64)
    chunks = [
        operator_cases.extend(operator_cases.cut(inputs, first, last), spec, cache, backend="reference")
        for first, last in pairwise((0, 12, 13, 28, 30))
    ]
    assert_close(torch.cat(chunks, 2), mix(inputs, spec))


def test_errors_say_what_was_expected() -> None:
    x, (alpha, beta) = mixer_inputs(6)["x"], coefficients(rv.pattern("exponential"), 6)
    for arguments, error, message in [
        ((random(6, 4), "exponential", alpha, beta), ValueError, r"x of shape \(B, H, N, D\) .*, got \(6, 4\)"),
        ((x, "exponential", alpha[..., :3], beta), ValueError, r"alpha of shape \(2, 3, 6, 4\).*got \(2, 3, 6, 3\)"),
        ((x, "exponential", alpha), ValueError, r"expected beta of shape \(2, 3, 6, 3\), got None"),
        ((x, "attention", random(2, 3, 6, 6), beta), ValueError, "attention has no feedback: expected beta=None"),
        ((x, "exponential", alpha.float(), beta), TypeError, r"x is torch\.float64, alpha is torch\.float32"),
        ((x.long(), "exponential", alpha, beta), TypeError, r"floating dtype, got torch\.int64"),
        ((x, "dens", alpha, beta), rv.PatternError, "unknown pattern"),
    ]:
        with pytest.raises(error, match=message):
            solve(*arguments)


@pytest.mark.parametrize("spec", ["exponential", "local:3", "first-order"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_beside_a_gate_in_float32(spec: str, dtype: torch.dtype) -> None:
    """Computed in float32, and returned in the dtype of x: in one pass and from a cache."""
    inputs = {name: t.to(torch.float32 if name == "gate" else dtype) for name, t in mixer_inputs(20).items()}
    exact = mix({name: t.double() for name, t in inputs.items()}, spec)
    cache = rv.DecodeCache(spec, 2, 3, 4, 4, dtype=dtype)
    chunks = [operator_cases.cut(inputs, a, b) for a, b in pairwise([0, 12, 13, 20])]
    decoded = torch.cat([operator_cases.extend(chunk, spec, cache, backend="reference") for chunk in chunks], 2)
    for y in (mix(inputs, spec), decoded):
        assert y.dtype == dtype
        assert_close(y, exact)


def test_solve_in_half_precision() -> None:
    """Sums of a hundred terms lose no more than the rounding of the result."""
    x, alpha = torch.ones(1, 1, 100, 1), torch.full((1, 1, 100, 100), 0.125)
    found = solve(x.bfloat16(), "attention", alpha.bfloat16())
    assert found.dtype == torch.bfloat16
    assert_close(found, solve(x.double(), "attention", alpha.double()))
