"""Every backend is the reference: values and every gradient, over patterns, lengths, dtypes and layouts."""

import math
import multiprocessing
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

import resolvent as rv
from resolvent.ops import reference
from resolvent.ops.interface import BACKENDS

FAST = [name for name in BACKENDS if name != "reference"]
PATTERNS = [
    *rv.PAPER_STRUCTURES,
    "stride:k**3+1+cache",
    "stride:3*k+2+cache",
    "offsets:2,5",
    "offsets:3+diagonal",
    "local:1",
    "exponential+attention",
    "quadratic+diagonal+cache",
]
LENGTHS = [1, 2, 3, 63, 64, 65, 257]
# At 257 tokens the reference takes minutes where every token reads every other.
CASES = [(spec, n) for spec in PATTERNS for n in LENGTHS if n < 100 or rv.pattern(spec).reads(n) < 100]

# The largest difference to the reference in float64, relative to the largest entry; the same everywhere.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}

Inputs = dict[str, Tensor]


def mixer_inputs(n: int, dtype: torch.dtype, batch: int = 2, heads: int = 3, d: int = 5, dk: int = 7) -> Inputs:
    torch.manual_seed(n)
    inputs = {name: torch.randn(batch, heads, n, d if name == "x" else dk) for name in ("x", "qa", "ka", "qb", "kb")}
    inputs["gate"] = torch.rand(batch, heads, n)
    return {name: t.to(dtype) for name, t in inputs.items()}


def gradients(run: object, inputs: Inputs) -> tuple[Tensor, dict[str, Tensor]]:
    """The output, and the gradient of a fixed random functional of it for every input."""
    leaves = {name: t.detach().clone().requires_grad_() for name, t in inputs.items()}
    y = run(**leaves)
    weights = torch.randn(y.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).to(y.dtype)
    found = torch.autograd.grad(y, list(leaves.values()), weights, materialize_grads=True, allow_unused=True)
    return y.detach(), dict(zip(leaves, found, strict=True))


def assert_close(mine: Tensor, exact: Tensor, dtype: torch.dtype, what: str) -> None:
    scale = max(exact.abs().max().item(), 1.0)
    assert (mine.double() - exact).abs().max().item() <= TOLERANCE[dtype] * scale, what


def check_mix(backend: str, spec: str, inputs: Inputs, dtype: torch.dtype) -> None:
    y, found = gradients(lambda **t: rv.mix(**t, p=spec, backend=backend), inputs)
    doubles = {name: t.double() for name, t in inputs.items()}
    exact, expected = gradients(lambda **t: rv.mix(**t, p=spec, backend="reference"), doubles)
    assert y.dtype == dtype
    assert_close(y, exact, dtype, "y")
    for name, gradient in found.items():
        assert_close(gradient, expected[name], dtype, f"d{name}")


@pytest.mark.parametrize(("spec", "n"), CASES)
@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_mix(backend: str, spec: str, n: int, dtype: torch.dtype) -> None:
    check_mix(backend, spec, mixer_inputs(n, dtype), dtype)


@pytest.mark.parametrize(
    "spec", ["first-order", "exponential", "quadratic+cache", "stride:k**3+1+cache", "offsets:2,300"]
)
@pytest.mark.parametrize("backend", FAST)
def test_mix_over_several_blocks(backend: str, spec: str) -> None:
    check_mix(backend, spec, mixer_inputs(600, torch.float64, 1, 2, 3, 2), torch.float64)


@pytest.mark.parametrize("spec", PATTERNS)
@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mix_in_half_precision(backend: str, spec: str, dtype: torch.dtype) -> None:
    check_mix(backend, spec, mixer_inputs(65, dtype), dtype)


@pytest.mark.parametrize("d", [1, 16, 64, 80])
@pytest.mark.parametrize("backend", FAST)
def test_mix_in_any_dimension(backend: str, d: int) -> None:
    for spec in ("exponential", "quadratic+cache"):
        check_mix(backend, spec, mixer_inputs(70, torch.float64, d=d, dk=81 - d), torch.float64)


@pytest.mark.parametrize(("spec", "n"), CASES)
@pytest.mark.parametrize("backend", FAST)
def test_solve(backend: str, spec: str, n: int) -> None:
    """Signed coefficients; what lies beyond a row's sources is NaN and must not matter."""
    p = rv.pattern(spec)
    table = torch.from_numpy(p.table(n))
    torch.manual_seed(n)
    inputs = {"x": torch.randn(2, 2, n, 5).double(), "alpha": torch.randn(2, 2, n, 1 + table.shape[1]).double()}
    inputs["alpha"][..., 1:] /= max(table.shape[1], 1)
    inputs["alpha"][..., 1:][..., table < 0] = math.nan
    if p.direct == "diagonal":
        inputs["alpha"] = inputs["alpha"][..., :1]
    if p.recurrent:
        inputs["beta"] = torch.randn(2, 2, *table.shape).double() / max(table.shape[1], 1)
        inputs["beta"][..., table < 0] = math.nan
    else:
        inputs["beta"] = torch.empty(0)

    def run(which: str) -> object:
        return lambda x, alpha, beta: rv.solve(x, alpha, beta if p.recurrent else None, p, backend=which)

    y, found = gradients(run(backend), inputs)
    exact, expected = gradients(run("reference"), inputs)
    assert_close(y, exact, torch.float64, "y")
    for name, gradient in found.items():
        if gradient.numel():
            assert_close(gradient, expected[name], torch.float64, name)


@pytest.mark.parametrize("spec", PATTERNS)
@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_extreme_scores_and_gates(backend: str, spec: str, dtype: torch.dtype) -> None:
    """Scores of ±10⁴, all scores equal, gates at 0 and 1: finite, and rows of T still sum to one."""
    n = 70
    for size in (0.0, 1e4):
        inputs = mixer_inputs(n, dtype)
        for name in ("qa", "qb"):
            inputs[name] = inputs[name] * size
        inputs["x"] = torch.ones_like(inputs["x"])
        inputs["gate"] = (torch.arange(n) % 3 / 2).clamp(max=1).to(dtype).expand(2, 3, n).contiguous()
        y, found = gradients(lambda **t: rv.mix(**t, p=spec, scale=1.0, backend=backend), inputs)
        torch.testing.assert_close(y, torch.ones_like(y), rtol=1e-5, atol=1e-5)
        assert all(gradient.isfinite().all() for gradient in found.values())


@pytest.mark.parametrize("spec", ["stride:3*k+2+cache", "offsets:2,5", "quadratic+cache", "exponential"])
@pytest.mark.parametrize("backend", FAST)
def test_nothing_outside_the_pattern_is_read(backend: str, spec: str) -> None:
    """A row whose inputs are NaN spoils only those that can be reached from it."""
    n = 90
    reachable = rv.hop_matrix(rv.pattern(spec), n)
    for bad in (0, 40, 64):
        inputs = mixer_inputs(n, torch.float64, 1, 1)
        for tensor in inputs.values():
            tensor[:, :, bad] = math.nan
        y = rv.mix(**inputs, p=spec, backend=backend)
        spoiled = y[0, 0].isnan().any(-1)
        assert spoiled.tolist() == [bool(i >= bad and reachable[i, bad] >= 0) for i in range(n)]


@pytest.mark.parametrize("spoiled", ["x", "qa", "ka", "qb", "kb", "gate"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("backend", FAST)
def test_nan_is_never_swallowed(backend: str, dtype: torch.dtype, spoiled: str) -> None:
    """A NaN in any input of token 40 shows in the outputs that use it, and in none before."""
    inputs = mixer_inputs(90, dtype, 1, 1)
    inputs[spoiled][:, :, 40] = math.nan
    bad = rv.mix(**inputs, p="exponential", backend=backend)[0, 0].isnan().any(-1)
    assert not bad[:40].any()
    assert bad[41 if spoiled == "kb" else 40]  # no token feeds back its own output, so kb_40 serves from 41 on


@pytest.mark.parametrize("backend", FAST)
def test_layouts(backend: str) -> None:
    """Heads beside positions, expanded batches, slices: any strides give the same."""
    inputs = mixer_inputs(40, torch.float64)
    expected = rv.mix(**inputs, p="exponential", backend=backend)
    swapped = {k: t.transpose(1, 2).contiguous().transpose(1, 2) for k, t in inputs.items()}
    assert not swapped["x"].is_contiguous()
    assert torch.equal(rv.mix(**swapped, p="exponential", backend=backend), expected)
    sliced = {k: torch.cat([t, t], dim=-1)[..., : t.shape[-1]] for k, t in inputs.items()}
    assert torch.equal(rv.mix(**sliced, p="exponential", backend=backend), expected)
    one = {k: t[:1].expand(4, *t.shape[1:]) for k, t in inputs.items()}
    assert torch.equal(rv.mix(**one, p="exponential", backend=backend)[3], expected[0])


@pytest.mark.parametrize("backend", FAST)
def test_deterministic_whatever_the_threads(backend: str) -> None:
    inputs = mixer_inputs(300, torch.float32)
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 3, 7):
            torch.set_num_threads(count)
            results.append(gradients(lambda **t: rv.mix(**t, p="quadratic+cache", backend=backend), inputs))
    finally:
        torch.set_num_threads(threads)
    for y, found in results[1:]:
        assert torch.equal(y, results[0][0])
        assert all(torch.equal(found[name], results[0][1][name]) for name in found)


@pytest.mark.parametrize("backend", FAST)
def test_several_python_threads(backend: str) -> None:
    inputs = mixer_inputs(200, torch.float32)
    expected = rv.mix(**inputs, p="exponential+cache", backend=backend)
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(rv.mix, **inputs, p="exponential+cache", backend=backend) for _ in range(20)]
        assert all(torch.equal(job.result(), expected) for job in jobs)


def _in_child(backend: str, queue: object) -> None:
    queue.put(rv.mix(**mixer_inputs(100, torch.float32), p="exponential", backend=backend).sum().item())


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forked_processes(backend: str) -> None:
    """As a DataLoader's workers are: the parent has used its threads, and the child must make its own."""
    expected = rv.mix(**mixer_inputs(100, torch.float32), p="exponential", backend=backend).sum().item()
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_child, args=(backend, queue))
    child.start()
    assert queue.get(timeout=60) == pytest.approx(expected, rel=1e-6)
    child.join(timeout=60)
    assert child.exitcode == 0


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_second_derivatives_are_refused_not_wrong() -> None:
    inputs = {k: t.requires_grad_() for k, t in mixer_inputs(5, torch.float64, 1, 1).items()}
    y = rv.mix(**inputs, p="exponential", backend="cpu")
    [gradient] = torch.autograd.grad(y.sum(), inputs["qa"], create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivatives: use backend='reference'"):
        gradient.sum().backward()
    with pytest.raises(RuntimeError, match=r"jvp|forward mode|forward AD"):
        torch.func.jvp(lambda x: rv.mix(x, **{k: v.detach() for k, v in inputs.items() if k != "x"}, p="exponential"),
                       (inputs["x"].detach(),), (inputs["x"].detach(),))  # fmt: skip


def test_functional_gradients() -> None:
    inputs = mixer_inputs(20, torch.float64, 1, 1)
    rest = {k: v for k, v in inputs.items() if k != "x"}
    found = torch.func.grad(lambda x: rv.mix(x, **rest, p="exponential", backend="cpu").sum())(inputs["x"])
    expected = torch.func.grad(lambda x: reference.mix(x, *rest.values(), rv.exponential(), 7**-0.5).sum())(inputs["x"])
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_the_choice_explains_itself() -> None:
    choice = rv.choose_backend(torch.zeros(1))
    assert (choice.backend, "CPU" in choice.why) == ("cpu", True)
    choice = rv.choose_backend(torch.zeros(1, device="meta"))
    assert choice.backend == "reference"
    assert "no fast backend for meta" in choice.why
    meta = {k: t.to("meta") for k, t in mixer_inputs(4, torch.float32).items()}
    with pytest.raises(ValueError, match="'cpu' needs tensors on a CPU, got meta"):
        rv.mix(**meta, p="dense", backend="cpu")


def test_empty_batches() -> None:
    inputs = {k: t[:0] for k, t in mixer_inputs(6, torch.float32).items()}
    assert rv.mix(**inputs, p="exponential").shape == (0, 3, 6, 5)
