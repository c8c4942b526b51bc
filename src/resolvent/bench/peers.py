"""What is timed: the operator on a pattern, and its peers; each as a function of no arguments."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from resolvent.analysis.cost import cost, nonzeros
from resolvent.ops import choose_backend, mix
from resolvent.patterns import Pattern

Bound = Literal["loads", "matmul"]

PEERS = {
    "sdpa": "torch's causal scaled_dot_product_attention",
    "flex": "FlexAttention, compiled, on the non-zeros of the pattern's A; no feedback, forward only on a CPU",
    "paper": "the paper's way: dense masked matrices and torch.linalg.solve_triangular (dense pattern)",
    "scipy": "scipy.sparse.linalg.spsolve_triangular on ready-made coefficients of the pattern, forward only",
}
PER_PATTERN = ("flex", "scipy")  # one case for each pattern, such as "flex exponential"

_LARGEST_BYTES = 8 * 2**30
_PAPER_MATRICES = 8  # n × n matrices per head that forward and backward of `dense_solve` hold at once: 7.2 measured


class UnavailableError(Exception):
    """A peer that cannot run here, with the reason."""


@dataclass(frozen=True)
class Case:
    """Something to time.

    `inputs` are what gradients are asked for, none if there is no backward pass. `peer` is None for the operator
    itself. `repeats` is how often `run` would have to run to do the whole problem. `work` is what a forward must do at
    least, in the unit of its bound: bytes of loads, or operations of matrix products. `note` says what a reader of the
    timing has to know.
    """

    name: str
    run: Callable[[], Any]
    inputs: tuple[Tensor, ...] = ()
    pattern: Pattern | None = None
    peer: str | None = None
    repeats: int = 1
    bound: Bound | None = None
    work: float = 0.0
    note: str = ""


class Problem:
    """Random tensors of one shape, the same for all cases."""

    def __init__(self, n: int, batch: int, heads: int, head_dim: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.shape = (batch, heads, n, head_dim)
        normal = [torch.randn(self.shape, generator=generator) for _ in range(6)]
        self.x, self.qa, self.ka, self.qb, self.kb, self.weights = normal
        self.gate = torch.rand(self.shape[:-1], generator=generator)
        self.inputs = (self.x, self.qa, self.ka, self.qb, self.kb, self.gate)
        for tensor in self.inputs:
            tensor.requires_grad_()

    @property
    def attention_flops(self) -> float:
        """A causal forward of attention: scores and their use, 2·D operations each, for half of n² pairs."""
        batch, heads, n, head_dim = self.shape
        return 4.0 * n * n / 2 * head_dim * heads * batch

    def loaded_bytes(self, p: Pattern) -> float:
        """What a forward loads at least: for every token and source, what a decoder keeps of the source.

        That is ka and x where A reads it, kb and y where B does; no key where there is one source only.
        """
        batch, heads, n, head_dim = self.shape
        itemsize = self.x.element_size()
        return cost(p, n, heads=heads, head_dim=head_dim, item_bytes=itemsize).decode_bytes_read_per_token * n * batch


def make_case(peer: str, problem: Problem, p: Pattern | None = None) -> Case:
    """The peer's case on this problem, or `UnavailableError`."""
    if p is None:
        return {"sdpa": _sdpa, "paper": _paper}[peer](problem)
    return {"flex": _flex, "scipy": _scipy}[peer](problem, p)


def ours(problem: Problem, p: Pattern, backend: str) -> Case:
    """The operator itself."""
    run = partial(mix, *problem.inputs, p, backend=backend)
    if choose_backend(problem.x, p).backend == "dense":  # matrix products: A, and B alike
        work = problem.attention_flops * ((p.direct == "all") + p.recurrent)
        return Case(str(p), run, problem.inputs, p, bound="matmul", work=work)
    return Case(str(p), run, problem.inputs, p, bound="loads", work=problem.loaded_bytes(p))


def _sdpa(problem: Problem) -> Case:
    tensors = (problem.qa, problem.ka, problem.x)
    run = partial(scaled_dot_product_attention, *tensors, is_causal=True)
    return Case("sdpa", run, tensors, peer="sdpa", bound="matmul", work=problem.attention_flops)


def _paper(problem: Problem) -> Case:
    batch, heads, n, _ = problem.shape
    _require_bytes(_PAPER_MATRICES * 4 * batch * heads * n * n, f"its matrices of n × n for {batch * heads} heads")
    run = partial(dense_solve, *problem.inputs)
    work = 2 * problem.attention_flops  # A, and B alike
    return Case("paper", run, problem.inputs, peer="paper", bound="matmul", work=work)


def dense_solve(x: Tensor, qa: Tensor, ka: Tensor, qb: Tensor, kb: Tensor, gate: Tensor) -> Tensor:
    """The dense recurrence as the paper ran every pattern: full matrices, always quadratic."""
    n = x.shape[-2]
    causal = torch.ones(n, n, dtype=torch.bool).tril()
    scale = qa.shape[-1] ** -0.5
    a = (qa @ ka.mT * scale).masked_fill(~causal, -math.inf).softmax(-1)
    before = causal.tril(-1)
    before[0, 0] = True  # the first row reads nothing; it is cleared below
    b = (qb @ kb.mT * scale).masked_fill(~before, -math.inf).softmax(-1)
    g = (gate * (torch.arange(n) > 0))[..., None]
    left = torch.eye(n) - g * b.tril(-1)
    y: Tensor = torch.linalg.solve_triangular(left, (1 - g) * (a @ x), upper=False, unitriangular=True)
    return y


def _flex(problem: Problem, p: Pattern) -> Case:
    from torch._dynamo import config
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    n, tensors = problem.shape[-2], (problem.qa, problem.ka, problem.x)
    constants = tuple(t.detach() for t in tensors)
    _require_bytes(8 * n * n, "finding the blocks of its mask, n × n numbers,")
    blocks = create_block_mask(a_mask(p, n), None, None, n, n, device="cpu")
    with config.patch(cache_size_limit=256), warnings.catch_warnings():  # each length and kind of mask is compiled
        warnings.simplefilter("ignore")
        try:
            run = partial(torch.compile(flex_attention, dynamic=False, fullgraph=True), block_mask=blocks)
            with torch.no_grad():
                run(*constants)
        except Exception as error:  # whatever the compiler says: no peer, but no crash either
            raise UnavailableError(f"FlexAttention does not compile here: {_first_line(error)}") from error
        try:
            run(*tensors)
        except Exception:  # a dozen lines from the compiler that mean one thing
            note = "A alone; forward only, torch has no backward of it here"
            return Case(f"flex {p}", partial(run, *constants), pattern=p, peer="flex", note=note)
    return Case(f"flex {p}", partial(run, *tensors), tensors, p, "flex", note="A alone")


def a_mask(p: Pattern, n: int) -> Callable[[Any, Any, Tensor, Tensor], Tensor]:
    """The non-zeros of A as FlexAttention wants them: a function of head and pair, out of one array of n entries."""
    if p.direct == "diagonal" or p.period(n) == 1:
        near = torch.zeros(2 * n, dtype=torch.bool)
        near[n] = True
        near[n + torch.from_numpy(np.array(p.offsets(n) if p.direct == "all" else [], dtype=np.int64))] = True
        return lambda _batch, _head, i, j: near[i - j + n]
    life = torch.from_numpy(np.array(p.lives(n), dtype=np.int64))
    return lambda _batch, _head, i, j: (i >= j) & (i - j <= life[j])


def _scipy(problem: Problem, p: Pattern) -> Case:
    batch, heads, n, _ = problem.shape
    _require_bytes(24 * sum(nonzeros(p, n)), "its sparse matrices")
    try:
        from scipy.sparse.linalg import spsolve_triangular
    except ImportError as error:
        raise UnavailableError("SciPy is missing: pip install 'resolvent[exact]'") from error
    a, left = sparse_matrices(p, n)
    x = problem.x.detach()[0, 0].numpy()

    def run() -> Any:
        if not p.recurrent:
            return a @ x
        return spsolve_triangular(left, a @ x, unit_diagonal=True, overwrite_A=True, overwrite_b=True)

    note = f"coefficients given; one head on one thread, times {batch * heads}; forward only"
    return Case(f"scipy {p}", run, pattern=p, peer="scipy", repeats=batch * heads, note=note)


def sparse_matrices(p: Pattern, n: int) -> tuple[Any, Any]:
    """A and I - B as SciPy's sparse matrices, row sums 1/2 each; as float32 and by columns, which SciPy solves best."""
    from scipy.sparse import csc_array, csr_array, eye_array

    rows = [p.sources(i) for i in range(n)]
    widths = np.array([len(row) for row in rows])
    sources, tokens = np.concatenate(rows), np.repeat(np.arange(n), widths)
    halves = np.random.default_rng(0).uniform(0.5, 1, len(sources)).astype(np.float32)
    sums = np.bincount(tokens, weights=halves, minlength=n).astype(np.float32)
    weights = halves / sums[tokens] / 2
    reads = csr_array((weights, (tokens, sources)), shape=(n, n))
    eye = eye_array(n, dtype=np.float32, format="csr")
    a = (reads + eye / 2) if p.direct == "all" else eye / 2
    return csr_array(a, dtype=np.float32), csc_array(eye - reads if p.recurrent else eye, dtype=np.float32)


def _require_bytes(needed: int, what: str) -> None:
    """Refuse before the machine runs out of memory, which nobody can catch."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else math.inf
    limit = min(_LARGEST_BYTES, physical / 2)
    if needed > limit:
        raise UnavailableError(f"{what} would take {needed / 2**30:.1f} GiB, more than {limit / 2**30:.1f}")


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")
