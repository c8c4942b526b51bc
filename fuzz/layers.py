"""Layers with every rule against their definition by matrices, and models: decoding against the full pass."""

from __future__ import annotations

import torch
from torch import Tensor

from fuzz.case import Case, Difference
from fuzz.compare import Exact, exactly
from fuzz.patterns import draw_pattern
from resolvent.mixer import Mixer
from resolvent.model import LanguageModel, ModelConfig
from resolvent.rules import rule as rule_of
from tests.mixers import RULES, expected, make
from tests.operator_cases import DEEP


def mixer(case: Case) -> None:
    """Definition and gradients; packed, padded and decoded in parts."""
    layer = _draw_mixer(case)
    n, batch = case.choose([1, 2, 5, 17, 30, 66]), case.integer(1, 3)
    u = case.normal((batch, n, layer.layer.dim))
    case.say(batch=batch, n=n)
    parameters = dict(layer.named_parameters())
    weights = case.normal((batch, n, layer.layer.dim))
    exact = exactly(case, lambda t: expected(layer, t["u"]), {"u": u}, weights, ["u"])
    if exact.useless:
        case.count("skipped")
        return
    leaf = u.clone().requires_grad_()
    y = layer(leaf)
    exact.check("y", y, u.dtype, "layer", DEEP)
    mine = torch.autograd.grad(y, [leaf, *parameters.values()], weights, materialize_grads=True, allow_unused=True)
    exact.check("du", mine[0], u.dtype, "layer", DEEP)
    theirs = torch.autograd.grad(
        expected(layer, leaf), list(parameters.values()), weights, materialize_grads=True, allow_unused=True
    )
    for name, found, wished in zip(parameters, mine[1:], theirs, strict=True):
        _close(found, wished, f"d{name}", exact.sensitivity["du"] + exact.sensitivity["y"])
    case.count("gradients", 1 + len(parameters))
    with torch.no_grad():
        _check_sequences(case, layer, u, exact)


def _draw_mixer(case: Case) -> Mixer:
    heads = case.choose([1, 2, 3, 4])
    kv_heads = case.choose([h for h in range(1, heads + 1) if heads % h == 0])
    head_dim = case.choose([2, 4, 8, 10])
    while True:
        rule = case.choose(RULES)
        drawn = [draw_pattern(case) for _ in range(heads)] if case.chance(0.2) else [draw_pattern(case)] * heads
        same = len({d.pattern for d in drawn}) == 1
        fits = all(rule_of(rule).refusal(d.pattern) is None for d in drawn)
        if fits and (same or rule_of(rule).name in ("softmax", "distance")):
            break
    if not same or rule_of(rule).scan or "groups=3" in rule:
        kv_heads = heads
    if "groups=3" in rule and heads % 3:
        heads = kv_heads = 3
    patterns = [d.pattern for d in drawn]
    spec = patterns[0] if same else patterns
    case.say(pattern=spec, rule=rule, heads=heads, kv_heads=kv_heads, head_dim=head_dim)
    return make(spec, rule, seed=case.integer(0, 1 << 30), dim=heads * head_dim, heads=heads, kv_heads=kv_heads)


def _check_sequences(case: Case, layer: Mixer, u: Tensor, exact: Exact) -> None:
    n, batch, sensitivity = u.shape[1], u.shape[0], exact.sensitivity["y"]
    exact.check("y", _in_parts(case, layer, u), u.dtype, "extend", DEEP)
    starts = [case.integer(0, n) for _ in range(batch)]
    spoiled = u.clone()
    for b, start in enumerate(starts):
        spoiled[b, :start] = torch.nan
    padded = layer(spoiled, start=starts)
    for b, start in enumerate(starts):
        if start < n:
            _close(padded[b, start:], expected(layer, u[b : b + 1, start:])[0], f"padded by {start}", sensitivity)
    sizes = case.splits(n)
    cuts = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    packed = layer(u, cu_seqlens=cuts)
    alone = [expected(layer, part) for part in u.split([size for size in sizes if size], 1)]
    _close(packed, torch.cat(alone, 1), f"packed at {cuts}", sensitivity)


def _in_parts(case: Case, model: Mixer | LanguageModel, u: Tensor) -> Tensor:
    """By `extend` with a cache, which is made before or on the way, and is copied now and then."""
    cache = model.make_cache(*u.shape[:2]) if case.chance(0.5) else None
    outputs = []
    for part in u.split([size for size in case.splits(u.shape[1]) if size], 1):
        y, cache = model.extend(part, cache)
        outputs.append(y)
        if case.chance(0.3):
            cache = cache.clone()
        case.count("decode steps")
    return torch.cat(outputs, 1)


def model(case: Case) -> None:
    """`generate` gives what the full pass of prompt and continuation would have given, for each prompt alone."""
    config = _draw_config(case)
    lm = LanguageModel.seeded(config, case.integer(0, 1 << 30)).double()
    texts = [
        [case.integer(0, config.vocab_size - 1) for _ in range(case.integer(1, 40))] for _ in range(case.integer(1, 3))
    ]
    tokens, temperature = case.integer(1, 12), case.choose([0.0, 1.0])
    case.say(config=config, lengths=[len(text) for text in texts], tokens=tokens, temperature=temperature)
    made = lm.generate(texts, tokens, temperature=temperature, seed=3)
    with torch.no_grad():
        for b, (text, new) in enumerate(zip(texts, made, strict=True)):
            both = torch.tensor([text + new])
            logits = lm(both)
            _close(_in_parts(case, lm, both), logits, "extend", 1.0)
            ahead = logits[0, len(text) - 1 : -1]
            if temperature == 0 and not bool(
                (ahead.gather(1, torch.tensor(new)[:, None])[:, 0] >= ahead.amax(1) - 1e-6).all()
            ):
                raise Difference(f"prompt {b}: {new} are not the likeliest tokens.")
            alone = lm.generate([text], tokens, temperature=temperature, seed=[3 + b])[0]
            if alone != new:
                raise Difference(f"prompt {b} alone gives {alone}, among others {new}.")


def _draw_config(case: Case) -> ModelConfig:
    layers, heads = case.integer(1, 3), case.choose([1, 2])
    pairs = []
    while len(pairs) < layers:
        drawn, rule = draw_pattern(case), case.choose(RULES)
        if rule_of(rule).refusal(drawn.pattern) is None and "groups=3" not in rule:
            pairs.append((drawn.given, rule))
    return ModelConfig(
        vocab_size=case.integer(2, 40), layers=layers, heads=heads, dim=heads * case.choose([2, 4, 8]),
        pattern=[given for given, _ in pairs], rule=[rule for _, rule in pairs], init_std=0.3,
        rope=case.choose([10_000.0, 100.0, None]), bias=case.chance(0.5), vocab_multiple=case.choose([1, 8]),
    )  # fmt: skip


def _close(found: Tensor, wished: Tensor, name: str, sensitivity: float) -> None:
    Exact({name: wished.detach().double()}, {name: sensitivity}).check(name, found, found.dtype, "layer", DEEP)
