"""What `resolvent bench gpu` does: every kernel against the reference, then times against peers on the same GPU."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import resolvent
from resolvent.errors import SettingError
from resolvent.ops import DecodeCache, extend, mix
from resolvent.ops.triton.sizes import Sizes, architecture, sizes_for, using
from resolvent.patterns import Pattern, explicit, pattern

# One of each kind that kernels tell apart: strided, alive, listed row by row; A alone, B alone, one source.
PATTERNS = (
    "exponential", "quadratic+diagonal", "exponential+attention", "offsets:3", "exponential+cache", "quadratic+cache",
    "local:5", "first-order", "rows",
)  # fmt: skip
TIMED = ("exponential+cache", "quadratic+cache", "exponential", "quadratic")
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
_SEED = 0


@dataclass(frozen=True)
class Check:
    """One comparison with the reference in float64: the largest error, relative to the largest entry."""

    name: str
    error: float
    tolerance: float

    @property
    def passed(self) -> bool:
        return self.error <= self.tolerance  # NaN is not


@dataclass(frozen=True)
class GpuTiming:
    """Milliseconds on n tokens, forward and with backward (None where there is none)."""

    name: str
    n: int
    forward_ms: float
    both_ms: float | None


@dataclass(frozen=True)
class GpuReport:
    """All that a GPU has shown."""

    device: str
    architecture: str
    versions: dict[str, str]
    checks: list[Check]
    timings: list[GpuTiming]
    tuned: dict[str, object] | None = None

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    def to_dict(self) -> dict[str, object]:
        return asdict(self) | {"passed": self.passed}


def versions() -> dict[str, str]:
    import triton

    build = torch.version.hip or torch.version.cuda or "cpu"
    return {
        "resolvent": resolvent.__version__,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "build": build,
    }


def find_device(*, interpret: bool) -> torch.device:
    """The GPU, or the CPU for Triton's interpreter."""
    if find_spec("triton") is None:
        raise SettingError("bench gpu needs the package triton: pip install triton.")
    if not interpret and not torch.cuda.is_available():
        raise SettingError(
            "no GPU: torch sees neither CUDA nor ROCm here. Expected a GPU and a build of torch for it; "
            "--interpret checks the kernels on this CPU, without times."
        )
    return torch.device("cpu" if interpret else "cuda")


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "the interpreter of Triton on a CPU"


def checks(device: torch.device, *, small: bool = False) -> Iterator[Check]:
    """Values, gradients and decoding, on every kind of pattern; few sizes and dtypes if small.

    A kernel that does not compile or run is a check that failed, and the others go on.
    """
    block = sizes_for(device, 16, 16).block
    n, d = (block + 9, 16) if small else (2 * block + 9, 64)
    specs = ("exponential", "exponential+cache") if small else PATTERNS
    many = replace(sizes_for(device, d, d), chunk=0)  # as many heads take them: steps of single blocks
    for spec in specs:
        for dtype in (torch.float32,) if small else (torch.float32, torch.bfloat16, torch.float16):
            yield from _tried(f"{spec} {_kind(dtype)}", partial(_mix_checks, spec, n, d, dtype, device))
        if spec == "exponential+cache":
            with using(many):
                yield from _tried(f"{spec} by blocks", partial(_mix_checks, spec, n, d, torch.float32, device))
        yield from _tried(f"{spec} decode", partial(_decode_checks, spec, 12 if small else n, d, device))


def _tried(name: str, run: Callable[[], Iterable[Check]]) -> Iterator[Check]:
    try:
        yield from run()
    except Exception as error:
        first = (str(error).splitlines() or [""])[0]
        yield Check(f"{name}: {type(error).__name__}: {first}", math.nan, 0.0)


def timings(device: torch.device, lengths: list[int], heads: int, d: int, rounds: int) -> Iterator[GpuTiming]:
    """FlashAttention, FlexAttention where it compiles, our kernels and plain torch operations, in bfloat16."""
    for n in lengths:
        inputs = _inputs(n, d, torch.bfloat16, device, heads=heads)
        for t in inputs.values():
            t.requires_grad_()
        runs: dict[str, Callable[[], Tensor]] = {
            "FlashAttention (sdpa)": partial(
                scaled_dot_product_attention, inputs["qa"], inputs["ka"], inputs["x"], is_causal=True
            )
        }
        for spec in TIMED:
            runs[f"FlexAttention on {spec}"] = _flex(spec, n, inputs, device)
            runs[f"{spec}, triton"] = partial(_mix, inputs, spec, "triton")
            if n <= 16_384:
                runs[f"{spec}, torch"] = partial(_mix, inputs, spec, "torch")
        leaves = list(inputs.values())
        for name, run in runs.items():
            try:
                yield _timing(name, n, run, leaves, rounds)
            except Exception as error:  # a peer that does not run here is no reason to stop
                yield GpuTiming(f"{name}: {type(error).__name__}", n, math.nan, None)


def tune(device: torch.device, n: int, heads: int, d: int, rounds: int) -> dict[str, object]:
    """The sizes that are fastest here, forward and backward together, over two patterns; see `ops/triton/sizes.py`."""
    candidates = [Sizes(block, channels) for block in (16, 32, 64) for channels in (16, 32, 64)]
    took = {sizes: _both_ms(sizes, device, n, heads, d, rounds) for sizes in candidates}
    best = min(candidates, key=took.__getitem__)
    for sizes in (replace(best, slopes=32), replace(best, chunk=256), replace(best, chunk=0)):  # then one at a time
        took[sizes] = _both_ms(sizes, device, n, heads, d, rounds)
        best = min(best, sizes, key=took.__getitem__)
    return {"architecture": architecture(device), "head_dim": d, "sizes": asdict(best), "milliseconds": took[best]}


def _both_ms(sizes: Sizes, device: torch.device, n: int, heads: int, d: int, rounds: int) -> float:
    took = 0.0
    for spec in ("exponential", "exponential+cache"):
        inputs = _inputs(n, d, torch.bfloat16, device, heads=heads)
        leaves = [t.requires_grad_() for t in inputs.values()]
        try:
            with using(sizes):
                took += _timing(spec, n, partial(_mix, inputs, spec, "triton"), leaves, rounds).both_ms or math.inf
        except Exception:  # sizes that do not fit this GPU
            return math.inf
    return took


def _timing(name: str, n: int, run: Callable[[], Tensor], leaves: list[Tensor], rounds: int) -> GpuTiming:
    weights = torch.ones_like(run().detach())

    def both() -> None:
        torch.autograd.grad(run(), leaves, weights, allow_unused=True)

    with torch.no_grad():
        forward = _milliseconds(run, rounds)
    return GpuTiming(name, n, forward, _milliseconds(both, rounds))


def _milliseconds(run: Callable[[], object], rounds: int) -> float:
    """The median of the device's own clock, after two runs that warm up."""
    taken = []
    for number in range(rounds + 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        if number > 1:
            taken.append(begin.elapsed_time(end))
    return float(statistics.median(taken))


def _flex(spec: str, n: int, inputs: dict[str, Tensor], device: torch.device) -> Callable[[], Tensor]:
    @cache
    def compiled() -> Callable[..., Tensor]:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        from resolvent.bench.peers import a_mask

        blocks = create_block_mask(a_mask(pattern(spec), n, device), None, None, n, n, device=str(device))
        return partial(torch.compile(flex_attention, dynamic=False), block_mask=blocks)

    return lambda: compiled()(inputs["qa"], inputs["ka"], inputs["x"])


def _inputs(n: int, d: int, dtype: torch.dtype, device: torch.device, heads: int = 2) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(_SEED)
    tensors = {name: torch.randn(1, heads, n, d, generator=generator) for name in ("x", "qa", "ka", "qb", "kb")}
    tensors["gate"] = torch.rand(1, heads, n, generator=generator)
    return {name: t.to(device, dtype) for name, t in tensors.items()}


def _pattern(spec: str) -> Pattern:
    return explicit(lambda i: range(0, i, 3), n=4096) if spec == "rows" else pattern(spec)


def _mix(t: dict[str, Tensor], spec: str, backend: str) -> Tensor:
    return mix(t["x"], _pattern(spec), a=(t["qa"], t["ka"]), b=(t["qb"], t["kb"]), gate=t["gate"], backend=backend)


def _mix_checks(spec: str, n: int, d: int, dtype: torch.dtype, device: torch.device) -> Iterator[Check]:
    inputs = _inputs(n, d, dtype, device)
    exact = {name: t.double().cpu() for name, t in inputs.items()}
    mine = _with_gradients(lambda t: _mix(t, spec, "triton"), inputs)
    theirs = _with_gradients(lambda t: _mix(t, spec, "torch"), exact)
    for name, value in mine.items():
        yield Check(f"{spec} {_kind(dtype)} {name}", _error(value, theirs[name]), TOLERANCE[dtype])


def _kind(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _decode_checks(spec: str, n: int, d: int, device: torch.device) -> Iterator[Check]:
    inputs = _inputs(n, d, torch.float32, device)
    p = _pattern(spec)
    kept = DecodeCache(p, 1, 2, d, d, device=device)
    outputs = []
    with torch.no_grad():
        for i in range(n):
            x, qa, ka, qb, kb, gate = (t[:, :, i : i + 1] for t in inputs.values())
            outputs.append(extend(x, p, kept, a=(qa, ka), b=(qb, kb), gate=gate, backend="triton"))
    exact = _mix({name: t.double().cpu() for name, t in inputs.items()}, spec, "torch")
    yield Check(f"{spec} float32 decode", _error(torch.cat(outputs, 2), exact), TOLERANCE[torch.float32])


def _with_gradients(run: Callable[[dict[str, Tensor]], Tensor], inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    leaves = {name: t.detach().clone().requires_grad_() for name, t in inputs.items()}
    y = run(leaves)
    weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y.device, y.dtype)
    gradients = torch.autograd.grad(y, list(leaves.values()), weights, allow_unused=True, materialize_grads=True)
    return {"y": y.detach()} | {f"d{name}": t for name, t in zip(leaves, gradients, strict=True)}


def _error(mine: Tensor, exact: Tensor) -> float:
    largest = max(exact.abs().max().item(), 1.0)
    return float((mine.double().cpu() - exact).abs().max().item()) / largest


def with_tuning(report: GpuReport, tuned: dict[str, object]) -> GpuReport:
    return replace(report, tuned=tuned)
