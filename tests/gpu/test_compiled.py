"""Kernels compiled for GPUs that are not there: they compile, fit, do not race, and use what the hardware has.

`make gpu` compiles those of `IN_CI`, `make gpu-test` all of resources.json. None of this shows that a GPU computes the
right numbers, or how fast: `resolvent bench gpu` does.
"""

import importlib.util
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

from resolvent.ops.triton import backward_pass, chunk_pass, forward_pass, interpreting
from tests.gpu.compiling import (
    DIMS,
    TARGETS,
    Compiled,
    Variant,
    compile_variant,
    variants,
)
from tests.gpu.resources import read

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(interpreting(), reason="compiles, which the interpreter does not"),
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION"),
]
TABLE = read()
SWEEPS = (
    "sweep D=64 bf16 strided rounded", "sweep D=64 bf16 rounded", "sweep_back D=64 bf16 strided",
    "sweep_back D=64 bf16", "sweep_back D=64 bf16 chunked", "carry D=64 bf16 rounded", "carry_back D=64 bf16",
)  # fmt: skip
TILED = (
    "coefficients D=64 bf16 strided direct recurrent scored output",
    "coefficients D=64 bf16 direct recurrent scored output", "coefficients D=64 fp32 direct recurrent scored output",
    "transfers D=64 bf16 direct scored output",
    "slopes D=64 bf16 strided scored a reads", "slopes D=64 bf16 scored a reads",
)  # fmt: skip
OTHER = (
    "collect D=64 bf16 direct scored", "collect D=64 bf16 strided direct scored",
    "step D=64 bf16 direct recurrent scored",
)  # fmt: skip
READ_BACK = [*SWEEPS, TILED[3]]  # kernels that read what they have stored
IN_CI = [(target, name) for name in READ_BACK for target in ("sm_80", "sm_90")]
IN_CI += [("sm_90", name) for name in (*TILED[:3], *TILED[4:], *OTHER)]
ELSEWHERE = [
    ("gfx942", TILED[1]), ("gfx942", SWEEPS[1]), ("gfx942", SWEEPS[5]),
    *(("sm_80", TILED[1].replace("D=64", f"D={d}")) for d in (24, 80, 128)),
    # Those that spilled once.
    ("sm_80", "coefficients D=80 fp32 strided direct recurrent scored output"),
    ("sm_80", "transfers D=80 fp32 direct scored output"), ("sm_80", "slopes D=128 fp32 scored a reads"),
]  # fmt: skip
LARGEST_SHARED = 99 * 1024
REGISTERS = {"sm_80": 65_536, "sm_90": 65_536, "gfx942": 4 * 64 * 512}  # of a multiprocessor
WARP = {"sm_80": 32, "sm_90": 32, "gfx942": 64}
SHARED = {"sm_80": 164 * 1024, "sm_90": 228 * 1024, "gfx942": 64 * 1024}
RESERVED = {"sm_80": 1024, "sm_90": 1024, "gfx942": 0}  # of each program's shared memory
ALONE = [("gfx942", "carry_back")]  # launched only where programs are fewer than multiprocessors


@lru_cache(maxsize=1)
def every_variant() -> dict[str, Variant]:
    return {variant.name: variant for variant in variants()}


@lru_cache(maxsize=64)
def compiled(target: str, name: str) -> Compiled:
    return compile_variant(every_variant()[name], target)


def test_the_table_has_every_variant() -> None:
    """For every target, and none that is gone; `make gpu-test` compiles them all anew."""
    assert TABLE.keys() == every_variant().keys()
    assert all(found.keys() == TARGETS.keys() for found in TABLE.values())


def check_limits(target: str, name: str, registers: int, stack: int, shared: int) -> None:
    """Nothing spilled, and two programs on every multiprocessor."""
    warps = dict(every_variant()[name].constants)["num_warps"]
    programs = 1 if (target, name.partition(" ")[0]) in ALONE else 2
    assert shared <= LARGEST_SHARED, (target, name)
    assert stack == 0, (target, name)
    assert programs * warps * WARP[target] * registers <= REGISTERS[target], (target, name)
    assert programs * (shared + RESERVED[target]) <= SHARED[target], (target, name)


def test_the_table_is_within_limits() -> None:
    for name, found in TABLE.items():
        for target, numbers in found.items():
            check_limits(target, name, *numbers)


@pytest.mark.parametrize(("target", "name"), [*IN_CI, *ELSEWHERE])
def test_resources(target: str, name: str) -> None:
    assert compiled(target, name).resources == TABLE[name][target]


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("d", DIMS)
def test_every_variant_compiles(target: str, d: int) -> None:
    """Within limits, and to what the table has."""
    for name in every_variant():
        if f" D={d} " in name:
            found = compiled(target, name).resources
            check_limits(target, name, *found)
            assert TABLE[name][target] == found


def race(ttgir: str) -> str | None:
    """What is wrong with a sweep in the compiler's code: rows fetched before a loop, or a store without a barrier.

    A step stores rows that later steps read. If the loop is pipelined, copies stand before it; if nothing orders a step
    after the stores of the one before, no barrier follows the last store of its body.
    """
    lines = ttgir.splitlines()
    storing = [loop for loop in _loops(lines) if _has(lines[slice(*loop)], "tt.store")]
    if not storing:
        return "no loop stores anything"
    innermost = [one for one in storing if not any(_within(other, one) for other in storing)]
    inside = {number for first, last in innermost for number in range(first, last)}
    copies = ("async_copy", "async_tma")
    if any(copy in line for copy in copies for number, line in enumerate(lines) if number not in inside):
        return "rows are copied before the loop begins"
    for one in storing:
        if not any(_within(one, other) for other in storing):  # the outermost: loops within may store for themselves
            body = lines[slice(*one)]
            if not _has(body[_last_store(body) :], "barrier"):
                return "no barrier follows the last store of a step"
    return None


def unordered(ttgir: str) -> str | None:
    """Whether a loop may read what the loop before it has stored, as weights follow scores, with no barrier between."""
    lines = ttgir.splitlines()
    loops = list(_loops(lines))
    for first, last in loops:
        depth = _depth(lines[first])
        following = (begin for begin, _ in loops if begin > last and _depth(lines[begin]) == depth)
        begin, end = next(((begin, dict(loops)[begin]) for begin in following), (last, last))
        same_body = all(_depth(line) >= depth for line in lines[last:begin] if line.strip())
        stores = _has(lines[first:last], "tt.store")
        if same_body and stores and _has(lines[begin:end], "tt.load"):
            after = first + _last_store(lines[first:last])
            if not _has(lines[after:begin], "barrier"):
                return f"no barrier between the loops in lines {first + 1} and {begin + 1}"
    return None


def _loops(lines: list[str]) -> Iterator[tuple[int, int]]:
    """First and last line of each loop."""
    for first, line in enumerate(lines):
        if "scf.for" in line or "scf.while" in line:
            closing = (n for n in range(first + 1, len(lines)) if lines[n].strip().startswith("}"))
            yield first, next(n for n in closing if _depth(lines[n]) == _depth(line))


def _within(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return other[0] < one[0] and one[1] < other[1]


def _has(lines: list[str], word: str) -> bool:
    return any(word in line for line in lines)


def _last_store(lines: list[str]) -> int:
    return max(number for number, line in enumerate(lines) if "tt.store" in line)


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


@pytest.mark.parametrize(
    ("target", "name"),
    [*((target, name) for name in READ_BACK for target in ("sm_80", "sm_90")), *ELSEWHERE[1:3]],
)
def test_sweeps_do_not_race(target: str, name: str) -> None:
    assert race(compiled(target, name).text("ttgir")) is None


@pytest.mark.parametrize(("target", "name"), [*IN_CI, *ELSEWHERE])
def test_what_a_loop_stores_is_read_after_a_barrier(target: str, name: str) -> None:
    assert unordered(compiled(target, name).text("ttgir")) is None


MUTANTS = [
    (forward_pass, "sweep", SWEEPS[1]), (backward_pass, "sweep_back", SWEEPS[3]), (chunk_pass, "carry", SWEEPS[5]),
    (chunk_pass, "transfers", TILED[3]),
]  # fmt: skip


@pytest.mark.parametrize(("module", "kernel", "name"), MUTANTS)
def test_a_sweep_without_its_barrier_would(tmp_path: Path, module: Any, kernel: str, name: str) -> None:
    """The check can fail: on the same kernel, its barrier left out."""
    made = compile_variant(every_variant()[name], "sm_80", _without_barriers(tmp_path, module, kernel))
    assert race(made.text("ttgir")) == "no barrier follows the last store of a step"


def test_weights_without_their_barrier_would(tmp_path: Path) -> None:
    changed = _without_barriers(tmp_path, forward_pass, "coefficients")
    assert "no barrier between" in unordered(compile_variant(every_variant()[TILED[1]], "sm_80", changed).text("ttgir"))


def _without_barriers(folder: Path, module: Any, kernel: str) -> Any:
    source = Path(module.__file__).read_text(encoding="utf-8")
    assert "tl.debug_barrier()" in source
    return _from_source(folder, re.sub(r" +tl\.debug_barrier\(\)\n", "", source), kernel)


def _from_source(folder: Path, source: str, kernel: str) -> Any:
    """Kernels must be in a file."""
    file = folder / "mutant.py"
    file.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("mutant", file)
    changed = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(changed)
    return getattr(changed, kernel)


CHAIN = """
import triton
import triton.language as tl


@triton.jit
def chain(y, weights, steps, BLOCK: tl.constexpr, COMPUTE: tl.constexpr):
    r = tl.arange(0, BLOCK)
    square = r[:, None] * BLOCK + r[None, :]
    w = tl.load(weights + square)
    for step in range(steps):
        before = tl.load(y + step * BLOCK * BLOCK + square)
        tl.store(y + (step + 1) * BLOCK * BLOCK + square, tl.dot(w, before).to(COMPUTE))
        tl.debug_barrier()
"""


@pytest.mark.parametrize(
    ("stages", "barrier", "found"),
    [
        (1, True, None),
        (3, False, "rows are copied before the loop begins"),
        (1, False, "no barrier follows the last store of a step"),
    ],
)
def test_a_pipelined_sweep_would(tmp_path: Path, stages: int, barrier: bool, found: str | None) -> None:
    """So would rows that are fetched ahead: three stages, and no barrier to stop them."""
    source = CHAIN if barrier else CHAIN.replace("        tl.debug_barrier()\n", "")
    signature = (("y", "*fp16"), ("weights", "*fp16"), ("steps", "i32"))
    constants = (("BLOCK", 32), ("COMPUTE", "float16"), ("num_stages", stages), ("num_warps", 4))
    made = compile_variant(Variant("chain", signature, constants), "sm_80", _from_source(tmp_path, source, "chain"))
    assert race(made.text("ttgir")) == found


@pytest.mark.parametrize(("target", "name"), IN_CI)
def test_instructions(target: str, name: str) -> None:
    """Rows by 128 bits, tensor cores where there are tiles, nothing past the caches in sweeps, and no atomics."""
    ptx = compiled(target, name).text("ptx")
    assert not re.search(r"\b(atom|red)\.", ptx)
    assert re.search(r"ld\.global\S*\.v4", ptx)
    if name in (*SWEEPS, *TILED):
        assert re.search(r"\b(mma|wgmma)\.", ptx)
    if name in READ_BACK:
        assert "ld.global.nc" not in ptx


@pytest.mark.parametrize(("target", "name"), IN_CI)
def test_precision(target: str, name: str) -> None:
    """tf32 alone multiplies only what it holds exactly: queries and keys that are half-precision numbers, and masks."""
    products = [line for line in compiled(target, name).text("ttir").splitlines() if "tt.dot" in line]
    wide = [line for line in products if "xf32>" in line.partition("->")[0]]  # by its operands
    plain = [line for line in wide if "tf32x3" not in line]
    scores = 4 if "bf16" in name and name.startswith(("coefficients", "transfers", "slopes")) else 0  # near, far; A, B
    assert len(plain) <= scores
    assert all("inputPrecision = tf32" in line for line in plain)
