"""The torch backend: explicit coefficients of packed and known rows, second derivatives across blocks, and memory."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import resolvent as rv
from resolvent.ops import portable, reference
from resolvent.ops.portable import plan as portable_plan
from resolvent.ops.rows import Rows, rows_of
from tests.operator_cases import (
    SINGLE,
    Inputs,
    Largest,
    Spec,
    assert_all_close,
    assert_close,
    gradients,
    mixer_inputs,
    run_on,
)


def explicit_inputs(rows: Rows, beyond: float) -> Inputs:
    """Random coefficients for `where`, with `beyond` in the columns that no row reads."""
    torch.manual_seed(rows.new)
    table = torch.from_numpy(rows.table)
    new, width = table.shape
    columns = 1 + width if rows.pattern.direct == "all" else 1
    inputs = {"x": torch.randn(2, 2, rows.known + new, 3), "alpha": torch.randn(2, 2, new, columns)}
    inputs["alpha"][..., 1:].masked_fill_(table[:, : columns - 1] < 0, beyond)
    if rows.pattern.recurrent:
        inputs["beta"] = (torch.randn(2, 2, new, width) / max(width, 1)).masked_fill(table < 0, beyond)
    if rows.known and rows.pattern.recurrent:
        inputs["y_known"] = torch.randn(2, 2, rows.known, 3)
    return {name: t.double() for name, t in inputs.items()}


@pytest.mark.parametrize("spec", SINGLE)
def test_solve_never_reads_beyond_a_rows_sources(spec: Spec) -> None:
    """NaN there changes neither values nor gradients, and its own gradient is zero."""
    for cuts, position in (((0, 20), 0), ((0, 3, 3, 4, 10, 20), 0), ((0, 6), 13)):
        check_solve(spec, cuts, position)


def check_solve(spec: Spec, cuts: tuple[int, ...], position: int) -> None:
    rows = rows_of(rv.pattern(spec), cuts, position)

    def run(module: Any) -> tuple[Tensor, Inputs]:
        def one(t: Inputs) -> Tensor:
            known = t.get("y_known", t["x"][..., : rows.known, :] if rows.known else None)
            return module.solve(t["x"], t["alpha"], t.get("beta"), rows, known)

        return gradients(one, explicit_inputs(rows, math.nan))

    assert_all_close(run(portable), run(reference))


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


def test_autocast() -> None:
    rows, inputs = rows_of(rv.pattern("quadratic+cache"), (0, 130)), mixer_inputs(130, torch.bfloat16)
    y = run_on(portable, inputs, rows)
    with torch.autocast("cpu"):
        assert torch.equal(run_on(portable, inputs, rows), y)


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
