"""Decoding by one compiled function for the whole model, where it is of the shape that this function knows.

It computes what the modules would, so it may take their place only where nobody looks: no hooks, no gradients, no
tracing, and the model, its modules and parameters of the very types that it knows. Everything is looked up anew for
each token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.modules import module as all_modules

from resolvent.coefficients.gates import ConstantGate, ScalarGate, TokenGate
from resolvent.coefficients.layer import HeadGroup, split_cache
from resolvent.coefficients.softmax import SoftmaxCoefficients
from resolvent.kernels import UNIT
from resolvent.mixer import Mixer
from resolvent.ops import Cache, Caches, DecodeCache
from resolvent.ops.cpu.stack import StackBlock, StackShape, Table, advance_stack, prepare_stack
from resolvent.ops.precision import autocast_enabled
from resolvent.rules.softmax import Softmax

if TYPE_CHECKING:
    from resolvent.model.language_model import Block, LanguageModel

_METHODS = ("forward", "at", "logits")  # which an object may have in place of its class's
_MOST_SEQUENCES = 16  # beyond, torch's matrix products are quicker


class _UnknownError(Exception):
    """Something that the compiled function does not know."""


def next_logits(
    model: LanguageModel, tokens: Tensor, cache: Caches, skipped: Sequence[nn.Module] = ()
) -> Tensor | None:
    """Logits (B, 1, vocab_size) after one more token of each sequence, (B, 1); None if modules must do it.

    `skipped` are modules around the model that would have taken part: nobody may look at them either.
    """
    if not _unobserved(tokens):
        return None
    given: list[Tensor] = []  # gates that are the same for every token, which must live until the end
    try:
        _check(model, model.embedding, *skipped)
        _check_types(model)
        shape = _shape(model)
        layers = zip(model.blocks, cache.values(), strict=True)
        blocks = [_block(block, own, shape, given) for block, own in layers]  # type: ignore[arg-type]
        around = {"embedding": _address(model.embedding, "weight"), **_norm("norm", model.norm, shape)}
    except _UnknownError:
        return None
    return advance_stack(tokens, blocks, around, shape)


def prepare(model: LanguageModel, device: torch.device | str | None) -> None:
    """Have the function compiled while a prompt is read, if it may serve."""
    weight = model.embedding.weight
    if torch.device(device or weight.device).type == "cpu" and weight.dtype == torch.float32:
        prepare_stack(model.mixers[0].layer.head_dim)


def _unobserved(tokens: Tensor) -> bool:
    """Whether nothing watches operations or modules, and the numbers are there to be read."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or autocast_enabled("cpu"):
        return False
    if all_modules._global_forward_hooks or all_modules._global_forward_pre_hooks:
        return False
    watched = torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack()
    plain = type(tokens) is Tensor and tokens.device.type == "cpu" and tokens.shape[1] == 1
    return plain and not watched and 0 < len(tokens) <= _MOST_SEQUENCES


def _check_types(model: LanguageModel) -> None:
    """Those that nobody has derived from: what a subclass does instead, the function does not know."""
    from resolvent.model.language_model import Block, LanguageModel

    exact = type(model) is LanguageModel and type(model.embedding) is nn.Embedding
    if not exact or model.embedding.max_norm is not None or any(type(block) is not Block for block in model.blocks):
        raise _UnknownError


def _shape(model: LanguageModel) -> StackShape:
    """Of the first block; the others are compared with it."""
    config, layer = model.config, model.mixers[0].layer
    if isinstance(layer.rope, str):
        raise _UnknownError
    shape = StackShape(
        config.dim,
        config.heads,
        layer.kv_heads,
        config.inner_dim,
        layer.head_dim,
        config.vocab_size,
        layer.rope,
        model.norm.eps,
    )
    if any(size % UNIT for size in (shape.dim, shape.inner_dim, shape.head_dim)):
        raise _UnknownError
    return shape


def _block(block: Block, cache: Cache, shape: StackShape, given: list[Tensor]) -> StackBlock:
    mixer = block.mixer
    coefficients = mixer.coefficients
    if type(mixer) is not Mixer or type(coefficients) is not SoftmaxCoefficients or mixer.convolution is not None:
        raise _UnknownError
    _check(mixer, coefficients, block)
    if block.dropout and block.training:
        raise _UnknownError
    layer = mixer.layer
    if type(layer.rule) is not Softmax or (layer.head_dim, layer.rope) != (shape.head_dim, shape.rope):
        raise _UnknownError
    if layer.backend not in ("auto", "cpu"):
        raise _UnknownError
    scores = coefficients.scores
    parameters = {
        **_norm("mixer_norm", block.norm_mixer, shape),
        **_linear("values", mixer.values),
        **(_linear("scores", scores) if scores is not None else {"scores": 0, "scores_bias": 0}),
        "score_rows": 0 if scores is None else scores.out_features,
        **_gate(coefficients.gate, coefficients.gates, given),
        **_linear("output", mixer.output),
        **_norm("mlp_norm", block.norm_mlp, shape),
        **_linear("mlp_in", block.mlp_in),
        **_linear("mlp_out", block.mlp_out),
    }
    caches = split_cache(cache, len(coefficients.groups))
    return StackBlock(parameters, _groups(coefficients.groups, caches, shape))


def _groups(
    groups: tuple[HeadGroup, ...], caches: Sequence[Cache | None], shape: StackShape
) -> list[tuple[Table, DecodeCache]]:
    """Which heads read which cache, and where their rows lie in the order in which a block projects them."""
    listed: list[tuple[Table, DecodeCache]] = []
    row, d = shape.kv_heads * shape.head_dim, shape.head_dim
    for group, cache in zip(groups, caches, strict=True):
        if not isinstance(cache, DecodeCache) or any(
            t.dtype != torch.float32 or not t.is_contiguous() or t.requires_grad for t in cache.tensors.values()
        ):
            raise _UnknownError
        starts = dict.fromkeys(("qa", "ka", "qb", "kb"), 0)
        for side, needed in (("a", group.needs.a), ("b", group.needs.b)):
            if needed:
                starts |= {f"q{side}": row, f"k{side}": row + group.count * d}
                row += (group.count + group.kv_count) * d
        listed.append((starts | {
            "first_head": group.heads.start, "heads": group.count, "first_shared": group.shared.start,
            "shared": group.kv_count, "gate": group.gates.start, "direct": int(cache.pattern.direct == "all"),
            "recurrent": int(cache.pattern.recurrent), "scored": int("keys_b" in cache.tensors),
        }, cache))  # fmt: skip
    return listed


def _gate(gate: nn.Module | None, heads: int, given: list[Tensor]) -> dict[str, int]:
    """The gate's own parameters, or the numbers that it gives whatever the token: these are added to `given`."""
    table = {"gates": heads, "gate": 0, "gate_step": 0, "gate_log_rate": 0}
    if gate is None:
        return table
    _check(gate)
    if type(gate) is TokenGate:
        names = {"gate": "weight", "gate_step": "step", "gate_log_rate": "log_rate"}
        return table | {name: _address(gate, own) for name, own in names.items()}
    if type(gate) not in (ScalarGate, ConstantGate):
        raise _UnknownError
    given.append(gate(torch.empty(1, 1, 0, dtype=torch.float32, device="cpu"))[0, :, 0].float().contiguous())
    return table | {"gate_step": given[-1].data_ptr()}


def _linear(name: str, module: nn.Module) -> dict[str, int]:
    if type(module) is not nn.Linear:
        raise _UnknownError
    _check(module)
    return {name: _address(module, "weight"), f"{name}_bias": _address(module, "bias")}


def _norm(name: str, module: nn.Module, shape: StackShape) -> dict[str, int]:
    if type(module) is not nn.LayerNorm or module.eps != shape.eps:
        raise _UnknownError
    _check(module)
    return {name: _address(module, "weight"), f"{name}_bias": _address(module, "bias")}


def _check(*modules: nn.Module) -> None:
    """Nobody has hooked onto them or replaced what they do."""
    for module in modules:
        if module._forward_hooks or module._forward_pre_hooks or not module.__dict__.keys().isdisjoint(_METHODS):
            raise _UnknownError


def _address(module: nn.Module, name: str) -> int:
    """Of a parameter; 0 for None."""
    parameter = module._parameters.get(name)
    if parameter is None:
        if name in module._parameters:
            return 0
        raise _UnknownError  # parametrized, pruned, or something else that makes it when asked
    if type(parameter) is not nn.Parameter or parameter.dtype != torch.float32 or not parameter.is_contiguous():
        raise _UnknownError
    return parameter.data_ptr()
