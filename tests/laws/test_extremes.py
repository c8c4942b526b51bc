"""Nothing silently wrong at the edges: odd scales, scores of any size, heads that only queries name."""

import itertools
import math
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

import resolvent as rv
from resolvent.train import record
from tests.operator_cases import (
    TABLE,
    Spec,
    assert_all_close,
    assert_close,
    cut,
    extend,
    gradients,
    mix,
    mixer_inputs,
)


@pytest.mark.parametrize("spec", ["attention", "dense", "exponential", "local:3"])
@pytest.mark.parametrize("scale", [0.0, -0.7])
def test_scales_that_are_not_positive(spec: str, scale: float) -> None:
    """Torch's fused kernel gives NaN for these; long sequences run on it."""
    for n, definition in ((9, "reference"), (800, "torch")):
        inputs = mixer_inputs(n, torch.float64, 1, 1, 4, 4)
        exact = gradients(lambda t, by=definition: mix(t, spec, scale=scale, backend=by), inputs)
        assert_all_close(gradients(lambda t: mix(t, spec, scale=scale), inputs), exact)
        with torch.no_grad():
            assert_close(mix(inputs, spec, scale=scale), exact[0])


@pytest.mark.parametrize("spec", ["attention", "dense", "exponential", "first-order"])
def test_scales_and_gates_that_are_no_numbers(spec: str) -> None:
    inputs = mixer_inputs(9, torch.float64, 1, 1, 4, 4)
    for scale in (math.nan, math.inf, -math.inf):
        with pytest.raises(ValueError, match=f"expected a finite scale, got {scale}"):
            mix(inputs, spec, scale=scale)
    with pytest.raises(ValueError, match="expected a finite scale, got 1000"):
        mix(inputs, spec, scale=10**400)
    pair = (inputs["qa"], inputs["ka"])
    for gate in ("0.5", [0.5], 1j):
        if spec != "attention":  # which has none
            with pytest.raises(TypeError, match="expected gate as a tensor or a number, got"):
                rv.mix(inputs["x"], spec, a=pair, b=pair, gate=gate)
    half = rv.mix(inputs["x"], spec, a=pair, b=pair, gate=np.float32(0.5), scale=np.float32(0.5))
    assert torch.equal(half, rv.mix(inputs["x"], spec, a=pair, b=pair, gate=0.5, scale=0.5))


@pytest.mark.parametrize("spec", ["exponential", "quadratic+cache", "order:20", "local:20", TABLE, "local:20/order:3"])
def test_scores_far_below_zero_keep_their_weight(spec: Spec) -> None:
    """All scores alike, and nearly the lowest there is: rows still sum to one, forward, backward and decoding."""
    for dtype, size in ((torch.float32, 3.3e38), (torch.float64, 1e300)):
        check_scores_far_below_zero(spec, dtype, size)


def check_scores_far_below_zero(spec: Spec, dtype: torch.dtype, size: float) -> None:
    inputs = mixer_inputs(40, dtype, 1, 1, 16, 16)
    inputs |= {"x": torch.ones_like(inputs["x"])}
    for name in ("qa", "qb", "ka", "kb"):
        inputs[name] = torch.zeros_like(inputs[name])
        inputs[name][..., 0] = 1.0 if name[0] == "q" else -size
    y, found = gradients(lambda t: mix(t, spec, scale=1.0, backend="cpu"), inputs)
    assert_close(y, torch.ones_like(y))
    assert_close(found["x"].sum(), gradients(lambda t: mix(t, spec, scale=0.0, backend="cpu"), inputs)[1]["x"].sum(),
                 factor=10)  # fmt: skip
    cache = rv.decode_cache(spec, 1, 1, 16, 16, dtype=dtype)
    for t in range(40):
        assert_close(extend(cut(inputs, t, t + 1), spec, cache, scale=1.0), torch.ones(1, 1, 1, 16, dtype=dtype))


@pytest.mark.parametrize("spec", ["attention", "dense", "order:20"])
def test_decoding_where_one_score_is_far_above_all_others(spec: str) -> None:
    """Wherever among many slots it stands: here in one of the first."""
    inputs = mixer_inputs(40, torch.float64, 1, 1, 16, 16)
    for name in ("ka", "kb"):
        inputs[name][..., 0] = 0
        inputs[name][:, :, 3, 0] = 1e4
    for name in ("qa", "qb"):
        inputs[name][..., 0] = 1
    cache = rv.decode_cache(spec, 1, 1, 16, 16, dtype=torch.float64)
    y = torch.cat([extend(cut(inputs, t, t + 1), spec, cache, scale=1.0) for t in range(40)], 2)
    assert_close(y, mix(inputs, spec, scale=1.0))


@pytest.mark.parametrize(
    "spec",
    ["attention", "dense", "order:3", "exponential", "quadratic+cache", "local:5", TABLE, "fenwick", "local:5/order:3"],
)
def test_what_is_not_finite_stays_in_later_rows(spec: Spec) -> None:
    """Bit for bit, also in the gradients: no row before it is touched. Backends that use matrix products (`dense`,
    `torch`, `triton`) are the exception that `mix` states, since they multiply it by zero.
    """
    inputs = mixer_inputs(70, torch.float32, 1, 2, 8, 8)
    for backend, bad in itertools.product(("cpu", "reference"), (math.nan, math.inf)):
        spoilt = inputs | {"x": inputs["x"].clone()}
        spoilt["x"][:, :, 40:] = bad
        outputs = []
        for each in (inputs, spoilt):
            x = each["x"].clone().requires_grad_()
            y = mix(each | {"x": x}, spec, backend=backend)
            (gradient,) = torch.autograd.grad(y[:, :, :40].sum(), x)
            outputs.append((y.detach()[:, :, :40], gradient[:, :, :40]))
        for one, other in zip(*outputs, strict=True):
            assert torch.equal(one, other), (backend, bad)


def test_queries_that_are_not_used_still_count_heads() -> None:
    """Grouped heads, a number as gate, and a pattern without scores: y has the heads of the queries."""
    x, q, k = torch.randn(1, 2, 9, 8), torch.randn(1, 4, 9, 8), torch.randn(1, 2, 9, 8)
    y = rv.mix(x, "first-order", b=(q, k), gate=0.5)
    assert y.shape == (1, 4, 9, 8)
    assert_close(y, rv.mix(x.repeat_interleave(2, 1), "first-order", gate=0.5))


def test_the_commit_is_that_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that of a repository around it that does not track it."""
    file = tmp_path / "site-packages" / "record.py"
    file.parent.mkdir()
    file.write_text("")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x"]
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "other"]):
        subprocess.run([*git, *command], check=True)
    monkeypatch.setattr(record, "__file__", str(file))
    assert record._commit() is None
    for command in (["add", "-f", "site-packages/record.py"], ["commit", "-q", "-m", "ours"]):
        subprocess.run([*git, *command], check=True)
    commit = record._commit()
    assert commit is not None
    other = tmp_path / "other"  # whose hook runs a training
    other.mkdir()
    (other / "record.py").touch()
    git[2] = str(other)
    for command in (["init", "-q"], ["add", "record.py"], ["commit", "-q", "-m", "hook"]):
        subprocess.run([*git, *command], check=True)
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    assert record._commit() == commit
