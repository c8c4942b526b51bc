"""The torch backend against the definition: values, gradients of gradients, packed and known rows, and memory."""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

import resolvent as rv
from resolvent.ops import portable, reference
from resolvent.ops.portable import plan as portable_plan
from resolvent.ops.rows import Rows, rows_of
from tests.operator_cases import (
    PATTERNS,
    TOLERANCE,
    Inputs,
    Largest,
    Spec,
    assert_all_close,
    assert_close,
    cut,
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


@pytest.mark.parametrize("spec", PATTERNS)
@pytest.mark.parametrize(("cuts", "position"), [((0, 20), 0), ((0, 3, 3, 4, 10, 20), 0), ((0, 6), 13)])
def test_solve_never_reads_beyond_a_rows_sources(spec: Spec, cuts: tuple[int, ...], position: int) -> None:
    """NaN there changes neither values nor gradients, and its own gradient is zero."""
    rows = rows_of(rv.pattern(spec), cuts, position)

    def run(module: Any) -> tuple[Tensor, Inputs]:
        def one(t: Inputs) -> Tensor:
            known = t.get("y_known", t["x"][..., : rows.known, :] if rows.known else None)
            return module.solve(t["x"], t["alpha"], t.get("beta"), rows, known)

        return gradients(one, explicit_inputs(rows, math.nan))

    assert_all_close(run(portable), run(reference))


@pytest.mark.parametrize("spec", PATTERNS)
def test_packed_sequences_do_not_see_each_other(spec: Spec) -> None:
    cuts = (0, 3, 3, 4, 10, 140)
    inputs = mixer_inputs(cuts[-1], torch.float64, 1, 2)

    def packed(t: Inputs) -> Tensor:
        return run_on(portable, t, rows_of(rv.pattern(spec), cuts))

    def alone(t: Inputs) -> Tensor:
        parts = [run_on(portable, cut(t, a, b), rows_of(rv.pattern(spec), (0, b - a))) for a, b in pairwise(cuts)]
        return torch.cat(parts, dim=-2)

    assert_all_close(gradients(packed, inputs), gradients(alone, inputs))


@pytest.mark.parametrize("spec", PATTERNS)
@pytest.mark.parametrize(("before", "after"), [(1, 1), (5, 1), (20, 70), (66, 3), (66, 0)])
def test_continuing_is_the_whole(spec: Spec, before: int, after: int) -> None:
    """[0, before) first, then the rest with only the rows that may still be read."""
    p = rv.pattern(spec)
    rest = rows_of(p, (0, after), before)
    kept = rest.held.tolist()

    def in_two(t: Inputs) -> Tensor:
        first = {name: v[:, :, :before] for name, v in t.items()}
        y = run_on(portable, first, rows_of(p, (0, before)))
        second = {name: v[:, :, before:] for name, v in t.items()}
        for name in ("x", "ka", "kb"):
            second[name] = torch.cat([t[name][:, :, kept], second[name]], dim=-2)
        z = run_on(portable, {**second, "y_known": y[:, :, kept] if rest.known else None}, rest)
        return torch.cat([y, z], dim=-2)

    whole = rows_of(p, (0, before + after))
    found, expected = (
        gradients(run, mixer_inputs(before + after, torch.float64, 1, 2))
        for run in (in_two, lambda t: run_on(portable, t, whole))
    )
    assert_all_close(found, expected)


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


@pytest.mark.parametrize("spec", ["exponential", "quadratic+cache"])
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_function_transforms(spec: str) -> None:
    """One dimension of some inputs mapped, gradients per sample; forward mode is refused."""
    rows = rows_of(rv.pattern(spec), (0, 9))
    inputs = mixer_inputs(9, torch.float64)
    x = torch.randn(4, 2, 3, 9, 5).double()

    def run(one: Tensor) -> Tensor:
        return run_on(portable, {**inputs, "x": one}, rows)

    assert_close(torch.func.vmap(run)(x), torch.stack([run(one) for one in x]), what="vmap")
    gradient = torch.func.grad(lambda one: run(one).square().sum())
    assert_close(torch.func.vmap(gradient)(x), torch.stack([gradient(one) for one in x]), what="gradients per sample")
    with pytest.raises(RuntimeError, match="jvp"):
        torch.func.jvp(run, (x[0],), (x[0],))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_narrow_types_and_autocast(dtype: torch.dtype) -> None:
    rows = rows_of(rv.pattern("quadratic+cache"), (0, 130))
    inputs = mixer_inputs(130, dtype)
    exact = run_on(portable, {name: t.double() for name, t in inputs.items()}, rows)
    y = run_on(portable, inputs, rows)
    assert y.dtype == dtype
    assert (y.double() - exact).abs().max() <= TOLERANCE[dtype] * exact.abs().max()
    with torch.autocast("cpu"):
        assert torch.equal(run_on(portable, inputs, rows), y)


def test_empty_shapes() -> None:
    for spec in ("exponential", "quadratic+cache", "local:1"):
        for cuts in ((0, 0), (0, 6)):
            rows = rows_of(rv.pattern(spec), cuts)
            for batch, d in ((0, 5), (2, 0), (2, 5)):
                inputs = mixer_inputs(rows.new, torch.float32, batch, 3, d)
                y, found = gradients(lambda t, rows=rows: run_on(portable, t, rows, 1.0), inputs)
                assert y.shape == (batch, 3, rows.new, d)
                assert all(found[name].shape == inputs[name].shape for name in inputs)


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
