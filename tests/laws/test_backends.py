"""Every backend is the reference: values and every gradient, over patterns, lengths, dtypes and layouts."""

import itertools
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

import resolvent as rv
from resolvent.ops import reference
from resolvent.ops.backend import Backend
from resolvent.ops.inputs import Inputs as OperatorInputs
from tests.operator_cases import (
    ALL,
    ENDLESS_ROWS,
    FAST,
    FEW_READS,
    JOINT,
    KINDS,
    NAMES,
    NEW,
    PAIRED,
    SCALE,
    SPARSE,
    TABLE,
    Inputs,
    Spec,
    assert_all_close,
    assert_close,
    assert_same_bits,
    backends,
    by_matrices,
    extend,
    gradients,
    masks,
    mix,
    mix_changed,
    mixer_inputs,
    solve,
)

LONG = 70  # tokens, beyond which the reference takes seconds: it goes token by token
SEVERAL_BLOCKS = ["first-order", "exponential", "quadratic", "quadratic+cache", "stride:k**3+1+cache", "offsets:2,300"]


def check_mix(spec: Spec, inputs: Inputs, *dtypes: torch.dtype) -> None:
    """Every backend that can, in every dtype (which must hold the inputs exactly), against the reference in float64.

    The reference runs through the stages of a pair one after another: there it is itself among the judged, by matrices.
    Where it would take long, matrices judge; that it is what they are is another law (tests/ops/test_reference.py).
    """
    doubles, paired = {name: t.double() for name, t in inputs.items()}, spec in PAIRED
    scale, written_out = inputs["qa"].shape[-1] ** -0.5, paired or inputs["x"].shape[-2] > LONG
    exact = gradients(
        lambda t: by_matrices(t, spec, scale) if written_out else mix(t, spec, backend="reference"), doubles
    )
    for backend in ["reference"] * paired + backends(spec):
        for dtype in dtypes:
            given = {name: t.to(dtype) for name, t in inputs.items()}
            found = gradients(lambda t, b=backend: mix(t, spec, backend=b), given)
            assert found[0].dtype == dtype
            assert_all_close(found, exact, dtype, backend)


@pytest.mark.parametrize("spec", ALL)
def test_mix(spec: Spec) -> None:
    """At the edges of blocks of 64, and in the second one of 256 for kernels that differ there."""
    for n in [1, 2, 64, 65] + [257] * (spec in SEVERAL_BLOCKS):
        check_mix(spec, mixer_inputs(n, torch.float32), torch.float64, torch.float32)


@pytest.mark.parametrize("spec", [*SEVERAL_BLOCKS, *NEW])
def test_mix_over_several_blocks(spec: Spec) -> None:
    """Also with more reads at fixed distances than are taken at a time, which readers in later blocks give back."""
    inputs = mixer_inputs(600, torch.float64, 1, 2, 3, 2)
    exact = gradients(lambda t: by_matrices(t, spec, 2**-0.5), inputs)
    for backend in SPARSE:
        assert_all_close(gradients(lambda t, b=backend: mix(t, spec, backend=b), inputs), exact, what=backend)


@pytest.mark.parametrize("spec", KINDS)
def test_mix_in_half_precision(spec: Spec) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        check_mix(spec, mixer_inputs(40, dtype), dtype)


@pytest.mark.parametrize("d", [1, 64, 80])
def test_mix_in_any_dimension(d: int) -> None:
    specs = ["exponential", "exponential+diagonal", "quadratic+cache"]
    for spec in [*specs, FEW_READS] if d == 64 else specs:  # the last has kernels of its own: compiled once
        check_mix(spec, mixer_inputs(70, torch.float64, 1, 2, d=d, dk=max(81 - d, 32)), torch.float64)


@pytest.mark.parametrize("spec", ALL)
def test_solve(spec: Spec) -> None:
    """Signed coefficients; what lies beyond a row's sources is NaN and must not matter."""
    for n in (1, 2, 65):
        check_solve(spec, n)


def check_solve(spec: Spec, n: int) -> None:
    p = rv.pattern(spec)
    table_a, table = (torch.from_numpy(stage.table(n)) for stage in (p.stages[0], p.stages[-1]))
    torch.manual_seed(n)
    inputs = {"x": torch.randn(2, 2, n, 5).double(), "alpha": torch.randn(2, 2, n, 1 + table_a.shape[1]).double()}
    inputs["alpha"][..., 1:] /= max(table_a.shape[1], 1)
    inputs["alpha"][..., 1:][..., table_a < 0] = math.nan
    if p.direct == "diagonal":
        inputs["alpha"] = inputs["alpha"][..., :1]
    if p.recurrent:
        inputs["beta"] = torch.randn(2, 2, *table.shape).double() / max(table.shape[1], 1)
        inputs["beta"][..., table < 0] = math.nan

    def run(which: str) -> tuple[Tensor, Inputs]:
        return gradients(lambda t: solve(t["x"], p, t["alpha"], t.get("beta"), backend=which), inputs)

    def written_out(t: Inputs) -> Tensor:
        a, b = (_written_out(t[name], table) for name, table in (("alpha", table_a), ("beta", table)))
        return torch.linalg.solve_triangular(torch.eye(n).double() - b, a @ t["x"], upper=False, unitriangular=True)

    exact = gradients(written_out, inputs) if spec in PAIRED else run("reference")
    for backend in backends(spec):
        assert_all_close(run(backend), exact, what=backend)


def _written_out(coefficients: Tensor, table: Tensor) -> Tensor:
    """(…, n, n); with one column more than the table has, the first is the diagonal."""
    n = len(table)
    if coefficients.shape[-1] > table.shape[1]:
        table = torch.cat([torch.arange(n)[:, None], table], 1)
    values, columns = torch.where(table >= 0, coefficients, 0), table.where(table >= 0, n)
    return values.new_zeros((*values.shape[:-1], n + 1)).scatter(-1, columns.expand(values.shape), values)[..., :-1]


@pytest.mark.parametrize("spec", KINDS)
def test_extreme_scores_and_gates(spec: Spec) -> None:
    """Scores of ±10⁴, all scores equal, gates at 0 and 1: finite, and rows of T still sum to one."""
    for backend in backends(spec):
        check_extremes(spec, backend=backend, scale=1.0)


def check_extremes(spec: Spec, **options: object) -> None:
    for size, dtype in itertools.product((0.0, 1e4), (torch.float64, torch.float32)):
        inputs = mixer_inputs(70, dtype)
        inputs |= {"x": torch.ones_like(inputs["x"]), "qa": inputs["qa"] * size, "qb": inputs["qb"] * size}
        inputs["gate"] = (torch.arange(70) % 3 / 2).to(dtype).expand(2, 3, 70).contiguous()
        y, found = gradients(lambda t: mix(t, spec, **options), inputs)
        assert_close(y, torch.ones_like(y), what=str(options))
        assert all(gradient.isfinite().all() for gradient in found.values()), options


@pytest.mark.parametrize("spec", [
    "stride:3*k+2+cache", "offsets:2,5", "quadratic+cache", "exponential", "binomial:5,lazy", TABLE, FEW_READS, *PAIRED,
])  # fmt: skip
def test_nothing_outside_the_pattern_is_read(spec: Spec) -> None:
    """On `cpu`, a row whose inputs are NaN spoils only those that can be reached from it, by A or B and then by B."""
    n = 90
    in_a, in_b = masks(spec, n)
    reachable = in_a | in_b
    for i in range(n):
        reachable[i] |= reachable[in_b[i]].any(0)
    for bad in (0, 40, 64):
        inputs = mixer_inputs(n, torch.float64, 1, 1)
        for tensor in inputs.values():
            tensor[:, :, bad] = math.nan
        y = mix(inputs, spec, backend="cpu")
        spoiled = y[0, 0].isnan().any(-1)
        assert spoiled.tolist() == reachable[:, bad].tolist()


@pytest.mark.parametrize("backend", SPARSE)
def test_nan_is_never_swallowed(backend: str) -> None:
    """A NaN in any input of token 40 shows in the outputs that use it."""
    for spoiled, dtype in itertools.product(NAMES, (torch.float64, torch.float32)):
        inputs = mixer_inputs(90, dtype, 1, 1)
        inputs[spoiled][:, :, 40] = math.nan
        bad = mix(inputs, "exponential", backend=backend)[0, 0].isnan().any(-1)
        assert bad[41 if spoiled == "kb" else 40], spoiled  # no token feeds back its own output: kb_40 serves from 41


@pytest.mark.parametrize(("backend", "spec"), [*((b, "exponential") for b in SPARSE), ("dense", "dense")])
def test_layouts(backend: str, spec: str) -> None:
    """Heads beside positions, expanded batches, slices: any strides give the same, our own kernels to the bit."""
    inputs = mixer_inputs(40, torch.float64)
    expected = mix(inputs, spec, backend=backend)
    swapped = {k: t.transpose(1, 2).contiguous().transpose(1, 2) for k, t in inputs.items()}
    assert not swapped["x"].is_contiguous()
    assert_same_bits(mix(swapped, spec, backend=backend), expected, backend)
    sliced = {k: torch.cat([t, t], dim=-1)[..., : t.shape[-1]] for k, t in inputs.items()}
    assert_same_bits(mix(sliced, spec, backend=backend), expected, backend)
    wide = {k: torch.stack([t] * 500, -1).flatten(-2)[..., ::500] for k, t in inputs.items()}
    assert_same_bits(mix(wide, spec, backend=backend), expected, backend)
    one = {k: t[:1].expand(4, *t.shape[1:]) for k, t in inputs.items()}
    assert_same_bits(mix(one, spec, backend=backend)[3], expected[0], backend)
    halves = {k: torch.full((1,), 0.5).expand(t.shape) for k, t in inputs.items()}
    assert_close(mix(halves, spec, backend=backend), torch.full_like(inputs["x"], 0.5).float(), what=backend)


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def with_threads(count: int, inputs: Inputs, backend: str, spec: Spec = "quadratic+cache") -> tuple[Tensor, Inputs]:
    with threads(count):
        return gradients(lambda t: mix(t, "dense" if backend == "dense" else spec, backend=backend), inputs)


def assert_identical(mine: tuple[Tensor, Inputs], other: tuple[Tensor, Inputs]) -> None:
    assert torch.equal(mine[0], other[0])
    for name, gradient in mine[1].items():
        assert torch.equal(gradient, other[1][name]), name


@pytest.mark.parametrize("backend", FAST)
def test_deterministic(backend: str) -> None:
    """With as many threads, the same bits; torch's products may choose another order of sums for another number."""
    inputs = mixer_inputs(300, torch.float32)
    first = with_threads(1, inputs, backend)
    for count in (1, 3):
        found = with_threads(count, inputs, backend)
        assert_identical(with_threads(count, inputs, backend), found)
        assert_all_close(found, first)


@pytest.mark.parametrize("spec", ["quadratic+cache", TABLE, "exponential/order:8"])
def test_deterministic_whatever_the_threads(spec: Spec) -> None:
    """Of our own kernels: as long as each head of a sequence has at most one thread. Here there are six."""
    inputs = mixer_inputs(300, torch.float32)
    first = with_threads(1, inputs, "cpu", spec)
    for count in (2, 11):
        assert_identical(with_threads(count, inputs, "cpu", spec), first)


def test_outputs_are_deterministic_where_threads_share_a_head() -> None:
    """Each thread has channels of its own. Gradients of scores and gates sum over channels, and so over threads."""
    inputs = mixer_inputs(100, torch.float32, 1, 1, d=64, dk=16)
    first = with_threads(1, inputs, "cpu")
    for count in (2, 4):
        found = with_threads(count, inputs, "cpu")
        assert torch.equal(found[0], first[0])
        assert_all_close(found, first)
        assert_identical(with_threads(count, inputs, "cpu"), found)


@pytest.mark.parametrize("backend", SPARSE)
def test_several_python_threads(backend: str) -> None:
    inputs = mixer_inputs(200, torch.float32)
    expected = mix(inputs, "exponential+cache", backend=backend)
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(mix, inputs, "exponential+cache", backend=backend) for _ in range(20)]
        for job in jobs:
            assert_same_bits(job.result(), expected, backend)


def test_the_choice_explains_itself() -> None:
    long = torch.zeros(1, 1, 4096, 4)
    choice = rv.choose_backend(long, "exponential")
    assert (choice.backend, "CPU" in choice.why) == ("cpu", True)
    choice = rv.choose_backend(long, "attention")
    assert (choice.backend, "every earlier one" in choice.why) == ("dense", True)
    assert rv.choose_backend(long, "dense").backend == "dense"
    assert rv.choose_backend(long, "dense", **JOINT).backend == "cpu"  # coefficients are written out
    choice = rv.choose_backend(long, "attention/exponential")
    assert choice.backend == "dense/cpu"
    assert choice.why.startswith("A: every token reads every earlier one")
    assert "; B: the tensors are on a CPU" in choice.why
    choice = rv.choose_backend(long, "local:8/exponential")
    assert (choice.backend, "A:" in choice.why) == ("cpu", False)
    choice = rv.choose_backend(long.to("meta"), "exponential")
    assert (choice.backend, "run on meta" in choice.why) == ("torch", True)


def test_a_backend_of_ones_own() -> None:
    """Any object with the functions of the protocol will do."""
    calls = []

    class Own:
        NAME = "own"
        refusal = staticmethod(lambda request: None if request.operation == "mix" else "own: mix alone")
        preference = staticmethod(lambda _: None)
        solve = step = staticmethod(reference.solve)

        def mix(self, *arguments: object) -> Tensor:
            calls.append(arguments)
            return reference.mix(*arguments)

    inputs = mixer_inputs(9, torch.float64)
    assert isinstance(Own(), Backend)
    assert_close(mix(inputs, "exponential", backend=Own()), mix(inputs, "exponential"))
    assert len(calls) == 1
    with pytest.raises(ValueError, match="own: mix alone"):
        solve(inputs["x"], "first-order", inputs["gate"][..., None], inputs["gate"][..., None], backend=Own())


def test_an_explicit_backend_never_falls_back() -> None:
    inputs = mixer_inputs(4, torch.float32)
    with pytest.raises(
        ValueError, match=r"'cpu' needs tensors on a CPU, got meta\. Backends that can: torch, reference"
    ):
        mix({k: t.to("meta") for k, t in inputs.items()}, "exponential", backend="cpu")
    with pytest.raises(ValueError, match=r"'dense' expects a pattern .* got 'exponential'\. Backends that can: cpu"):
        mix(inputs, "exponential", backend="dense")
    with pytest.raises(
        ValueError, match="unknown backend 'cpuu': expected auto or dense, cpu, triton, torch, reference"
    ):
        mix(inputs, "exponential", backend="cpuu")


# The options of the layer.


@pytest.mark.parametrize("spec", [
    "exponential", "quadratic+cache", "first-order", "dense", "local:3", FEW_READS, "binomial:4", *PAIRED,
    "dense/binomial:4",
])  # fmt: skip
def test_joint_softmax(spec: Spec) -> None:
    """T written out, its rows normalized; with gates down to 0.1 %."""
    inputs = mixer_inputs(40, torch.float64)
    inputs["gate"] = inputs["gate"].clamp(min=1e-3)
    for scale in (SCALE, -0.7):
        exact, expected = gradients(lambda t, s=scale: by_matrices(t, spec, s, joint=True), inputs)
        for backend in [*SPARSE, "reference"]:
            options = {"scale": scale, "backend": backend, **JOINT}
            y, found = gradients(lambda t, o=options: mix(t, spec, **o), inputs)
            assert_close(y, exact, what=backend)
            for name, gradient in found.items():  # by log g, gradients are as large as 1 / g
                assert_close(gradient, expected[name], what=f"{backend} {name}", factor=10)


@pytest.mark.parametrize("spec", ["exponential", "local:8/exponential+cache"])
@pytest.mark.parametrize("backend", SPARSE)
def test_joint_softmax_survives_extremes(backend: str, spec: str) -> None:
    """Row sums of T~ like exp(10⁴), gates at 0 and 1: finite, and rows of T sum to one."""
    check_extremes(spec, backend=backend, **JOINT)


@pytest.mark.parametrize(("spec", "by"), [
    ("exponential", "head"), ("exponential", "token"), ("quadratic+cache", "token"), ("first-order", "head"),
    ("dense", "token"), (ENDLESS_ROWS, "head"), ("fenwick", "head"),
])  # fmt: skip
def test_tied_matrices(spec: Spec, by: str) -> None:
    """A = B D + D' written out, with D' such that rows of A + B sum to one."""
    p, n = rv.pattern(spec).stages[0].modified("all", recurrent=True), 30
    inputs = {name: t for name, t in mixer_inputs(n, torch.float64).items() if name not in ("qa", "ka")}
    by_token = 3 * torch.rand(2, 3, n, generator=torch.Generator().manual_seed(2)).double()
    inputs["d"] = by_token if by == "token" else torch.tensor([0.0, 0.3, 1.5]).double()

    def defined(t: Inputs) -> Tensor:
        x, qb, kb, gate = (t[name] for name in ("x", "qb", "kb", "gate"))
        _, gated = reference.gated_softmax(OperatorInputs(x, qb, kb, qb, kb, gate), p, SCALE)
        d = t["d"].reshape(-1, 3, n if by == "token" else 1).expand(gate.shape)
        read = (1 + d)[..., torch.from_numpy(p.table(n)).clamp(min=0)]  # of what each row reads
        beta = gated * (1 + d)[..., None] / read
        alpha = reference.tied_alpha(beta, d, 1 - (beta * read).sum(-1), p)
        assert_close(alpha.sum(-1) + beta.sum(-1), torch.ones_like(gate))
        return reference.solve(x, alpha, beta, p)

    def run(t: Inputs, backend: str) -> Tensor:
        own = {name: tensor for name, tensor in t.items() if name != "d"}
        return mix(own, spec, tied=t["d"], backend=backend)

    exact = gradients(defined, inputs)
    for backend in SPARSE:
        assert_all_close(gradients(lambda t, b=backend: run(t, b), inputs), exact, what=backend)


def test_a_constant_gate() -> None:
    inputs = mixer_inputs(20, torch.float64)
    for gate in (0.25, torch.tensor(0.25).double(), torch.tensor([[0.1], [0.5], [0.9]]).double()):
        full = torch.as_tensor(gate).double().expand(2, 3, 20)
        found, expected = (mix({**inputs, "gate": g}, "exponential", backend="cpu") for g in (gate, full))
        assert torch.equal(found, expected)


def test_channels_in_parallel_where_there_is_nothing_to_divide() -> None:
    """No sequence in the batch, and the first chunk of a cache, before which nothing is known."""
    inputs = mixer_inputs(20, torch.float64, 1, 1, d=64, dk=16)
    cache = rv.DecodeCache("exponential", 1, 1, 64, 16, dtype=torch.float64)
    with threads(4):
        nothing = {name: t[:0] for name, t in inputs.items()}
        assert mix(nothing, "exponential", backend="cpu").shape == (0, 1, 20, 64)
        assert_close(extend(inputs, "exponential", cache, backend="cpu"), mix(inputs, "exponential", backend="cpu"))


def test_bad_arguments() -> None:
    inputs = mixer_inputs(8, torch.float32)
    for change, error, message in [
        ({"ka": inputs["ka"][:, :2]}, ValueError, r"expected ka of shape \(2, 3, 8, 7\)"),
        ({"x": inputs["x"][0]}, ValueError, "expected x of shape"),
        ({"kb": inputs["kb"].double()}, TypeError, "x is torch.float32, kb is torch.float64"),
        ({"gate": inputs["gate"].to("meta")}, ValueError, "x is on cpu, gate on meta"),
        ({"gate": inputs["gate"][..., :5]}, ValueError, r"expected gate of shape \(2, 3, 8\)"),
        ({"gate": None}, ValueError, "exponential needs gate"),
        ({"qb": None}, ValueError, "exponential needs b=\\(q, k\\)"),
        ({"normalize": "half"}, ValueError, "expected normalize 'gate' or 'joint', got 'half'"),
        ({"tied": torch.zeros(2)}, ValueError, r"one per head, \(3,\), or one per token, \(2, 3, 8\), got \(2,\)"),
        ({"tied": torch.zeros(2, 3, 7)}, ValueError, r"one per token, \(2, 3, 8\), got \(2, 3, 7\)"),
        ({"tied": 0.5, **JOINT}, ValueError, "normalized by the gate"),
        ({"tied": 0.5, "pattern": "local:3"}, ValueError, "tied needs a pattern with feedback"),
        (
            {"tied": 0.5, "pattern": "local:4/order:2"},
            ValueError,
            "A and B read the same positions, got local:4/order:2",
        ),
        ({"pattern": rv.explicit(lambda i: [i - 1][:i], n=7)}, rv.PatternError, "is defined for 7 tokens.*got 8"),
        ({"cu_seqlens": [0, 5, 3, 8]}, ValueError, r"never descending.* got \[0, 5, 3, 8\]"),
        ({"cu_seqlens": [0, 5]}, ValueError, "from 0 to N = 8"),
        ({"cu_seqlens": [0.0, 8.0]}, TypeError, "integers"),
        ({"start": [1]}, ValueError, "B = 2 numbers"),
        ({"start": [0, 9]}, ValueError, "from 0 to N = 8"),
        ({"start": [0, 1], "cu_seqlens": [0, 8]}, ValueError, "got both"),
    ]:
        with pytest.raises(error, match=message):
            mix_changed(inputs, "exponential", change)
