"""Nothing to mix is mixed all the same: no sequences, no heads, values or keys without features, on every backend."""

import pytest
import torch

import resolvent as rv
from tests.operator_cases import (
    TABLE,
    Inputs,
    Spec,
    assert_all_close,
    assert_close,
    backends,
    cut,
    extend,
    gradients,
    mix,
    mixer_inputs,
    solve,
)

SPECS: list[Spec] = [
    "exponential",
    "quadratic+cache",
    "first-order",
    "dense",
    "attention",
    "offsets:3+diagonal",
    "binomial:4",
    TABLE,
    "local:8/exponential+cache",
]
SIZES = {  # B, H, D, D'
    "no values": (2, 3, 0, 16),
    "no features": (2, 3, 5, 0),
    "no features, whole units": (1, 1, 16, 0),
    "neither": (2, 3, 0, 0),
    "no sequences": (0, 3, 16, 16),
    "no heads": (2, 0, 16, 16),
}


def inputs_of(size: str, n: int = 9) -> Inputs:
    batch, heads, d, dk = SIZES[size]
    return mixer_inputs(n, torch.float64, batch, heads, d, dk)


@pytest.fixture(autouse=True)
def _more_threads_than_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Channels are then divided among threads, where there are any."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)


@pytest.mark.parametrize("spec", SPECS)
def test_mix_of_empty_dimensions(spec: Spec) -> None:
    for size in SIZES:
        inputs = inputs_of(size)
        exact = gradients(lambda t: mix(t, spec, backend="reference"), inputs)
        assert exact[0].shape == inputs["x"].shape
        for backend in backends(spec):
            found = gradients(lambda t, b=backend: mix(t, spec, backend=b), inputs)
            assert_all_close(found, exact, what=f"{size} {backend}")


@pytest.mark.parametrize("spec", SPECS)
def test_keys_without_features_weigh_all_alike(spec: Spec) -> None:
    """As keys of zeros do."""
    inputs = inputs_of("no features")
    zeros = inputs | {name: torch.zeros(2, 3, 9, 4, dtype=torch.float64) for name in ("qa", "ka", "qb", "kb")}
    for backend in ("reference", *backends(spec)):
        assert_close(mix(inputs, spec, backend=backend), mix(zeros, spec, backend="reference"), what=backend)


@pytest.mark.parametrize("spec", SPECS)
def test_extend_of_empty_dimensions(spec: Spec) -> None:
    for size in SIZES.keys() - {"no heads"}:
        check_extend(spec, size)


def check_extend(spec: Spec, size: str) -> None:
    inputs, (batch, heads, d, dk) = inputs_of(size), SIZES[size]
    exact = mix(inputs, spec, backend="reference")
    for backend in ("reference", *backends(spec)):
        cache = rv.decode_cache(spec, batch, heads, d, dk, dtype=torch.float64)
        pieces = [cut(inputs, 0, 3), *(cut(inputs, t, t + 1) for t in range(3, 9))]
        y = torch.cat([extend(piece, spec, cache, backend=backend) for piece in pieces], 2)
        assert_close(y, exact, what=backend)


def test_solve_of_empty_dimensions() -> None:
    for size in SIZES:
        x = inputs_of(size)["x"]
        width = rv.pattern("exponential").table(9).shape[1]
        alpha, beta = (torch.rand(*x.shape[:-1], columns, dtype=x.dtype) / 9 for columns in (1 + width, width))
        exact = solve(x, "exponential", alpha, beta, backend="reference")
        for backend in backends("exponential"):
            assert_close(solve(x, "exponential", alpha, beta, backend=backend), exact, what=f"{size} {backend}")


def test_no_tokens_and_no_heads_are_named() -> None:
    x = torch.zeros(2, 3, 0, 4)
    with pytest.raises(ValueError, match=r"expected x of shape \(B, H, N, D\) with N ≥ 1, got \(2, 3, 0, 4\)"):
        rv.mix(x, "exponential", a=(x, x), b=(x, x), gate=0.5)
    with pytest.raises(ValueError, match="got heads=0"):
        rv.DecodeCache("exponential", 1, 0, 4, 4)


def test_a_layer_without_sequences() -> None:
    layer = rv.Mixer(32, 2, "exponential+cache")
    assert layer(torch.zeros(0, 9, 32)).shape == (0, 9, 32)
    layer(torch.zeros(0, 9, 32)).sum().backward()
    with pytest.raises(ValueError, match="heads"):
        rv.Mixer(32, 0, "exponential")
    with pytest.raises(ValueError, match="dim"):
        rv.Mixer(0, 2, "exponential")
