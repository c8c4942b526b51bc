"""The torch backend: explicit coefficients of packed and known rows, second derivatives across blocks, and memory."""

import pytest
import torch
from torch import Tensor

import resolvent as rv
from resolvent.ops import portable
from resolvent.ops.portable import plan as portable_plan
from resolvent.ops.rows import Rows, rows_of
from tests.operator_cases import (
    Largest,
    assert_close,
    gradients,
    mixer_inputs,
    run_on,
)


@pytest.mark.parametrize(
    ("spec", "position"), [("exponential", 0), ("exponential+cache", 0), ("quadratic+cache", 4), ("dense", 0)]
)
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_first_and_second_derivatives(monkeypatch: pytest.MonkeyPatch, spec: str, position: int) -> None:
    """Blocks of three rows, so that far reads take part."""
    monkeypatch.setattr(portable_plan, "BLOCK", 3)
    portable_plan.edge_plan.cache_clear()
    rows = Rows(rv.pattern(spec), (0, 7), position)
    inputs = mixer_inputs(rows.known + 7, torch.float64, 1, 1, 2, 2)
    for name in ("qa", "qb", "gate"):
        inputs[name] = inputs[name][:, :, rows.known :]
    y_known = torch.randn(1, 1, rows.known, 2).double()
    leaves = [t.clone().requires_grad_() for t in (*inputs.values(), y_known)]

    def run(*t: Tensor) -> Tensor:
        given = dict(zip((*inputs, "y_known"), t, strict=True))
        return run_on(portable, given if rows.known else {name: given[name] for name in inputs}, rows)

    assert torch.autograd.gradcheck(run, leaves)
    assert torch.autograd.gradgradcheck(run, leaves, fast_mode=True)
    portable_plan.edge_plan.cache_clear()


def test_first_asked_without_gradients() -> None:
    """Tables that were made in inference mode still serve in training."""
    for spec in ("exponential", "quadratic+cache", "dense", "attention"):
        rows = Rows(rv.pattern(spec), (0, 71))
        inputs = mixer_inputs(71, torch.float64)
        with torch.inference_mode():
            y = run_on(portable, inputs, rows)
        z, _ = gradients(lambda t, rows=rows: run_on(portable, t, rows), inputs)
        assert_close(z, y, what=spec)


def test_columns_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of(rv.pattern("quadratic+cache"), (0, 70))
    inputs = mixer_inputs(70, torch.float64)
    y, found = gradients(lambda t: run_on(portable, t, rows), inputs)
    monkeypatch.setattr(portable_plan, "CHUNK", 1)
    z, chunked = gradients(lambda t: run_on(portable, t, rows), inputs)
    assert_close(z, y, what="y")
    for name, gradient in chunked.items():
        assert_close(gradient, found[name], what=name)


@pytest.mark.parametrize("spec", ["exponential", "exponential+cache", "quadratic+cache", "first-order"])
def test_nothing_as_large_as_n_squared_and_nothing_waits(spec: str) -> None:
    """Neither forward nor backward; and no operation needs the host to know a value on the device."""
    n = 2048
    rows = rows_of(rv.pattern(spec), (0, n))
    inputs = mixer_inputs(n, torch.float32, 1, 1, 8, 8)
    run_on(portable, inputs, rows)
    with Largest() as largest:
        gradients(lambda t: run_on(portable, t, rows), inputs)
    assert largest.elements < n * n // 4
    assert not largest.names & {"_local_scalar_dense", "nonzero", "index", "masked_select", "equal", "item"}
