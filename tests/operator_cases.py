"""What tests of the operator share: patterns, inputs, tolerances, and the one place that spells its calls."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import resolvent as rv
from resolvent.ops import Cache
from resolvent.ops.backend import Backend
from resolvent.ops.cache.stages import stage_caches
from resolvent.ops.inputs import Inputs as OperatorInputs
from resolvent.ops.registry import BACKENDS
from resolvent.ops.rows import Rows
from resolvent.patterns import Explicit
from resolvent.patterns.table import NamedReads

Inputs = dict[str, Tensor]
Spec = str | rv.Pattern
Given = Mapping[str, Tensor | float | None]

NAMES = ("x", "qa", "ka", "qb", "kb", "gate")
FAST = [name for name in BACKENDS if name not in ("reference", "triton")]  # tests/gpu has the latter
SPARSE = [name for name in FAST if name != "dense"]  # which compute nothing outside the pattern
STRIDED = [
    *rv.PAPER_STRUCTURES,
    "stride:k**3+1+cache",
    "stride:3*k+2+cache",
    "offsets:2,5",
    "offsets:3+diagonal",
    "local:1",
    "exponential+attention",
    "quadratic+diagonal+cache",
]
LIVES = ["fenwick", "binomial:4", "binomial:5,lazy"]


def _random_table(tokens: int, chance: float, seed: int) -> rv.Pattern:
    """Each earlier position with this chance, which falls with the token: about as many reads everywhere."""
    random = np.random.default_rng(seed).random((tokens, tokens))
    return rv.explicit(np.tril(random < chance / (1 + np.arange(tokens)[:, None] / 20), -1))


def _scattered(i: int) -> np.ndarray:
    """The one before, and three that look like chance."""
    reads = {i - 1, *((i * i * factor + factor) % max(i, 1) for factor in (3, 7, 11))}
    return np.array(sorted(reads) if i else [], dtype=np.int64)


# Longer than any sequence of the laws. Many reads; few, so that most rows have none; without an end.
TABLE, FEW_READS = _random_table(640, 0.6, 0), _random_table(640, 0.03, 1)
ENDLESS_ROWS = Explicit(NamedReads("scattered", _scattered))
LISTED: list[Spec] = [TABLE, FEW_READS, ENDLESS_ROWS]
PATTERNS: list[Spec] = [*STRIDED, *LIVES, *LISTED]  # A and B read the same positions
PAIRED = ["attention/first-order", "local:8/exponential+cache", "exponential/order:8"]
NEW: list[Spec] = [*LIVES, *LISTED, *PAIRED]  # where lists multiply, these come at fewer lengths
ALL: list[Spec] = [*PATTERNS, *PAIRED]
# One of each kind that differs in the code: one source, few and many; shifted, with lifetimes, listed; few and many
# slots, reused or not; a diagonal A, no B; two stages. The definition and gradients go through ALL, other laws these.
SINGLE: list[Spec] = [
    "first-order", "order:8", "local:8", "attention", "dense", "dense+diagonal", "exponential", "offsets:3+diagonal",
    "exponential+cache", "quadratic+cache", "offsets:2,5+cache", "fenwick", TABLE, FEW_READS,
]  # fmt: skip
KINDS: list[Spec] = [*SINGLE, "attention/first-order", "local:8/exponential+cache"]
SCALE = 7**-0.5  # of keys as `mixer_inputs` makes them

# The options that choose what is normalized, for `mix`, `extend` and caches alike.
BY_GATE: dict[str, Any] = {"normalize": "gate"}
JOINT: dict[str, Any] = {"normalize": "joint"}
NORMALIZATIONS = [BY_GATE, JOINT]

# The largest difference to the reference in float64, relative to the largest entry; the same everywhere.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
DEEP = 100  # times as much for layers and models, where dozens of products and a solve follow one another


def can(backend: str, spec: Spec) -> bool:
    return backend != "dense" or rv.pattern(spec).is_dense


def backends(spec: Spec) -> list[str]:
    return [backend for backend in FAST if can(backend, spec)]


def mix(inputs: Given, pattern: Spec, **options: Any) -> Tensor:
    return rv.mix(inputs["x"], pattern, **_scores(inputs), **options)


def extend(inputs: Given, pattern: Spec, cache: Cache, **options: Any) -> Tensor:
    return rv.extend(inputs["x"], pattern, cache, **_scores(inputs), **options)


def solve(x: Tensor, pattern: Spec, alpha: Tensor, beta: Tensor | None = None, **options: Any) -> Tensor:
    return rv.solve(x, pattern, alpha, beta, **options)


def mix_changed(inputs: Given, pattern: Spec, change: Mapping[str, Any]) -> Tensor:
    """`mix` with other inputs, another pattern or other options, by name."""
    own, options = _apart(change)
    return mix({**inputs, **own}, **{"pattern": pattern, **options})


def extend_changed(inputs: Given, pattern: Spec, cache: Cache, change: Mapping[str, Any]) -> Tensor:
    own, options = _apart(change)
    return extend({**inputs, **own}, **{"pattern": pattern, "cache": cache, **options})


def _apart(change: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    own = {name: value for name, value in change.items() if name in NAMES}
    return own, {name: value for name, value in change.items() if name not in NAMES}


def _scores(inputs: Given) -> dict[str, Any]:
    """Queries and keys in pairs, and the gate; a pair without both is None."""
    assert inputs.keys() <= set(NAMES), inputs.keys()
    pairs = {side: (inputs.get(f"q{side}"), inputs.get(f"k{side}")) for side in "ab"}
    used = {side: None if any(t is None for t in pair) else pair for side, pair in pairs.items()}
    return used | {"gate": inputs.get("gate")}


def run_on(backend: Backend, inputs: Given, rows: Rows | rv.Pattern, scale: float = SCALE) -> Tensor:
    """`mix` of a backend; outputs that are known from before are among the inputs as y_known."""
    return backend.mix(as_tuple(inputs), rows, scale, inputs.get("y_known"))


def as_tuple(inputs: Given) -> OperatorInputs:
    """As backends take them."""
    return OperatorInputs(*(inputs.get(name) for name in NAMES))


def normalization(cache: Cache) -> dict[str, Any]:
    """The option that a cache was made for."""
    return {name: getattr(stage_caches(cache)[-1], name) for name in BY_GATE}


def masks(spec: Spec, n: int) -> tuple[Tensor, Tensor]:
    """The non-zeros of A and of B, each from a pattern of its own if they are a pair."""
    sides = spec.split("/") if isinstance(spec, str) else [spec]
    a, b = rv.pattern(sides[0]), rv.pattern(sides[-1])
    itself = torch.eye(n, dtype=torch.bool)
    in_a = torch.from_numpy(a.mask(n)) | itself if a.direct == "all" else itself
    return in_a, torch.from_numpy(b.mask(n)) if b.recurrent else torch.zeros_like(itself)


def by_matrices(inputs: Given, spec: Spec, scale: float = SCALE, *, joint: bool = False) -> Tensor:
    """`mix` with A and B written out: two masks, two softmaxes, one solve. Knows nothing of stages."""
    x, qa, ka, qb, kb, gate = (inputs[name] for name in NAMES)
    in_a, in_b = masks(spec, x.shape[-2])
    identity = torch.eye(x.shape[-2], dtype=x.dtype)
    g = torch.where(in_b.any(-1), gate, 0)[..., None]
    scores = (qb @ kb.mT * scale).masked_fill(~in_b & in_b.any(-1, keepdim=True), -torch.inf)
    b = g * torch.where(in_b, scores.softmax(-1), 0)
    scores = (qa @ ka.mT * scale).masked_fill(~in_a, -torch.inf)
    a = torch.where(in_a, scores - scores.amax().detach(), -torch.inf).exp() if joint else (1 - g) * scores.softmax(-1)
    right = a @ torch.cat([x, torch.ones_like(x[..., :1])], -1)
    y = torch.linalg.solve_triangular(identity - b, right, upper=False, unitriangular=True)
    return y[..., :-1] / y[..., -1:]  # which is one if rows of A + B sum to one


def mixer_inputs(n: int, dtype: torch.dtype, batch: int = 2, heads: int = 3, d: int = 5, dk: int = 7) -> Inputs:
    torch.manual_seed(n)
    inputs = {name: torch.randn(batch, heads, n, d if name == "x" else dk) for name in ("x", "qa", "ka", "qb", "kb")}
    inputs["gate"] = torch.rand(batch, heads, n)
    return {name: t.to(dtype) for name, t in inputs.items()}


def cut(inputs: Given, first: int, last: int, rows: slice = slice(None)) -> dict[str, Any]:
    """Some positions, of all sequences or some; what is missing stays missing."""
    return {name: None if t is None else t[rows, :, first:last] for name, t in inputs.items()}


def gradients(run: Callable[[Inputs], Tensor], inputs: Inputs) -> tuple[Tensor, Inputs]:
    """The output, and the gradient of a fixed random functional of it for every input."""
    leaves = {name: t.detach().clone().requires_grad_() for name, t in inputs.items()}
    y = run(leaves)
    weights = torch.randn(y.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).to(y.dtype)
    found = torch.autograd.grad(y, list(leaves.values()), weights, materialize_grads=True, allow_unused=True)
    return y.detach(), dict(zip(leaves, found, strict=True))


def assert_close(
    mine: Tensor, exact: Tensor, dtype: torch.dtype | None = None, what: str = "y", factor: float = 1
) -> None:
    """Equal but for rounding in this dtype, or that of `mine`, however its library orders sums: by the table."""
    assert exact.dtype in (mine.dtype, torch.float64), what
    scale = max(exact.abs().max().item(), 1.0) if exact.numel() else 1.0
    most = factor * TOLERANCE[dtype or mine.dtype] * scale
    torch.testing.assert_close(mine.double(), exact.double(), rtol=0, atol=most, msg=lambda text: f"{what}: {text}")


def assert_all_close(
    mine: tuple[Tensor, Inputs], exact: tuple[Tensor, Inputs], dtype: torch.dtype | None = None, what: str = ""
) -> None:
    """Outputs and gradients as `gradients` returns them."""
    (y, found), (expected_y, expected) = mine, exact
    assert_close(y, expected_y, dtype, f"{what} y")
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        assert_close(gradient, expected[name], dtype, f"{what} d{name}")


def assert_same_bits(mine: Tensor, exact: Tensor, backend: str, what: str = "y") -> None:
    """To the bit where our own kernels order the sums; torch's products may choose by batch, layout and threads."""
    if backend == "cpu":
        assert torch.equal(mine, exact), what
    else:
        assert_close(mine, exact, what=what)


class Largest(TorchDispatchMode):
    """The number of elements of the largest storage that any operation returns, and the names of all operations."""

    def __init__(self) -> None:
        super().__init__()
        self.elements, self.names = 0, set[str]()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        self.names.add(function.overloadpacket.__name__)
        sizes = [t.untyped_storage().nbytes() // t.itemsize for t in tree_leaves(result) if isinstance(t, Tensor)]
        self.elements = max([self.elements, *sizes])
        return result
