"""Every backend is the reference: values and every gradient, over patterns, lengths, dtypes and layouts."""

import math
import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import resolvent as rv
from resolvent.ops import dense, reference
from resolvent.ops.interface import BACKENDS

FAST = [name for name in BACKENDS if name != "reference"]
SPARSE = [name for name in FAST if name != "dense"]
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


def can(backend: str, spec: str) -> bool:
    return backend != "dense" or dense.handles(rv.pattern(spec))


PAIRS = [(backend, spec) for backend in FAST for spec in PATTERNS if can(backend, spec)]
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


def check_mix(spec: str, inputs: Inputs, *dtypes: torch.dtype) -> None:
    """Every backend that can, in every dtype (which must hold the inputs exactly), against the reference in float64."""
    doubles = {name: t.double() for name, t in inputs.items()}
    exact, expected = gradients(lambda **t: rv.mix(**t, p=spec, backend="reference"), doubles)
    for backend in (backend for backend in FAST if can(backend, spec)):
        for dtype in dtypes:
            given = {name: t.to(dtype) for name, t in inputs.items()}
            y, found = gradients(lambda b=backend, **t: rv.mix(**t, p=spec, backend=b), given)
            assert y.dtype == dtype
            assert_close(y, exact, dtype, f"{backend}: y")
            for name, gradient in found.items():
                assert_close(gradient, expected[name], dtype, f"{backend}: d{name}")


@pytest.mark.parametrize(("spec", "n"), CASES)
def test_mix(spec: str, n: int) -> None:
    check_mix(spec, mixer_inputs(n, torch.float32), torch.float64, torch.float32)


@pytest.mark.parametrize(
    "spec", ["first-order", "exponential", "quadratic+cache", "stride:k**3+1+cache", "offsets:2,300"]
)
def test_mix_over_several_blocks(spec: str) -> None:
    check_mix(spec, mixer_inputs(600, torch.float64, 1, 2, 3, 2), torch.float64)


@pytest.mark.parametrize("spec", PATTERNS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mix_in_half_precision(spec: str, dtype: torch.dtype) -> None:
    check_mix(spec, mixer_inputs(40, dtype), dtype)


@pytest.mark.parametrize("d", [1, 16, 64, 80, 128])
def test_mix_in_any_dimension(d: int) -> None:
    for spec in ("exponential", "quadratic+cache"):
        check_mix(spec, mixer_inputs(70, torch.float64, 1, 2, d=d, dk=max(81 - d, 32)), torch.float64)


@pytest.mark.parametrize(("spec", "n"), [(spec, n) for spec, n in CASES if n < 200])  # the reference is slow beyond
def test_solve(spec: str, n: int) -> None:
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

    exact, expected = gradients(run("reference"), inputs)
    for backend in (backend for backend in FAST if can(backend, spec)):
        y, found = gradients(run(backend), inputs)
        assert_close(y, exact, torch.float64, f"{backend}: y")
        for name, gradient in found.items():
            if gradient.numel():
                assert_close(gradient, expected[name], torch.float64, f"{backend}: {name}")


@pytest.mark.parametrize(("backend", "spec"), PAIRS)
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
@pytest.mark.parametrize("backend", SPARSE)
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
@pytest.mark.parametrize("backend", SPARSE)
def test_nan_is_never_swallowed(backend: str, dtype: torch.dtype, spoiled: str) -> None:
    """A NaN in any input of token 40 shows in the outputs that use it, and in none before."""
    inputs = mixer_inputs(90, dtype, 1, 1)
    inputs[spoiled][:, :, 40] = math.nan
    bad = rv.mix(**inputs, p="exponential", backend=backend)[0, 0].isnan().any(-1)
    assert not bad[:40].any()
    assert bad[41 if spoiled == "kb" else 40]  # no token feeds back its own output, so kb_40 serves from 41 on


@pytest.mark.parametrize("backend", SPARSE)
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


@pytest.mark.parametrize("backend", SPARSE)
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


@pytest.mark.parametrize("backend", SPARSE)
def test_several_python_threads(backend: str) -> None:
    inputs = mixer_inputs(200, torch.float32)
    expected = rv.mix(**inputs, p="exponential+cache", backend=backend)
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(rv.mix, **inputs, p="exponential+cache", backend=backend) for _ in range(20)]
        assert all(torch.equal(job.result(), expected) for job in jobs)


def _in_child(backend: str, queue: object) -> None:
    queue.put(rv.mix(**mixer_inputs(100, torch.float32), p="exponential", backend=backend).sum().item())


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forked_processes() -> None:
    """As a DataLoader's workers are: the parent has used its threads, and the child must make its own.

    Of the kernels only: torch's own threads hang in a forked child, whoever calls them.
    """
    backend = "cpu"
    expected = rv.mix(**mixer_inputs(100, torch.float32), p="exponential", backend=backend).sum().item()
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_child, args=(backend, queue))
    child.start()
    assert queue.get(timeout=60) == pytest.approx(expected, rel=1e-6)
    child.join(timeout=60)
    assert child.exitcode == 0


def test_the_choice_explains_itself() -> None:
    choice = rv.choose_backend(torch.zeros(1))
    assert (choice.backend, "CPU" in choice.why) == ("cpu", True)
    choice = rv.choose_backend(torch.zeros(1), "attention")
    assert (choice.backend, "every earlier one" in choice.why) == ("dense", True)
    choice = rv.choose_backend(torch.zeros(1, device="meta"))
    assert (choice.backend, "run on meta" in choice.why) == ("torch", True)


def test_an_explicit_backend_never_falls_back() -> None:
    inputs = mixer_inputs(4, torch.float32)
    with pytest.raises(ValueError, match="'cpu' needs tensors on a CPU, got meta: use 'torch'"):
        rv.mix(**{k: t.to("meta") for k, t in inputs.items()}, p="exponential", backend="cpu")
    with pytest.raises(ValueError, match=r"'dense' expects a pattern .* got 'exponential'"):
        rv.mix(**inputs, p="exponential", backend="dense")
    with pytest.raises(ValueError, match="unknown backend 'cpuu': expected auto or cpu, dense, torch, reference"):
        rv.mix(**inputs, p="exponential", backend="cpuu")


def test_empty_batches() -> None:
    inputs = {k: t[:0] for k, t in mixer_inputs(6, torch.float32).items()}
    assert rv.mix(**inputs, p="exponential").shape == (0, 3, 6, 5)


# The options of the layer.


@pytest.mark.parametrize("spec", ["exponential", "quadratic+cache", "first-order", "dense", "offsets:2,5", "local:3"])
@pytest.mark.parametrize("backend", SPARSE)
def test_whole_softmax(backend: str, spec: str) -> None:
    """Against the reference's scores p and r = log_softmax + log g, with gates down to 0.1 %."""
    p, n = rv.pattern(spec), 40
    inputs = mixer_inputs(n, torch.float64)
    inputs["gate"] = inputs["gate"].clamp(min=1e-3)

    def defined(x: Tensor, qa: Tensor, ka: Tensor, qb: Tensor, kb: Tensor, gate: Tensor) -> Tensor:
        if not p.recurrent:
            return reference.mix(x, qa, ka, qb, kb, gate, p, 7**-0.5)
        table = torch.from_numpy(p.table(n))
        own = (qa * ka).sum(-1, keepdim=True)
        scores = own if p.direct == "diagonal" else torch.cat([own, _edges(qa, ka, table)], -1)
        fed = (_edges(qb, kb, table) * 7**-0.5).masked_fill(table < 0, -1e30).log_softmax(-1) + gate.log()[..., None]
        return reference.solve(x, *reference.whole_softmax(scores * 7**-0.5, fed, p), p)

    y, found = gradients(lambda **t: rv.mix(**t, p=spec, normalise="whole", backend=backend), inputs)
    exact, expected = gradients(defined, inputs)
    assert_close(y, exact, torch.float64, "y")
    for name, gradient in found.items():
        scale = expected[name].abs().max().item()
        assert (gradient - expected[name]).abs().max().item() <= 1e-11 * max(scale, 1), name


def _edges(q: Tensor, k: Tensor, table: Tensor) -> Tensor:
    return (q[:, :, :, None] * k[:, :, table.clamp(min=0)]).sum(-1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("backend", SPARSE)
def test_whole_softmax_survives_extremes(backend: str, dtype: torch.dtype) -> None:
    """Row sums of T~ like exp(10⁴), gates at 0 and 1: finite, and rows of T sum to one."""
    for size in (0.0, 1e4):
        inputs = mixer_inputs(70, dtype)
        inputs |= {"x": torch.ones_like(inputs["x"]), "qa": inputs["qa"] * size, "qb": inputs["qb"] * size}
        inputs["gate"] = (torch.arange(70) % 3 / 2).to(dtype).expand(2, 3, 70).contiguous()
        y, found = gradients(lambda **t: rv.mix(**t, p="exponential", normalise="whole", backend=backend), inputs)
        torch.testing.assert_close(y, torch.ones_like(y), rtol=1e-5, atol=1e-5)
        assert all(gradient.isfinite().all() for gradient in found.values())


@pytest.mark.parametrize("spec", ["exponential", "quadratic+cache", "first-order", "dense"])
@pytest.mark.parametrize("backend", SPARSE)
def test_tied_matrices(backend: str, spec: str) -> None:
    """A = δ B + D' written out, with D' such that rows of A + B sum to one."""
    p, n = replace(rv.pattern(spec), direct="all"), 30
    inputs = {name: t for name, t in mixer_inputs(n, torch.float64).items() if name not in ("qa", "ka")}
    inputs["delta"] = torch.tensor([0.0, 0.3, 1.5]).double()

    def defined(x: Tensor, qb: Tensor, kb: Tensor, gate: Tensor, delta: Tensor) -> Tensor:
        _, beta = reference.gated_softmax(qb, kb, qb, kb, gate, p, 7**-0.5)
        d = delta[:, None].expand(x.shape[:-1])
        alpha = reference.tied_alpha(beta, d, 1 - (1 + d) * beta.sum(-1), p)
        torch.testing.assert_close(alpha.sum(-1) + beta.sum(-1), torch.ones_like(gate))
        return reference.solve(x, alpha, beta, p)

    def run(delta: Tensor, **t: Tensor) -> Tensor:
        return rv.mix(qa=None, ka=None, **t, p=spec, tied=delta, backend=backend)

    (y, found), (exact, expected) = gradients(run, inputs), gradients(defined, inputs)
    assert_close(y, exact, torch.float64, "y")
    for name, gradient in found.items():
        assert_close(gradient, expected[name], torch.float64, name)


def test_a_constant_gate() -> None:
    inputs = mixer_inputs(20, torch.float64)
    rest = {name: t for name, t in inputs.items() if name != "gate"}
    for gate in (0.25, torch.tensor(0.25).double(), torch.tensor([[0.1], [0.5], [0.9]]).double()):
        full = torch.as_tensor(gate).double().expand(2, 3, 20)
        assert torch.equal(rv.mix(**rest, gate=gate, p="exponential"), rv.mix(**rest, gate=full, p="exponential"))


def test_channels_in_parallel_where_heads_are_few() -> None:
    inputs = mixer_inputs(100, torch.float64, 1, 1, d=64, dk=16)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        check_mix("exponential", inputs, torch.float64)
    finally:
        torch.set_num_threads(threads)


def test_bad_arguments() -> None:
    inputs = mixer_inputs(8, torch.float32)
    for change, error, message in [
        ({"ka": inputs["ka"][:, :2]}, ValueError, r"expected ka of shape \(2, 3, 8, 7\)"),
        ({"x": inputs["x"][0]}, ValueError, "expected x of shape"),
        ({"kb": inputs["kb"].double()}, TypeError, "x is torch.float32, kb is torch.float64"),
        ({"gate": inputs["gate"].to("meta")}, ValueError, "x is on cpu, gate on meta"),
        ({"gate": inputs["gate"][..., :5]}, ValueError, r"expected gate of shape \(2, 3, 8\)"),
        ({"gate": None}, ValueError, "exponential needs gate"),
        ({"qb": None}, ValueError, "exponential needs qb"),
        ({"normalise": "half"}, ValueError, "expected normalise 'gate' or 'whole', got 'half'"),
        ({"tied": torch.zeros(2)}, ValueError, "one per head"),
        ({"tied": 0.5, "normalise": "whole"}, ValueError, "normalised by the gate"),
        ({"tied": 0.5, "p": "local:3"}, ValueError, "tied needs a pattern with feedback"),
        ({"cu_seqlens": [0, 5, 3, 8]}, ValueError, r"never descending.* got \[0, 5, 3, 8\]"),
        ({"cu_seqlens": [0, 5]}, ValueError, "from 0 to N = 8"),
        ({"cu_seqlens": [0.0, 8.0]}, TypeError, "integers"),
        ({"start": [1]}, ValueError, "B = 2 numbers"),
        ({"start": [0, 9]}, ValueError, "from 0 to N = 8"),
        ({"start": [0, 1], "cu_seqlens": [0, 8]}, ValueError, "got both"),
    ]:
        with pytest.raises(error, match=message):
            rv.mix(**{"p": "exponential", **inputs, **change})
