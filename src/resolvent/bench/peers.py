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

from resolvent.analysis.cost import cost
from resolvent.ops import mix
from resolvent.patterns import Pattern, Stage

Bound = Literal["loads", "matmul"]

_LARGEST_BYTES = 16 * 2**30
_PAPER_MATRICES = 8  # n × n matrices per head that forward and backward of `paper` hold at once


class UnavailableError(Exception):
    """A peer that cannot run here, with the reason."""


@dataclass(frozen=True)
class Case:
    """Something to time.

    `inputs` are what gradients are asked for, none if there is no backward pass. `peer` is None for the operator
    itself. `repeats` is how often `run` would have to run to do the whole problem. `work` is what a forward must do at
    least, in the unit of its bound: bytes of loads, or operations of matrix products.
    """

    name: str
    run: Callable[[], Any]
    inputs: tuple[Tensor, ...] = ()
    peer: str | None = None
    repeats: int = 1
    bound: Bound | None = None
    work: float = 0.0


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

    def operator(self, p: Pattern, backend: str) -> Callable[[], Tensor]:
        """The operator on a pattern."""
        a, b = (self.qa, self.ka), (self.qb, self.kb)
        return partial(mix, self.x, p, a=a, b=b, gate=self.gate, backend=backend)

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
    run = problem.operator(p, backend)
    if p.is_dense:  # matrix products: A, and B alike
        work = problem.attention_flops * ((p.direct == "all") + p.recurrent)
        return Case(str(p), run, problem.inputs, bound="matmul", work=work)
    return Case(str(p), run, problem.inputs, bound="loads", work=problem.loaded_bytes(p))


def _sdpa(problem: Problem) -> Case:
    tensors = (problem.qa, problem.ka, problem.x)
    run = partial(scaled_dot_product_attention, *tensors, is_causal=True)
    return Case("sdpa", run, tensors, peer="sdpa", bound="matmul", work=problem.attention_flops)


def _paper(problem: Problem) -> Case:
    batch, heads, n, _ = problem.shape
    require_bytes(_PAPER_MATRICES * 4 * batch * heads * n * n, f"its matrices of n × n for {batch * heads} heads")
    run = partial(_solve_dense, *problem.inputs)
    work = 2 * problem.attention_flops  # A, and B alike
    return Case("paper", run, problem.inputs, peer="paper", bound="matmul", work=work)


def _solve_dense(x: Tensor, qa: Tensor, ka: Tensor, qb: Tensor, kb: Tensor, gate: Tensor) -> Tensor:
    """Y = (I - B)^-1 A x on the dense pattern: full masked matrices and a triangular solve."""
    n, scale = x.shape[-2], x.shape[-1] ** -0.5
    reads = torch.ones(n, n, dtype=torch.bool, device=x.device).tril(-1)
    has_source = reads.any(1)
    g = (gate * has_source)[..., None]
    u = (qa @ ka.mT * scale).masked_fill(reads.mT, -torch.inf).softmax(-1) @ x
    weights = (qb @ kb.mT * scale).masked_fill(~(reads | ~has_source[:, None]), -torch.inf).softmax(-1) * reads
    left = torch.eye(n, dtype=x.dtype, device=x.device) - g * weights
    y: Tensor = torch.linalg.solve_triangular(left, (1 - g) * u, upper=False, unitriangular=True)
    return y


def _flex(problem: Problem, p: Pattern) -> Case:
    from torch._dynamo import config
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    n, tensors = problem.shape[-2], (problem.qa, problem.ka, problem.x)
    constants = tuple(t.detach() for t in tensors)
    require_bytes(8 * n * n, "finding the blocks of its mask, n × n numbers,")
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
            return Case(f"flex {p}", partial(run, *constants), peer="flex")
    return Case(f"flex {p}", partial(run, *tensors), tensors, "flex")


def a_mask(
    p: Pattern, n: int, device: torch.device | str = "cpu"
) -> Callable[[object, object, Tensor, Tensor], Tensor]:
    """The non-zeros of A as FlexAttention wants them: a function of head and pair, out of one array.

    It has n entries if A reads at fixed distances, or positions as long as they live; n × n if there is no such rule.
    """
    stage = p.stages[0]
    if stage.direct == "diagonal" or stage.is_shifted(n):
        near = torch.zeros(2 * n, dtype=torch.bool)
        near[n] = True
        near[n + torch.from_numpy(np.array(stage.offsets(n) if stage.direct == "all" else [], dtype=np.int64))] = True
        near = near.to(device)
        return lambda _batch, _head, i, j: near[i - j + n]
    if stage.contiguous_columns:
        life = torch.from_numpy(np.array(stage.lives(n), dtype=np.int64)).to(device)
        return lambda _batch, _head, i, j: (i >= j) & (i - j <= life[j])
    entries = torch.from_numpy(stage.mask(n, "a")).to(device)
    return lambda _batch, _head, i, j: entries[i, j]


def _scipy(problem: Problem, p: Pattern) -> Case:
    batch, heads, n, _ = problem.shape
    require_bytes(24 * sum(p.nonzeros(n)), "its sparse matrices")
    try:
        from scipy.sparse.linalg import spsolve_triangular
    except ImportError as error:
        raise UnavailableError("SciPy is missing: pip install scipy") from error
    a, left = sparse_matrices(p, n)
    x = problem.x.detach()[0, 0].numpy()

    def run() -> Any:
        if not p.recurrent:
            return a @ x
        return spsolve_triangular(left, a @ x, unit_diagonal=True, overwrite_A=True, overwrite_b=True)

    return Case(f"scipy {p}", run, peer="scipy", repeats=batch * heads)


def sparse_matrices(p: Pattern, n: int) -> tuple[Any, Any]:
    """A and I - B as SciPy's sparse matrices, row sums 1/2 each; as float32 and by columns, which SciPy solves best."""
    from scipy.sparse import csc_array, csr_array, eye_array

    a, b, eye = p.stages[0], p.stages[-1], eye_array(n, dtype=np.float32, format="csr")
    direct = (_random_reads(a, n) + eye / 2) if a.direct == "all" else eye / 2
    left = eye - _random_reads(b, n) if b.recurrent else eye
    return csr_array(direct, dtype=np.float32), csc_array(left, dtype=np.float32)


def _random_reads(stage: Stage, n: int) -> Any:
    """Weights on what a stage reads that sum to 1/2 in each row."""
    from scipy.sparse import csr_array

    rows = [stage.sources(i) for i in range(n)]
    sources, tokens = np.concatenate(rows), np.repeat(np.arange(n), [len(row) for row in rows])
    halves = np.random.default_rng(0).uniform(0.5, 1, len(sources)).astype(np.float32)
    sums = np.bincount(tokens, weights=halves, minlength=n).astype(np.float32)
    return csr_array((halves / sums[tokens] / 2, (tokens, sources)), shape=(n, n))


def require_bytes(needed: int, what: str) -> None:
    """Refuse before the machine runs out of memory, which nobody can catch."""
    limit = memory_limit()
    if needed > limit:
        raise UnavailableError(f"{what} would take {needed / 2**30:.1f} GiB, more than {limit / 2**30:.1f}")


def memory_limit() -> float:
    """Bytes that a benchmark may ask for."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else math.inf
    return min(_LARGEST_BYTES, physical / 2)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")
