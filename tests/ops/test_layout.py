"""How rows are divided for the kernels: by the machine's registers, and by what a pattern reads."""

import pytest
import torch

from resolvent.kernels import UNIT
from resolvent.ops.cpu import layout
from resolvent.ops.cpu.layout import pair_span, span
from resolvent.ops.cpu.mix import sweep_sizes
from tests.operator_cases import mix, mixer_inputs

REGISTERS = [16, 32]


@pytest.mark.parametrize("registers", REGISTERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_sums_of_two_rows_fit_into_registers(dtype: torch.dtype, registers: int) -> None:
    """A span divides a row; twice its sums, and what is added to them, are at most all registers."""
    x = torch.empty(0, dtype=dtype)
    item, register = (8 if dtype == torch.float64 else 4), (64 if registers == 32 else 32)
    for d in (16, 32, 48, 64, 96, 128, 256):
        for units, rows in ((len(span(d, x)), 1), (len(pair_span(d, x, registers)), 2)):
            assert d % (units * UNIT) == 0
            assert units * UNIT * item <= 256
            assert rows * max(units * UNIT * item // register, 1) <= registers // 2


def test_spans_do_not_change_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a bit: channels do not mix."""
    inputs = {name: t.requires_grad_() for name, t in mixer_inputs(70, torch.float32, 1, 2, 64, 64).items()}
    results = []
    for registers in REGISTERS:
        monkeypatch.setattr(layout, "vector_registers", lambda registers=registers: registers)
        for spec in ("exponential", "quadratic+cache"):
            y = mix(inputs, spec, backend="cpu")
            results.append(torch.autograd.grad(y, list(inputs.values()), torch.ones_like(y)))
    for some, others in zip(results[:2], results[2:], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


@pytest.mark.parametrize("rounded", [False, True])
def test_blocks_are_whole_units_and_bounded(rounded: bool) -> None:
    for widest in (1, 8, 17, 64, 128, 999, 10**6):
        for longest in (1, 15, 300, 8192, 16384, 10**6):
            block, group = sweep_sizes(widest, longest, rounded=rounded)
            assert block % UNIT == group % UNIT == 0
            assert UNIT <= block <= max(-(-longest // UNIT) * UNIT, UNIT)
            assert block == UNIT or block * (widest + 1) <= 1 << 21


@pytest.mark.parametrize(("spec", "edges"), [("first-order", 2), ("local:5", 3), ("exponential", 6)])
def test_what_stands_for_unused_inputs_adds_up_no_zeros(spec: str, edges: int) -> None:
    """Gradients go to what matters, once; the others are still zero and not missing."""
    inputs = {name: t.requires_grad_() for name, t in mixer_inputs(9, torch.float32, 1, 1, 16, 16).items()}
    node = mix(inputs, spec, backend="cpu").grad_fn
    while node is not None and node.name() != "_MixBackward":
        node = node.next_functions[0][0]
    assert node is not None
    assert sum(following is not None for following, _ in node.next_functions) == edges
    y = mix(inputs, "exponential", backend="cpu")[:, :, :2]  # where a softmax of B has one source
    assert torch.autograd.grad(y.sum(), inputs["qb"])[0].abs().sum() == 0
