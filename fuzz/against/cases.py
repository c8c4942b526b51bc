"""All cases by name, and what each computes: tensors and figures, from inputs that follow from seeds alone."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, product
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fuzz.against import adapters

Values = dict[str, Any]  # tensors and figures, nested in dictionaries and lists
Case = tuple[str, Callable[[], Values]]
Tensors = dict[str, Tensor]
Ways = Mapping[str, Values]  # options by name

STRUCTURES = ["attention", "local:8", "first-order", "order:8", "dense", "exponential", "exponential+cache",
              "quadratic", "quadratic+cache"]  # fmt: skip
PAIRS = ["attention/first-order", "local:8/exponential+cache", "exponential/order:8"]
PATTERNS = [*STRUCTURES, "stride:k**3+1+cache", "stride:3*k+2+cache", "offsets:2,5", "offsets:3+diagonal", "local:1",
            "exponential+attention", "quadratic+diagonal+cache", "fenwick", "binomial:4", "binomial:5,lazy",
            *adapters.UNSPELLED, *PAIRS]  # fmt: skip
PUBLISHED = ["sparse-transformer:4", "longformer:4,2", "bigbird:4,2,2", "logsparse:2", "logsparse:2+cache",
             "dilated:3,2", "butterfly", "two-hop"]  # fmt: skip
FEW = ["attention", "order:8", "dense", "exponential+cache", "quadratic", "fenwick", "table", PAIRS[1]]  # of each kind
FEEDBACK = [name for name in STRUCTURES if name not in ("attention", "local:8")]
DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

FIRST_ORDER = ["mamba1:state=3", "mamba2:state=3", "mamba2:state=2,groups=3", "mamba2:conv=4", "linear:form=griffin",
               "mamba1:state=3,input=complement,skip=true", "mamba2:state=2,input=complement,skip=true", "linear",
               "mamba1:state=1,vectors=ones", "mamba2:state=1,input=complement,vectors=ones",
               "mamba1:conv=3,state=2", "softmax:conv=4"]  # fmt: skip
RULES = {rule: ["first-order"] for rule in FIRST_ORDER}
EVERYWHERE = ["softmax", "softmax:gate=mamba", "softmax:gate=0.4", "softmax:gate=scalar@0.3", "distance",
              "distance:shape=decay", "distance:shape=constant"]  # fmt: skip
RULES |= dict.fromkeys(EVERYWHERE, STRUCTURES) | dict.fromkeys(["joint", "tied", "tied:blend=free"], FEEDBACK)
RULES["low-rank:rank=5"] = [name for name in STRUCTURES if name not in ("local:8", "first-order")]
LAYERS = [f"{name} {rule}" for rule, names in RULES.items() for name in names]
LAYERS += [f"{name} softmax" for name in PATTERNS[len(STRUCTURES) :]] + [f"{name} joint" for name in (*PAIRS, "table")]
LAYERS += ["dense softmax:conv=3", "attention low-rank:conv=2,rank=5", "table distance",
           "exponential+cache softmax:conv=1", "attention/first-order low-rank:rank=5", "fenwick tied",
           "local:8/exponential+cache distance:shape=decay", "exponential/order:8 softmax:conv=3",
           "binomial:4 low-rank:rank=5"]  # fmt: skip


def cases() -> Iterator[Case]:
    yield "versions", lambda: {"torch": torch.__version__, "numpy": np.__version__}
    yield from _grid("mix", PATTERNS, _in_dtypes(MIX), _mix)
    yield from _grid("mix", FEEDBACK, _in_dtypes(TIED), _mix)
    yield from _grid("mix", ["attention", "dense"], _in_dtypes(DENSE), _mix)
    yield from _grid("solve", PATTERNS, _in_dtypes(SOLVE, "float64", "float32"), _solve)
    yield from _grid("decode", PATTERNS, _in_dtypes(DECODE), _decode)
    yield from _grid("layer", LAYERS, _in_dtypes({"whole": {}}), _layer)
    yield from _grid("layer", [f"{name} softmax" for name in FEW], _in_dtypes(LAYER), _layer)
    mixed = "local:8|exponential+cache|exponential+cache|dense"
    yield from _grid("layer", [f"{mixed} softmax", f"{mixed} distance"], _in_dtypes({"heads": {"heads": 4}}), _layer)
    yield from _grid("model", MODELS, _in_dtypes({"whole": {}}, "float64", "float32", "bfloat16"), _model)
    yield from _grid("generate", MODELS, _in_dtypes(GENERATE, "float64", "float32"), _generate)
    known = [*PATTERNS, *PUBLISHED]
    yield from _grid("hops", known, {"96": {"n": 96}}, adapters.hops)
    lengths = {"37": {"n": 37}, "256": {"n": 256}}
    yield from _grid("analyze", [name for name in known if name != "endless"], lengths, adapters.analyze)
    yield from _grid(
        "analyze", ["exponential+cache"], {"layer": {"n": 100, "heads": 4, "kv_heads": 2}}, adapters.analyze
    )
    yield from _grid("congestion", known, {"quick": {"n": 64, "effort": "quick"}}, adapters.congestion)
    yield from _grid("cost", RULES, {"300": {"n": 300}}, lambda rule, n: adapters.cost(RULES[rule][-1], rule, n))
    yield from _grid("compare", ["structures"], {"64": {"n": 64}, "1024": {"n": 1024}},
                     lambda _, n: adapters.compare(STRUCTURES, n))  # fmt: skip
    yield from _grid("design", DESIGN, {"budget": {}}, lambda name: adapters.design(**DESIGN[name]))


def _grid(surface: str, names: Iterable[str], ways: Ways, run: Callable[..., Values]) -> Iterator[Case]:
    for name, (way, options) in product(names, ways.items()):
        yield f"{surface}/{name}/{way}", partial(run, name, **options)


def _in_dtypes(ways: Ways, *dtypes: str) -> Ways:
    both = product(ways.items(), dtypes or DTYPES)
    return {f"{way}/{dtype}": {"dtype": DTYPES[dtype], **options} for (way, options), dtype in both}


def _normal(seed: str, *shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(zlib.crc32(seed.encode())))


def _inputs(dtype: torch.dtype, batch: int, heads: int, shared: int, n: int, dim: int, key_dim: int) -> Tensors:
    """Heads of x and keys are shared."""
    sizes = {"x": (shared, dim), "qa": (heads, key_dim), "ka": (shared, key_dim), "qb": (heads, key_dim),
             "kb": (shared, key_dim)}  # fmt: skip
    tensors = {name: _normal(name, batch, count, n, width) for name, (count, width) in sizes.items()}
    tensors["gate"] = _normal("gate", batch, heads, n).sigmoid()
    return {name: t.to(dtype) for name, t in tensors.items()}


def _differentiated(run: Callable[[Tensors], Tensor], tensors: Tensors, *, twice: bool = False) -> Values:
    """The output, and the gradient of a random functional of it for every input; `twice`: of these gradients, too."""
    leaves = {name: t.detach().clone().requires_grad_() for name, t in tensors.items()}
    y = run(leaves)
    found = _gradients((y * _normal("weights", *y.shape).to(y.dtype)).sum(), leaves, create_graph=twice)
    if twice:
        total = sum((d * _normal(name, *d.shape).to(d.dtype)).sum() for name, d in found.items())
        found |= {f"d{name}": d for name, d in _gradients(total, leaves).items()}
    return {"y": y, **found}


def _gradients(total: Any, leaves: Tensors, **options: bool) -> Tensors:
    found = torch.autograd.grad(total, [*leaves.values()], materialize_grads=True, allow_unused=True, **options)
    return {f"d{name}": d for name, d in zip(leaves, found, strict=True)}


SMALL, WIDE = (2, 3, 3, 40, 5, 7), (1, 4, 2, 150, 16, 16)
PACKED, PADDED = {"cu_seqlens": [0, 7, 7, 8, 31, 40]}, {"start": [0, 13]}
JOINT, TORCH = {"normalize": "joint"}, {"backend": "torch"}
MIX: Ways = {
    "auto": {},
    "joint": JOINT,
    "cpu": {"backend": "cpu"},
    "torch": TORCH,
    "torch joint": TORCH | JOINT,
    "reference": {"backend": "reference", "sizes": (1, 2, 2, 12, 3, 4)},
    "wide": {"sizes": WIDE},
    "wide joint": {"sizes": WIDE} | JOINT,
    "long": {"sizes": (1, 2, 1, 600, 16, 16)},
    "one token": {"sizes": (2, 3, 3, 1, 5, 7)},
    "scale": {"scale": 0.3},
    "twice": {"twice": True},
    "two threads": {"sizes": (1, 1, 1, 150, 16, 16), "threads": 2},
    "packed": PACKED,
    "packed joint": PACKED | JOINT,
    "padded": PADDED,
    "padded joint": PADDED | JOINT,
}
TIED: Ways = {"tied": {"tie": lambda gate: gate[:1, :, :1] / 3}, "tied by token": {"tie": lambda gate: gate / 2}}
DENSE: Ways = {"dense": {"backend": "dense"}, "dense joint": {"backend": "dense"} | JOINT}


def _mix(
    name: str,
    dtype: torch.dtype,
    sizes: Any = SMALL,
    tie: Any = None,
    twice: bool = False,
    threads: int = 1,
    **options: Any,
) -> Values:
    tensors = _inputs(dtype, *sizes)
    if tie is not None:
        tensors["tied"] = tie(tensors["gate"])
    torch.set_num_threads(threads)
    values = _differentiated(lambda t: adapters.mix(t, name, **options), tensors, twice=twice)
    torch.set_num_threads(1)
    return values


SOLVE: Ways = {"cpu": {"backend": "cpu"}, "torch": TORCH, "reference": {"backend": "reference", "n": 12}}


def _solve(name: str, dtype: torch.dtype, backend: str, n: int = 40) -> Values:
    a, b = (int(mask.sum(1).max()) for mask in adapters.masks(name, n))
    tensors = {"x": _normal("x", 2, 3, n, 5), "alpha": _normal("alpha", 2, 3, n, a)}
    if b:
        tensors["beta"] = _normal("beta", 2, 3, n, b) / (1 + b)
    return _differentiated(lambda t: adapters.solve(t, name, backend), {k: t.to(dtype) for k, t in tensors.items()})


DECODE: Ways = {
    "tokens": {"parts": [1] * 24},
    "tokens joint": {"parts": [1] * 24} | JOINT,
    "chunks": {"parts": [9, 1, 1, 13, 1], "max_tokens": 64},
    "chunks joint": {"parts": [9, 1, 1, 13, 1], "max_tokens": 64} | JOINT,
    "torch": {"parts": [5, 1, 1, 4]} | TORCH,
    "padded": {"parts": [9, 1, 1, 4], "start": [0, 6]},
    "grouped": {"parts": [70, *[1] * 9], "heads": (4, 2)},
    "odd widths": {"parts": [4, *[1] * 9], "widths": (6, 8)},  # which the kernel for one token leaves to others
    "gradients": {"parts": [9, 1, 1, 4], "graph": True},
    "changes": {"parts": [1] * 9, "changes": [("snapshot",), ("reorder", [1, 0]), ("select", [1, 1]), ("clone",),
                                              ("rewind", [1, 0])]},
}  # fmt: skip


def _decode(name: str, dtype: torch.dtype, parts: list[int], heads: tuple[int, int] = (3, 3), widths: Any = (16, 16),
            start: Any = None, changes: Sequence[Any] = (), graph: bool = False, **options: Any) -> Values:  # fmt: skip
    sizes: list[int] = []

    def run(t: Tensors) -> Tensor:
        decoder, outputs = adapters.Decoder(t, name, **options), []
        for i, piece in enumerate(zip(*(each.split(parts, 2) for each in t.values()), strict=True)):
            outputs.append(decoder.extend(dict(zip(t, piece, strict=True)), start=None if i else start))
            if i < len(changes):
                decoder.change(*changes[i])
        sizes.append(decoder.nbytes)
        return torch.cat(outputs, 2)

    tensors = _inputs(dtype, 2, *heads, sum(parts), *widths)
    with torch.set_grad_enabled(graph):
        values = _differentiated(run, tensors) if graph else {"y": run(tensors)}
    return values | {"nbytes": sizes}


def _filled(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Parameters by their names, large enough to matter, whatever the initial ones were."""
    with torch.no_grad():
        for name, p in module.named_parameters():
            p.copy_(_normal(name, *p.shape) * (0.5 if p.ndim < 2 else p.shape[-1] ** -0.5))
    return module.to(dtype)


@torch.no_grad()
def _in_parts(module: nn.Module, x: Tensor) -> Values:
    n = x.shape[1]
    return {
        "packed": adapters.whole(module, x, cuts=[0, *accumulate([7, 0, 1, n - 8])]),
        "padded": adapters.whole(module, x, starts=[0, 9]),
        "tokens": adapters.in_chunks(module, x.split(1, 1)),
        "chunks": adapters.in_chunks(module, x.split([5, 1, n - 6], 1)),
        "padded chunks": adapters.in_chunks(module, x.split([11, 1, n - 12], 1), starts=[0, 6]),
    }


LAYER: Ways = {
    "grouped": {"heads": 4, "kv_heads": 2},
    "no bias": {"bias": False},
    "no positions": {"rope": None},
    "base": {"rope": 500.0},
    "linear": {"rope": "linear:factor=4"},
    "ntk": {"rope": "ntk:factor=8"},
    "capped": {"rope": "capped:within=5"},
    "narrow": {"head_dim": 6},
    "wide": {"heads": 2, "head_dim": 64},
    "torch": TORCH,
}


def _layer(name: str, dtype: torch.dtype, heads: int = 3, **options: Any) -> Values:
    """Initial parameters, output, all gradients, sequences in parts, under autocast, A and B written out."""
    patterns, _, rule = name.rpartition(" ")
    mixer = adapters.layer(patterns.split("|"), rule, 16 * heads, heads, **options)
    values: Values = {"initial": {name: p.detach().clone() for name, p in mixer.named_parameters()}}
    mixer, x = _filled(mixer, dtype), _normal("x", 2, 21, 16 * heads).to(dtype)

    def run(t: Tensors) -> Tensor:
        return torch.func.functional_call(mixer, {name: t[name] for name in t if name != "x"}, (t["x"],))

    values |= _differentiated(run, {"x": x, **dict(mixer.named_parameters())}) | _in_parts(mixer, x)
    if dtype == torch.float32:
        with torch.autocast("cpu", torch.bfloat16):
            values["autocast"] = _in_parts(mixer, x)
    if dtype == torch.float64 and not rule.startswith(("mamba", "linear")):
        values["matrices"] = adapters.layer_matrices(mixer, x)
    return values


MODELS: Ways = {name: {"pattern": name} for name in (*FEW, "first-order", "quadratic+cache")} | {
    "layers": {"pattern": ["local:4", "exponential+cache"]},
    "heads": {"pattern": [["local:4", "local:4", "exponential", "quadratic+cache"], "dense"]},
    "shared keys": {"pattern": "exponential+cache", "kv_heads": 2},
    "no biases": {"pattern": "exponential+cache", "bias": False},
    "no positions": {"pattern": "quadratic+cache", "rope": None},
    "capped": {"pattern": "attention", "rope": "capped:within=7"},
    "one gate per head": {"pattern": "order:8", "rule": "softmax:gate=scalar@0.3"},
    "constant gate": {"pattern": "order:8", "rule": "softmax:gate=0.4"},
    "joint": {"pattern": "exponential+cache", "rule": "joint"},
    "tied": {"pattern": "exponential", "rule": "tied"},
    "mamba": {"pattern": "first-order", "rule": ["mamba1:state=3", "mamba2:conv=4"]},
    "padded vocabulary": {"pattern": "exponential+cache", "vocab_size": 37, "vocab_multiple": 16},
    "wide heads": {"pattern": "exponential+cache", "heads": 1},
}


def _made(name: str) -> nn.Module:
    return adapters.model(**{"vocab_size": 64, "layers": 2, "dim": 64, "heads": 4, **MODELS[name]})


def _model(name: str, dtype: torch.dtype) -> Values:
    """Initial parameters, logits, loss and its gradients, in parts; with a hook, for which nothing may be fused."""
    lm, tokens = _made(name), (_normal("tokens", 2, 40) * 1000).long() % 37
    values: Values = {"initial": {name: p.detach().clone() for name, p in lm.named_parameters()}}
    loss = adapters.loss(_filled(lm, dtype), tokens[:, :-1], tokens[:, 1:])
    values |= {"loss": loss, "logits": adapters.whole(lm, tokens)} | _gradients(loss, dict(lm.named_parameters()))
    values |= _in_parts(lm, tokens)
    with torch.no_grad():
        hook = lm.get_submodule("blocks.0").register_forward_hook(lambda *_: None)
        values["watched"] = adapters.in_chunks(lm, tokens.split([7, *[1] * 9, 24], 1))
        hook.remove()
    if dtype == torch.float64 and name != "mamba":
        values["diagnosis"] = adapters.diagnose(lm, tokens)
    return values


GENERATE: Ways = {
    "greedy": {"temperature": 0},
    "sampled": {"seed": 3},
    "seeds": {"seed": [5, 5, 9], "temperature": 0.7},
    "top": {"top_k": 9, "top_p": 0.8, "seed": 1},
    "stop": {"stop": [7, 20, 33], "seed": 2},
}


def _generate(name: str, dtype: torch.dtype, **options: Any) -> Values:
    prompts = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10, 11]]
    return {"tokens": adapters.generate(_filled(_made(name), dtype), prompts, 24, **options)}


DESIGN: Ways = {
    "slots": {"n": 512, "slots": 8, "heads": 1},
    "heads": {"n": 256, "slots": 6, "heads": 2},
    "layers": {"n": 128, "reads": 4, "heads": 1, "layers": 2},
    "kib": {"n": 256, "kib": 16, "heads": 2, "head_dim": 16},
    "congestion": {"n": 256, "congestion": 12, "heads": 1, "order": ["slots"]},
    "weights": {"n": 200, "madds": 4000, "heads": 1, "weights": {"max_hops": 1, "slots": 2}},
}
