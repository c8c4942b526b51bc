"""Kernels compiled for GPUs that are not there: every variant that a call can choose, from its recorded launches."""

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

import resolvent as rv
from resolvent.ops.inputs import Inputs
from resolvent.ops.rows import rows_of
from resolvent.ops.triton import fused
from resolvent.ops.triton.launch import Launched, find_kernel, recording

TARGETS = {"sm_80": ("cuda", 80, 32), "sm_90": ("cuda", 90, 32), "gfx942": ("hip", "gfx942", 64)}
DIMS = (24, 64, 80, 128)
# Strided, then listed: A alone; both, B with several sources or one; B alone, with several or one.
STAGES = [
    "exponential+attention", "exponential", "offsets:3", "quadratic+diagonal", "offsets:3+diagonal",
    "local:5", "exponential+cache", "order:1", "exponential+diagonal+cache", "first-order",
]  # fmt: skip
HEADS = (2, 300)  # few, which take chunks where they can, and many
TYPES = {
    torch.float32: "fp32", torch.float64: "fp64", torch.bfloat16: "bf16", torch.float16: "fp16",
    torch.int32: "i32", torch.int64: "i64",
}  # fmt: skip
_FLAGS = ("STRIDED", "CHUNKED", "DIRECT", "RECURRENT", "SCORED", "OUTPUT", "ROUNDED", "A", "READS")
_SCALARS = {int: "i32", float: "fp32"}


@dataclass(frozen=True)
class Variant:
    """A kernel, for which it is compiled: signature and constants, as a launch has them."""

    kernel: str
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]

    @property
    def name(self) -> str:
        values = dict(self.constants)
        flags = [name.lower() for name in _FLAGS if values.get(name) is True]
        return " ".join([self.kernel.partition(".")[2], f"D={values['D']}", self._dtype, *flags])

    @property
    def _dtype(self) -> str:
        types = dict(self.signature)
        return next(types[name][1:] for name in ("q", "x", "v", "y", "dx", "dy") if name in types)


def variants(dims: tuple[int, ...] = DIMS) -> Iterator[Variant]:
    """All that forward, backward and decoding launch, each once.

    In bfloat16 and in float32, whose scores take three products for one. (Float16 differs from bfloat16 by nothing but
    the type of loads and stores.)
    """
    seen = set()
    for launched in _every_launch(dims):
        variant = _variant(launched)
        if variant.name not in seen:
            seen.add(variant.name)
            yield variant


def _every_launch(dims: tuple[int, ...]) -> Iterator[Launched]:
    for d in dims:
        for dtype in (torch.bfloat16, torch.float32):
            yield from _launches(d, dtype)


def launches_of(spec: str, n: int, d: int, dtype: torch.dtype, heads: int = 2) -> tuple[list[Launched], list[Launched]]:
    """Of `mix` on n tokens, forward and back, on tensors without memory."""
    (stage,) = rv.pattern(spec).stages
    x = torch.empty((1, heads, n, d), dtype=dtype, device="meta")
    inputs = Inputs(x, x, x, x, x, torch.empty((1, heads, n), dtype=dtype, device="meta"))
    rows = rows_of(stage, (0, n))
    with recording() as forward:
        saved = fused.forward(inputs, rows, 0.5)
    with recording() as backward:
        fused.backward(torch.empty_like(x), saved, inputs, rows, 0.5)
    return forward, backward


def _launches(d: int, dtype: torch.dtype) -> Iterator[Launched]:
    for spec in STAGES:
        for heads in HEADS:
            for launches in launches_of(spec, 100, d, dtype, heads):
                yield from launches
    for pattern in (*STAGES, *rows()):
        yield from decode_launches(pattern, d, dtype)
    yield from decode_launches("exponential+cache", d, dtype, groups=1)


def rows() -> Iterator[rv.Pattern]:
    """Patterns listed row by row, with the flags of `STAGES`: kernels but that of single tokens see no difference."""
    (several,), (one,) = (rv.explicit(f, n=100).stages for f in (lambda i: range(0, i, 3), lambda i: range(i)[-3:-2]))
    yield several.modified("all", recurrent=False)
    for direct in ("all", "diagonal"):
        for stage in (several, one):
            yield stage.modified(direct, recurrent=True)


def decode_launches(
    pattern: str | rv.Pattern, d: int, dtype: torch.dtype, tokens: int = 1, groups: int = 2
) -> list[Launched]:
    """Of `extend` for two heads on so many of keys and values, token by token."""
    p = rv.pattern(pattern)
    cache = rv.decode_cache(p, 2, 2, d, d, dtype=dtype, device="meta", max_tokens=100, kv_heads=groups)
    q, k = (torch.empty((2, heads, 1, d), dtype=dtype, device="meta") for heads in (2, groups))
    gate = torch.empty((2, 2, 1), dtype=dtype, device="meta")
    with recording() as record, torch.no_grad():
        for _ in range(tokens):
            rv.extend(k, p, cache, a=(q, k), b=(q, k), gate=gate, backend=_OnMeta())
    return record


class _OnMeta:
    """The backend as it is, asked for tensors without memory."""

    NAME = "triton"

    def __getattr__(self, name: str) -> Any:
        from resolvent.ops import triton

        return getattr(triton, name)

    def refusal(self, _: object) -> None:
        return None


def _variant(launched: Launched) -> Variant:
    names = list(launched.named)
    signature = []
    for name, argument in zip(names, launched.arguments, strict=False):
        kind = "*" + TYPES[argument.dtype] if isinstance(argument, torch.Tensor) else _SCALARS[type(argument)]
        signature.append((name, kind))
    return Variant(launched.kernel, tuple(signature), tuple(sorted(launched.constants.items())))


@dataclass(frozen=True)
class Compiled:
    """What a compiler made of a variant for one target."""

    variant: Variant
    target: str
    result: Any

    @cached_property
    def resources(self) -> list[int]:
        """Registers and bytes of stack (on gfx942 registers spilled) of a thread, shared bytes of a program."""
        shared = int(self.result.metadata.shared)
        if self.target.startswith("gfx"):
            text = self.result.asm["amdgcn"]
            counts = (re.search(rf"\.{name}:\s*(\d+)", text) for name in ("vgpr_count", "vgpr_spill_count"))
            return [*(int(found[1]) for found in counts), shared]
        found = re.search(r"REG:(\d+) STACK:(\d+)", _cuobjdump(self.result.asm["cubin"]))
        return [int(found[1]), int(found[2]), shared]

    def text(self, stage: str) -> str:
        return str(self.result.asm[stage])


def compile_variant(variant: Variant, target: str, function: Any = None) -> Compiled:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    hip = target.startswith("gfx")
    constants = {name: value for name, value in variant.constants if name.isupper()}
    options = {name: value for name, value in variant.constants if not name.isupper()}
    if hip:
        constants |= {name: "ieee" for name in ("PRECISION", "EXACT") if name in constants}
        options.pop("maxnreg", None)
    constants["COMPUTE"] = getattr(triton.language, constants["COMPUTE"])
    kernel = function or find_kernel(variant.kernel)
    signature = dict(variant.signature) | dict.fromkeys(constants, "constexpr")
    ordered = {name: signature[name] for name in kernel.arg_names}
    attrs = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(ordered.values()) if kind.startswith("*")}
    source = ASTSource(kernel, ordered, constexprs=constants, attrs=attrs)
    return Compiled(variant, target, triton.compile(source, target=GPUTarget(*TARGETS[target]), options=options))


def _cuobjdump(cubin: bytes) -> str:
    import tempfile

    import triton

    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tools / "cuobjdump"), "--dump-resource-usage", file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
