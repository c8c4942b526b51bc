"""Kernels compiled for GPUs that are not there: they compile, fit, do not race, and use what the hardware has.

`make gpu` compiles those of `IN_CI`, `make gpu-test` all of resources.json. None of this shows that a GPU computes the
right numbers, or how fast: `resolvent gpu-check` does.
"""

import importlib.util
import json
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

pytest.importorskip("triton")

from resolvent.ops.triton import forward_pass, interpreting
from resolvent.ops.triton.launcher import find_kernel, parameters
from tests.gpu.compiling import Compiled, Variant, compile_variant, decode_launches, launches_of, variants

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(interpreting(), reason="compiles, which the interpreter does not"),
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION"),
]
TABLE: dict[str, dict[str, dict[str, int]]] = json.loads(Path(__file__).with_name("resources.json").read_text())
SWEEPS = (
    "sweep D=64 bf16 strided rounded",
    "sweep D=64 bf16 rounded",
    "sweep_back D=64 bf16 strided",
    "sweep_back D=64 bf16",
)
TILED = (
    "coefficients D=64 bf16 strided direct recurrent scored output",
    "coefficients D=64 bf16 direct recurrent scored output",
    "slopes D=64 bf16 strided recurrent scored a reads", "slopes D=64 bf16 recurrent scored a reads",
)  # fmt: skip
OTHER = ("collect D=64 bf16 direct recurrent scored keys", "step D=64 bf16 kind0 direct recurrent scored")
IN_CI = [("sm_80", name) for name in SWEEPS] + [("sm_90", name) for name in (*TILED, *OTHER)]
LARGEST_SHARED = 99 * 1024
REGISTERS = 65_536  # of a multiprocessor


@lru_cache(maxsize=1)
def every_variant() -> dict[str, Variant]:
    return {variant.name: variant for variant in variants()}


@lru_cache(maxsize=64)
def compiled(target: str, name: str) -> Compiled:
    return compile_variant(every_variant()[name], target)


def check_resources(target: str, name: str, found: dict[str, int]) -> None:
    """As the table has them, and within what was promised."""
    assert found == TABLE[target][name]
    assert found["shared"] <= LARGEST_SHARED
    if target.startswith("gfx"):
        return
    warps = dict(every_variant()[name].constants)["num_warps"]
    assert 2 * 32 * warps * found["registers"] <= REGISTERS  # two programs fit
    if target == "sm_90" or name.startswith(("coefficients", "sweep", "place", "step")):
        assert found["stack"] == 0


@pytest.mark.parametrize(("target", "name"), IN_CI)
def test_resources(target: str, name: str) -> None:
    check_resources(target, name, compiled(target, name).resources)


@pytest.mark.slow
@pytest.mark.parametrize(("target", "name"), [(target, name) for target, rows in TABLE.items() for name in rows])
def test_all_resources(target: str, name: str) -> None:
    check_resources(target, name, compiled(target, name).resources)


def test_the_table_is_about_kernels_that_exist() -> None:
    for rows in TABLE.values():
        assert rows.keys() <= every_variant().keys()
    for target, name in IN_CI:
        assert name in TABLE[target]


def race(ttgir: str) -> str | None:
    """What is wrong with a sweep in the compiler's code: rows fetched before the loop, or a store without a barrier.

    A step stores rows that later steps read. If the loop is pipelined, copies stand before it; if nothing orders a step
    after the stores of the one before, no barrier follows the last store of its body.
    """
    lines = ttgir.splitlines()
    loops = [(first, last) for first, last in _loops(lines) if any("tt.store" in line for line in lines[first:last])]
    if not loops:
        return "no loop stores anything"
    first, last = min(loops)  # the outermost
    if any("async_copy" in line or "async_tma" in line for line in lines[:first]):
        return "rows are copied before the loop begins"
    body = lines[first:last]
    stores = [number for number, line in enumerate(body) if "tt.store" in line]
    if not any("barrier" in line for line in body[stores[-1] :]):
        return "no barrier follows the last store of a step"
    return None


def _loops(lines: list[str]) -> Iterator[tuple[int, int]]:
    for first, line in enumerate(lines):
        if "scf.for" in line or "scf.while" in line:
            depth = len(line) - len(line.lstrip())
            after = (
                n
                for n in range(first + 1, len(lines))
                if lines[n].strip().startswith("}") and _depth(lines[n]) == depth
            )
            yield first, next(after)


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


@pytest.mark.parametrize("name", SWEEPS)
def test_sweeps_do_not_race(name: str) -> None:
    assert race(compiled("sm_80", name).text("ttgir")) is None


def test_a_sweep_without_its_barrier_would(tmp_path: Path) -> None:
    """The check can fail: on the same kernel, its barrier left out."""
    source = Path(forward_pass.__file__).read_text()
    assert source.count("        tl.debug_barrier()\n") >= 2
    mutant = tmp_path / "mutant.py"
    mutant.write_text(source.replace("        tl.debug_barrier()\n", ""))
    spec = importlib.util.spec_from_file_location("mutant", mutant)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = compile_variant(every_variant()[SWEEPS[1]], "sm_80", module.sweep)
    assert race(made.text("ttgir")) == "no barrier follows the last store of a step"


@pytest.mark.parametrize(("target", "name"), IN_CI)
def test_instructions(target: str, name: str) -> None:
    """Rows by 128 bits, tensor cores where there are tiles, nothing past the caches in sweeps, and no atomics."""
    ptx = compiled(target, name).text("ptx")
    assert not re.search(r"\b(atom|red)\.", ptx)
    assert re.search(r"ld\.global\S*\.v4", ptx)
    if name in (*SWEEPS, *TILED):
        assert re.search(r"\b(mma|wgmma)\.", ptx)
    if name in SWEEPS:
        assert "ld.global.nc" not in ptx


@pytest.mark.parametrize(("target", "name"), IN_CI)
def test_precision(target: str, name: str) -> None:
    """tf32 alone multiplies only what it holds exactly: queries and keys that are half-precision numbers, and masks."""
    products = [line for line in compiled(target, name).text("ttir").splitlines() if "tt.dot" in line]
    plain = [
        line for line in products if "tf32x3" not in line and "tensor<16x16xf16>" not in line and "xf16>" not in line
    ]
    assert len(plain) <= (2 if "coefficients" in name or "slopes" in name else 0) * 2  # scores of A and of B
    assert all("inputPrecision = tf32" in line for line in plain)


def test_float32_never_goes_through_plain_tf32() -> None:
    for spec in ("exponential", "exponential+cache"):
        for launched in [*launches_of(spec, 100, 64, torch.float32)[0], *launches_of(spec, 100, 64, torch.float32)[1]]:
            chosen = {launched.constants.get(name) for name in ("PRECISION", "EXACT")} - {None}
            assert chosen <= {"tf32x3", "ieee"}


class Operations(TorchDispatchMode):
    """Operations of torch that would launch something: neither views nor allocations, and not on empty tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        numbers = sum(t.numel() for t in tree_leaves(result) if isinstance(t, torch.Tensor))
        if numbers and not function.is_view and not name.startswith(("empty", "new_empty", "detach")):
            self.names.append(name)
        return result


@pytest.mark.parametrize("spec", ["exponential", "exponential+cache", "local:5"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_launches_do_not_depend_on_the_length(spec: str, dtype: torch.dtype) -> None:
    """Two forward, at most eight back, torch's own operations counted; and a new length compiles nothing new."""
    names = set()
    for n in (100, 1000, 5003):
        with Operations() as operations:
            forward, backward = launches_of(spec, n, 64, dtype)
        assert len(forward) <= 2
        assert len(backward) <= 5
        assert len(forward) + len(backward) + len(operations.names) <= 2 + 8 + 1, operations.names  # and a test's own
        names.add(tuple((launched.kernel, *launched.constants.items()) for launched in (*forward, *backward)))
        for launched in (*forward, *backward):
            kernel = find_kernel(launched.kernel)
            numbers = {
                n for n, a in zip(parameters(launched.kernel), launched.arguments, strict=False) if type(a) is int
            }
            assert numbers <= {p.name for p in kernel.params if p.do_not_specialize}
    assert len(names) == 1


@pytest.mark.parametrize("spec", ["exponential", "exponential+cache", "rows"])
def test_a_decoded_token_is_one_launch_and_reads_nothing_back(spec: str) -> None:
    """On tensors without memory, from which nothing could be read: a value asked for would raise an error."""
    with Operations() as operations:
        launches = decode_launches(spec, 64, torch.bfloat16, tokens=4)
    assert [launched.kernel for launched in launches] == ["decode_step.step"] * 4
    assert not {"_local_scalar_dense", "item", "is_nonzero"} & set(operations.names)
    counters = {launched.named["counter"].data_ptr() for launched in launches}
    assert len(counters) == 1  # uploaded once; the kernel counts on


def test_no_tensor_grows_with_the_square_of_the_length() -> None:
    """Scratch is what its formula says."""
    from resolvent.ops.triton.plan import TILE

    for spec in ("exponential", "quadratic+cache"):
        forward, _ = launches_of(spec, 5000, 64, torch.float32)
        a = forward[0].named
        blocks, block = a["block_count"], a["BLOCK"]
        assert a["inverses"].numel() == 2 * blocks * block**2
        each = a["width"] * blocks if a["STRIDED"] else a["weight_rows"]
        assert a["weights"].numel() == 2 * each * block
        assert a["STRIDED"] or a["weight_rows"] % TILE == 0
        largest = max(t.numel() for t in forward[0].arguments if isinstance(t, torch.Tensor))
        assert largest < 5000 * 5000
