"""What calls launch on a GPU, recorded on tensors without memory: how many, which variants, and what they hold."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

pytest.importorskip("triton")

import resolvent as rv
from resolvent.ops.inputs import Inputs
from resolvent.ops.rows import rows_of
from resolvent.ops.triton import fused, interpreting
from resolvent.ops.triton.launch import Launched, find_kernel, parameters, recording
from resolvent.ops.triton.plan import TILE
from tests.gpu.compiling import STAGES, decode_launches, launches_of, rows

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(interpreting(), reason="asks compiled kernels for their arguments"),
]


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


def assert_compiled_for_no_number(launched: Launched) -> None:
    """Triton would compile for 1 and for multiples of 16 apart."""
    arguments = zip(parameters(launched.kernel), launched.arguments, strict=False)
    numbers = {name for name, argument in arguments if type(argument) is int}
    assert numbers <= {p.name for p in find_kernel(launched.kernel).params if p.do_not_specialize}


@pytest.mark.parametrize("heads", [2, 300])
@pytest.mark.parametrize("spec", ["exponential", "exponential+cache", "local:5"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_launches_do_not_depend_on_the_length(spec: str, dtype: torch.dtype, heads: int) -> None:
    """Two forward, at most eight back, torch's own operations among them; and a new length compiles nothing new."""
    names = set()
    for n in (100, 1000, 5003):
        launches_of(spec, n, 64, dtype, heads)  # a new length uploads its tables, once
        with Operations() as operations:
            forward, backward = launches_of(spec, n, 64, dtype, heads)
        assert len(forward) <= 2
        assert len(backward) <= 6
        assert len(forward) + len(backward) + len(operations.names) <= 2 + 8, operations.names
        names.add(tuple((launched.kernel, *launched.constants.items()) for launched in (*forward, *backward)))
        for launched in (*forward, *backward):
            assert_compiled_for_no_number(launched)
    assert len(names) == 1


def test_few_heads_wait_for_chunks_and_many_for_blocks() -> None:
    few, many = (launches_of("exponential+cache", 4096, 64, torch.bfloat16, heads)[0] for heads in (2, 300))
    assert [one.kernel for one in few] == ["chunk_pass.transfers", "chunk_pass.carry"]
    assert [one.kernel for one in many] == ["forward_pass.coefficients", "forward_pass.sweep"]
    assert few[1].named["chunk_count"] == 4096 // few[1].named["CHUNK"]
    assert few[1].named["chunk_count"] < many[1].named["block_count"]


@pytest.mark.parametrize("spec", ["exponential", "exponential+cache", next(rows())])
def test_a_decoded_token_is_one_launch_and_reads_nothing_back(spec: str | rv.Pattern) -> None:
    """On tensors without memory, from which nothing could be read: a value asked for would raise an error."""
    with Operations() as operations:
        launches = decode_launches(spec, 64, torch.bfloat16, tokens=4)
    assert [launched.kernel for launched in launches] == ["decode_step.step"] * 4
    assert not {"_local_scalar_dense", "item", "is_nonzero"} & set(operations.names)
    with Operations() as uploads:  # of the cache, its counters and, the first time, its tables
        decode_launches(spec, 64, torch.bfloat16, tokens=1)
    assert len(operations.names) >= len(uploads.names) > 0
    with Operations() as more:
        decode_launches(spec, 64, torch.bfloat16, tokens=4)
    gates = [] if rv.pattern(spec).recurrent else ["full"] * 3  # one number, in place of a gate
    assert sorted(more.names) == sorted([*uploads.names, *gates])  # later tokens launch nothing else of torch's own
    for launched in launches:
        assert_compiled_for_no_number(launched)
    counters = {launched.named["counter"].data_ptr() for launched in launches}
    assert len(counters) == 1  # uploaded once; the kernel counts on


@pytest.mark.parametrize("spec", ["exponential", "quadratic", "quadratic+cache"])
def test_inputs_outputs_and_four_numbers_per_row_are_kept_for_the_way_back(spec: str) -> None:
    """Nothing that grows with the reads of a row."""
    kept = []
    n, d, heads = 5003, 64, 2
    x = torch.empty((1, heads, n, d), dtype=torch.bfloat16, device="meta", requires_grad=True)
    inputs = Inputs(*(x.clone() for _ in range(5)), x[..., 0])
    (stage,) = rv.pattern(spec).stages
    with recording(), torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        fused.mix(inputs, rows_of(stage, (0, n)), 0.5)
    five_inputs_and_outputs_twice = 7 * n * d  # rounded, and as they are fed back
    gates_and_statistics = 5 * n
    assert sum(kept) == heads * (five_inputs_and_outputs_twice + gates_and_statistics)


def test_no_tensor_grows_with_the_square_of_the_length() -> None:
    """Scratch is what its formula says."""
    for spec in ("exponential", "exponential+cache", "quadratic+cache"):
        forward, _ = launches_of(spec, 5000, 64, torch.float32)
        a = forward[0].named
        blocks, block = a["block_count"], a["BLOCK"]
        assert a["inverses"].numel() == 2 * blocks * block**2
        assert "transfer" not in a or a["transfer"].numel() == 2 * 5000 * a["live_width"]
        strided = a.get("STRIDED", False)
        assert a["weights"].numel() == 2 * (a["width"] * blocks if strided else a["weight_rows"]) * block
        assert strided or a["weight_rows"] % TILE == 0
        largest = max(t.numel() for t in forward[0].arguments if isinstance(t, torch.Tensor))
        assert largest < 5000 * 5000


def test_every_combination_of_flags_is_compiled() -> None:
    """Reads by strides or lists; A alone, both, B alone; one source or several: of mixing and of single tokens."""
    flags = [(False, False), (True, True), (True, False)]  # B, and whether it has several sources
    kinds = {("all", *one) for one in flags} | {("diagonal", *one) for one in flags[1:]}
    found = {strided: set() for strided in (True, False)}
    for spec in STAGES:
        (stage,) = rv.pattern(spec).stages
        strided = rows_of(stage, (0, 100)).shifted and not stage.contiguous_columns
        found[strided].add((stage.direct, stage.recurrent, stage.recurrent and stage.reads_several))
    assert found == {True: kinds, False: kinds}
    assert {(s.direct, s.recurrent, s.recurrent and s.reads_several) for s in rows()} == kinds


def test_float32_never_goes_through_plain_tf32() -> None:
    for spec in ("exponential", "exponential+cache"):
        for launched in [*launches_of(spec, 100, 64, torch.float32)[0], *launches_of(spec, 100, 64, torch.float32)[1]]:
            chosen = {launched.constants.get(name) for name in ("PRECISION", "EXACT")} - {None}
            assert chosen <= {"tf32x3", "ieee"}
