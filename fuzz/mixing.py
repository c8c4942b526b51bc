"""`mix` and `solve` on every backend that accepts the call: values and gradients of every input."""

from __future__ import annotations

import math

import torch
from torch import Tensor

import resolvent as rv
from fuzz import oracle
from fuzz.calls import LENGTHS, Call, draw_call, lay_out
from fuzz.case import Case, Difference
from fuzz.compare import Tensors, differentiate, exactly
from fuzz.patterns import draw_pattern
from resolvent.ops.backend import Request
from resolvent.ops.registry import BACKENDS

_REFERENCE_READS = 150  # the reference goes through reads one by one


def mix(case: Case) -> None:
    call = draw_call(case)
    wanted = [name for name in call.tensors if case.chance(0.85)]
    shape = (call.batch, call.heads, call.n, call.tensors["x"].shape[-1])
    weights = _weights(case, shape)
    exact = exactly(case, call.oracle(), call.tensors, weights, wanted)
    if exact.useless:
        case.count("skipped")
        return
    before = {name: t.clone() for name, t in call.tensors.items()}
    for backend in _accepting(call.drawn.pattern, "mix", call.joint, call.n, call.batch * call.heads):
        with case.threads():
            tensors, dtype = call.tensors, call.dtype
            if backend == "reference":  # the definition itself, in float64
                tensors, dtype = {name: t.double() for name, t in tensors.items()}, torch.float64
            mine = differentiate(lambda t, b=backend: call.mix(t, b), tensors, weights, wanted)
            _same_dtypes(mine, tensors, backend)
            for name, value in mine.items():
                exact.check(name, value, dtype, backend, _deep(name, call))
            case.count("gradients", len(wanted))
    with torch.no_grad():
        exact.check("y", call.mix(call.tensors, "auto"), call.dtype, "auto, without gradients", _deep("y", call))
    for name, t in call.tensors.items():
        if not torch.equal(t.nan_to_num(7.0), before[name].nan_to_num(7.0)):
            raise Difference(f"mix wrote into {name}.")


def _deep(name: str, call: Call) -> float:
    """Gradients of the joint softmax and of scores pass through longer chains of roundings than outputs do."""
    return 10.0 if name != "y" or call.joint else 2.0


def solve(case: Case) -> None:
    """Signed coefficients; what lies beyond a row's sources is NaN, and never read."""
    drawn = draw_pattern(case)
    n = case.choose([*LENGTHS[:-2], *(case.integer(1, 70) for _ in range(10))])
    batch, heads, dim = case.integer(1, 2), case.integer(1, 3), case.choose([1, 2, 5, 8, 17])
    dtype, pattern = case.choose([torch.float64, torch.float64, torch.float32]), drawn.pattern
    sets = drawn.a(n), drawn.b(n)
    widths = {name: max(map(len, each)) for name, each in zip(("alpha", "beta"), sets, strict=True)}
    gain = case.choose([0.3, 0.8, 1.0, 1.5])  # of feedback: beyond one, outputs may grow with every token
    generator = case.generator()

    def normal(*columns: int, size: float = 1.0) -> Tensor:
        t = torch.randn(batch, heads, n, *columns, dtype=torch.float64, generator=generator)
        return (size * t).to(dtype)

    tensors: Tensors = {"x": normal(dim), "alpha": normal(1 + widths["alpha"] if pattern.direct == "all" else 1)}
    if pattern.recurrent:
        tensors["beta"] = normal(widths["beta"], size=gain / max(widths["beta"], 1) ** 0.5)
    for name, first, each in (("alpha", 1, sets[0]), ("beta", 0, sets[1])):
        if name in tensors and tensors[name].shape[-1] == first + widths[name]:
            beyond = [[c >= len(each[i]) for c in range(widths[name])] for i in range(n)]
            tensors[name][..., first:][..., torch.tensor(beyond, dtype=torch.bool)] = math.nan
    tensors = {name: _keep_nan(case, t) for name, t in tensors.items()}
    case.say(pattern=drawn, dtype=dtype, gain=gain,
             shapes={name: (tuple(t.shape), t.stride()) for name, t in tensors.items()})  # fmt: skip
    weights = _weights(case, (batch, heads, n, dim))
    wanted = [name for name in tensors if case.chance(0.85)]

    def exact_run(t: Tensors) -> Tensor:
        return oracle.solve(t["x"], t["alpha"], t.get("beta"), sets, direct=pattern.direct == "all")

    exact = exactly(case, exact_run, tensors, weights, wanted)
    if exact.useless:
        case.count("skipped")
        return
    for backend in _accepting(pattern, "solve", False, n, batch * heads):
        run = {name: t.double() for name, t in tensors.items()} if backend == "reference" else tensors
        mine = differentiate(
            lambda t, b=backend: rv.solve(t["x"], drawn.given, t["alpha"], t.get("beta"), backend=b),
            run, weights, wanted,
        )  # fmt: skip
        for name, value in mine.items():
            exact.check(name, value, torch.float64 if backend == "reference" else dtype, backend, 2.0)
        case.count("gradients", len(wanted))


def _keep_nan(case: Case, t: Tensor) -> Tensor:
    """Another layout, unless it puts a number where none may be read or a NaN where one is."""
    laid = lay_out(case, t)
    return laid if torch.equal(laid.isnan(), t.isnan()) else t


def _weights(case: Case, shape: tuple[int, ...]) -> Tensor | None:
    """Of the outputs in what is differentiated; None is a sum, whose gradient is one number for all."""
    if case.chance(0.15):
        return None
    return lay_out(case, case.normal(shape))


def _accepting(pattern: rv.Pattern, operation: str, joint: bool, n: int, heads: int) -> list[str]:
    """Registered backends that do not refuse, and "auto"."""
    normalize = "joint" if joint and pattern.recurrent else "gate"
    request = Request(operation, str(pattern), pattern.is_dense, pattern.recurrent, "cpu", n, normalize)  # type: ignore[arg-type]
    short = heads > 0 and pattern.total_reads(n) <= _REFERENCE_READS
    names = [name for name, backend in BACKENDS.items() if backend.refusal(request) is None]
    return ["auto", *(name for name in names if name != "reference" or short)]


def _same_dtypes(mine: Tensors, tensors: Tensors, backend: str) -> None:
    for name, value in mine.items():
        expected = tensors["x" if name == "y" else name[1:]].dtype
        if value.dtype != expected:
            raise Difference(f"{backend}: {name} is {value.dtype}, expected {expected}.")
