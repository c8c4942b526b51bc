"""The torch backend against the definition: values, gradients of gradients, packed and known rows, and memory."""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import resolvent as rv
from resolvent.ops import portable, portable_plan, reference
from resolvent.ops.rows import Rows, rows
from tests.laws.test_backends import PATTERNS, TOLERANCE, Inputs, gradients, mixer_inputs

SCALE = 7**-0.5


def assert_same(mine: Tensor, exact: Tensor, what: str) -> None:
    torch.testing.assert_close(mine, exact, rtol=1e-12, atol=1e-12, msg=lambda text: f"{what}: {text}")


def assert_same_gradients(run: object, other: object, inputs: Inputs) -> None:
    y, found = gradients(run, inputs)
    exact, expected = gradients(other, inputs)
    assert_same(y, exact, "y")
    for name, gradient in found.items():
        assert_same(gradient, expected[name], name)


def explicit_inputs(where: Rows, beyond: float) -> Inputs:
    """Random coefficients for `where`, with `beyond` in the columns that no row reads."""
    torch.manual_seed(where.new)
    table = torch.from_numpy(where.table)
    new, width = table.shape
    columns = 1 + width if where.pattern.direct == "all" else 1
    inputs = {"x": torch.randn(2, 2, where.known + new, 3), "alpha": torch.randn(2, 2, new, columns)}
    inputs["alpha"][..., 1:].masked_fill_(table[:, : columns - 1] < 0, beyond)
    if where.pattern.recurrent:
        inputs["beta"] = (torch.randn(2, 2, new, width) / max(width, 1)).masked_fill(table < 0, beyond)
    if where.known and where.pattern.recurrent:
        inputs["y_known"] = torch.randn(2, 2, where.known, 3)
    return {name: t.double() for name, t in inputs.items()}


@pytest.mark.parametrize("spec", PATTERNS)
@pytest.mark.parametrize(("cuts", "position"), [((0, 20), 0), ((0, 3, 3, 4, 10, 20), 0), ((0, 6), 13)])
def test_solve_never_reads_beyond_a_rows_sources(spec: str, cuts: tuple[int, ...], position: int) -> None:
    """NaN there changes neither values nor gradients, and its own gradient is zero."""
    where = rows(rv.pattern(spec), cuts, position)

    def run(module: Any) -> object:
        def one(x: Tensor, alpha: Tensor, beta: Tensor | None = None, y_known: Tensor | None = None) -> Tensor:
            y_known = x[..., : where.known, :] if y_known is None and where.known else y_known
            return module.solve(x, alpha, beta, where, y_known)

        return one

    assert_same_gradients(run(portable), run(reference), explicit_inputs(where, math.nan))


@pytest.mark.parametrize("spec", PATTERNS)
def test_packed_sequences_do_not_see_each_other(spec: str) -> None:
    cuts = (0, 3, 3, 4, 10, 140)
    inputs = mixer_inputs(cuts[-1], torch.float64, 1, 2)

    def packed(**t: Tensor) -> Tensor:
        return portable.mix(**t, where=rows(rv.pattern(spec), cuts), scale=SCALE)

    def alone(**t: Tensor) -> Tensor:
        parts = [
            portable.mix(
                **{k: v[:, :, a:b] for k, v in t.items()}, where=rows(rv.pattern(spec), (0, b - a)), scale=SCALE
            )
            for a, b in pairwise(cuts)
        ]
        return torch.cat(parts, dim=-2)

    assert_same_gradients(packed, alone, inputs)


@pytest.mark.parametrize("spec", PATTERNS)
@pytest.mark.parametrize(("before", "after"), [(1, 1), (5, 1), (20, 70), (66, 3), (66, 0)])
def test_continuing_is_the_whole(spec: str, before: int, after: int) -> None:
    """[0, before) first, then the rest with only the rows that may still be read."""
    p = rv.pattern(spec)
    rest = rows(p, (0, after), before)
    kept = rest.held.tolist()

    def in_two(**t: Tensor) -> Tensor:
        first = {name: v[:, :, :before] for name, v in t.items()}
        y = portable.mix(**first, where=rows(p, (0, before)), scale=SCALE)
        second = {name: v[:, :, before:] for name, v in t.items()}
        for name in ("x", "ka", "kb"):
            second[name] = torch.cat([t[name][:, :, kept], second[name]], dim=-2)
        z = portable.mix(**second, where=rest, scale=SCALE, y_known=y[:, :, kept] if rest.known else None)
        return torch.cat([y, z], dim=-2)

    whole = rows(p, (0, before + after))
    assert_same_gradients(
        in_two,
        lambda **t: portable.mix(**t, where=whole, scale=SCALE),
        mixer_inputs(before + after, torch.float64, 1, 2),
    )


@pytest.mark.parametrize(
    ("spec", "position"), [("exponential", 0), ("exponential+cache", 0), ("quadratic+cache", 4), ("dense", 0)]
)
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_first_and_second_derivatives(monkeypatch: pytest.MonkeyPatch, spec: str, position: int) -> None:
    """Blocks of three rows, so that far reads take part."""
    monkeypatch.setattr(portable_plan, "BLOCK", 3)
    portable_plan.plan.cache_clear()
    where = Rows(rv.pattern(spec), (0, 7), position)
    inputs = mixer_inputs(where.known + 7, torch.float64, 1, 1, 2, 2)
    for name in ("qa", "qb", "gate"):
        inputs[name] = inputs[name][:, :, where.known :]
    y_known = torch.randn(1, 1, where.known, 2).double()
    leaves = [t.clone().requires_grad_() for t in (*inputs.values(), y_known)]

    def run(*t: Tensor) -> Tensor:
        return portable.mix(*t[:-1], where, SCALE, t[-1] if where.known else None)

    assert torch.autograd.gradcheck(run, leaves)
    assert torch.autograd.gradgradcheck(run, leaves, fast_mode=True)
    portable_plan.plan.cache_clear()


@pytest.mark.parametrize("spec", ["exponential", "quadratic+cache"])
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_function_transforms(spec: str) -> None:
    """One dimension of some inputs mapped, gradients per sample; forward mode is refused."""
    where = rows(rv.pattern(spec), (0, 9))
    inputs = mixer_inputs(9, torch.float64)
    x, rest = torch.randn(4, 2, 3, 9, 5).double(), [t for name, t in inputs.items() if name != "x"]

    def run(one: Tensor) -> Tensor:
        return portable.mix(one, *rest, where, SCALE)

    assert_same(torch.func.vmap(run)(x), torch.stack([run(one) for one in x]), "vmap")
    gradient = torch.func.grad(lambda one: run(one).square().sum())
    assert_same(torch.func.vmap(gradient)(x), torch.stack([gradient(one) for one in x]), "gradients per sample")
    with pytest.raises(RuntimeError, match="jvp"):
        torch.func.jvp(run, (x[0],), (x[0],))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_narrow_types_and_autocast(dtype: torch.dtype) -> None:
    where = rows(rv.pattern("quadratic+cache"), (0, 130))
    inputs = mixer_inputs(130, dtype)
    exact = portable.mix(**{name: t.double() for name, t in inputs.items()}, where=where, scale=SCALE)
    y = portable.mix(**inputs, where=where, scale=SCALE)
    assert y.dtype == dtype
    assert (y.double() - exact).abs().max() <= TOLERANCE[dtype] * exact.abs().max()
    with torch.autocast("cpu"):
        assert torch.equal(portable.mix(**inputs, where=where, scale=SCALE), y)


def test_empty_shapes() -> None:
    for spec in ("exponential", "quadratic+cache", "local:1"):
        for cuts in ((0, 0), (0, 6)):
            where = rows(rv.pattern(spec), cuts)
            for batch, d in ((0, 5), (2, 0), (2, 5)):
                inputs = mixer_inputs(where.new, torch.float32, batch, 3, d)
                y, found = gradients(lambda where=where, **t: portable.mix(**t, where=where, scale=1.0), inputs)
                assert y.shape == (batch, 3, where.new, d)
                assert all(found[name].shape == inputs[name].shape for name in inputs)


def test_first_asked_without_gradients() -> None:
    """Tables that were made in inference mode still serve in training."""
    for spec in ("exponential", "quadratic+cache", "dense", "attention"):
        where = Rows(rv.pattern(spec), (0, 71))
        inputs = mixer_inputs(71, torch.float64)
        with torch.inference_mode():
            y = portable.mix(**inputs, where=where, scale=SCALE)
        z, _ = gradients(lambda where=where, **t: portable.mix(**t, where=where, scale=SCALE), inputs)
        assert_same(z, y, spec)


def test_columns_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    where = rows(rv.pattern("quadratic+cache"), (0, 70))
    inputs = mixer_inputs(70, torch.float64)
    y, found = gradients(lambda **t: portable.mix(**t, where=where, scale=SCALE), inputs)
    monkeypatch.setattr(portable_plan, "CHUNK", 1)
    z, chunked = gradients(lambda **t: portable.mix(**t, where=where, scale=SCALE), inputs)
    assert_same(z, y, "y")
    for name, gradient in chunked.items():
        assert_same(gradient, found[name], name)


@pytest.mark.parametrize(
    "spec", ["dense", "attention", "stride:3*k+2+cache", "offsets:2,5", "quadratic+cache", "order:8"]
)
@pytest.mark.parametrize("cuts", [(0, 30), (0, 7, 30)])
def test_nan_goes_where_it_is_read_and_nowhere_else(monkeypatch: pytest.MonkeyPatch, spec: str, cuts: Any) -> None:
    """In one feature of x, one query, one key, one gate: the same outputs are NaN as in the reference."""
    monkeypatch.setattr(portable_plan, "BLOCK", 11)
    where = Rows(rv.pattern(spec), cuts)
    for name in ("x", "qa", "ka", "qb", "kb", "gate"):
        for row in (0, 5, 13):
            inputs = mixer_inputs(cuts[-1], torch.float64, 1, 1, 2, 2)
            inputs[name][0, 0, row].view(-1)[0] = math.nan
            y, exact = (module.mix(**inputs, where=where, scale=SCALE) for module in (portable, reference))
            assert torch.equal(y.isnan(), exact.isnan()), (name, row)
    portable_plan.plan.cache_clear()


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that any operation returns, and the names of all operations."""

    def __init__(self) -> None:
        super().__init__()
        self.elements, self.names = 0, set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        self.names.add(function.overloadpacket.__name__)
        sizes = [t.untyped_storage().nbytes() // t.itemsize for t in tree_leaves(result) if isinstance(t, Tensor)]
        self.elements = max(self.elements, *sizes, 0)
        return result


@pytest.mark.parametrize("spec", ["exponential", "exponential+cache", "quadratic+cache", "first-order"])
def test_nothing_as_large_as_n_squared_and_nothing_waits(spec: str) -> None:
    """Neither forward nor backward; and no operation needs the host to know a value on the device."""
    n = 2048
    where = rows(rv.pattern(spec), (0, n))
    inputs = mixer_inputs(n, torch.float32, 1, 1, 8, 8)
    portable.mix(**inputs, where=where, scale=SCALE)
    with Largest() as largest:
        gradients(lambda **t: portable.mix(**t, where=where, scale=SCALE), inputs)
    assert largest.elements < n * n // 4
    assert not largest.names & {"_local_scalar_dense", "nonzero", "index", "masked_select", "equal", "item"}
