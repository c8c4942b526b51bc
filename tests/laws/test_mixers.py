"""Layers: the definition and gradients of every structure with every rule that fits it; the other laws on a cover."""

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

import resolvent as rv
from resolvent.coefficients import positions_of
from resolvent.mixer import Mixer
from resolvent.ops import Cache
from resolvent.rules import rule as rule_of
from tests.mixers import CASES, COVER, PLAIN, convolved, expected, make
from tests.operator_cases import DEEP, TABLE, TOLERANCE, Spec, assert_close

N = 21
cases = pytest.mark.parametrize(("spec", "rule"), CASES, ids=[f"{s}/{r}" for s, r in CASES])
cover = pytest.mark.parametrize(("spec", "rule"), COVER, ids=[f"{s}/{r}" for s, r in COVER])
KINDS = [("exponential+cache", "softmax:conv=3"), ("attention", "low-rank:rank=5"), ("first-order", "mamba2:state=3"),
         ("local:8/order:3", "softmax")]  # fmt: skip
kinds = pytest.mark.parametrize(("spec", "rule"), KINDS)  # of layers: slots, a state beside them, a state, two caches


def batch(n: int = N, b: int = 2, dim: int = 24) -> Tensor:
    return torch.randn(b, n, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(n))


def gradients(y: Tensor, mixer: Mixer, u: Tensor) -> list[Tensor]:
    weight = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(5))
    wanted = [u, *mixer.parameters()]
    return list(torch.autograd.grad((y * weight).sum(), wanted, materialize_grads=True))


@cases
def test_definition_and_gradients(spec: Spec, rule: str) -> None:
    """Of inputs and of every parameter, each of which matters."""
    mixer = make(spec, rule)
    for n in (1, N):
        u = batch(n).requires_grad_()
        y, want = mixer(u), expected(mixer, u)
        assert_close(y, want, factor=DEEP)
        found = gradients(y, mixer, u)
        for mine, wished in zip(found, gradients(want, mixer, u), strict=True):
            assert_close(mine, wished, factor=DEEP)
    for (name, _), gradient in zip(mixer.named_parameters(), found[1:], strict=True):
        assert gradient.abs().max() > 1e-8, name  # far above what rounding leaves of a zero


@pytest.mark.parametrize(("spec", "rule"), [case for case in COVER if not rule_of(case[1]).scan])
def test_weights_written_out(spec: Spec, rule: str) -> None:
    """What `weights` shows is what the layer does: on values, T = (I - B)^-1 A. (In scans they act on states.)"""
    mixer, u = make(spec, rule), batch()
    read = convolved(u, mixer.convolution.weight) if rule_of(rule).conv else u
    x = mixer.values(read).view(*u.shape[:2], 3, 8).transpose(1, 2)
    mixed = torch.cat([w.transfer() @ x for w in mixer.weights(u)], 1)
    y = mixer.output(mixed.transpose(1, 2).flatten(2))
    assert_close(y, mixer(u), factor=DEEP)


CONVEX = [(s, r) for s, r in COVER if rule_of(r).name in ("softmax", "joint", "tied") and r != "tied:blend=free"]


@pytest.mark.parametrize(("spec", "rule"), CONVEX)
def test_rows_are_convex_combinations(spec: Spec, rule: str) -> None:
    """However large the parameters, A and B are not negative, rows of A + B sum to one, and |y| ≤ max |x|."""
    mixer, u = make(spec, rule), batch(40)
    with torch.no_grad():
        for p in mixer.coefficients.parameters():
            p.mul_(30)
        x = torch.randn(2, 3, 40, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        y = mixer.coefficients(u, x, positions_of(2, 40, u.device))
        rounding = DEEP * TOLERANCE[torch.float64]
        assert y.abs().max() <= x.abs().max() * (1 + rounding)
        for each in mixer.weights(u):
            a, b = each.matrices()
            assert min(a.min(), b.min()) >= -rounding
            assert_close((a + b).sum(-1), torch.ones_like(a[..., 0]), factor=DEEP)


def test_a_free_delta_is_not_bounded() -> None:
    """Why it is not the default: rows of A + B sum to one, but A has negative entries."""
    mixer, u = make("dense", "tied:blend=free,gate=0.9"), batch(40)
    with torch.no_grad():
        mixer.coefficients.delta.fill_(5.0)
        x = torch.randn(2, 3, 40, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        y = mixer.coefficients(u, x, positions_of(2, 40, u.device))
        assert y.abs().max() > 3 * x.abs().max()


@cover
def test_splits(spec: Spec, rule: str) -> None:
    mixer, u = make(spec, rule), batch(24)
    want = mixer(u)
    chance = np.random.default_rng(len(str(spec)) * 31 + len(rule))
    for splits in ([1] * 24, *(chance.multinomial(24, [1 / 4] * 4).tolist() for _ in range(2))):
        cache, parts = None, []
        for part in u.split([size for size in splits if size], 1):
            y, cache = mixer.extend(part, cache)
            parts.append(y)
        assert_close(torch.cat(parts, 1), want, factor=DEEP)
        assert cache is not None
        assert cache.positions.tolist() == [24, 24]


@cover
def test_packed(spec: Spec, rule: str) -> None:
    mixer, lengths = make(spec, rule), [7, 0, 1, 12, 3]
    u = batch(sum(lengths), 1)
    cuts = [0, *itertools.accumulate(lengths)]
    packed = mixer(u, cu_seqlens=cuts)
    alone = [mixer(part) for part in u.split([length for length in lengths if length], 1)]
    assert_close(packed, torch.cat(alone, 1), factor=DEEP)


@cover
def test_padded(spec: Spec, rule: str) -> None:
    """With NaN in the padding: outputs of each sequence alone, in one pass and from a cache, and equal gradients of
    the input and of every parameter.
    """
    mixer, starts = make(spec, rule), [0, 9, 20]
    u, more = batch(N, 3).requires_grad_(), batch(2, 3)
    inside = torch.arange(N) >= torch.tensor(starts)[:, None]
    spoiled = torch.where(inside[..., None], u, torch.nan).detach().requires_grad_()
    y = mixer(spoiled, start=starts)
    exact = torch.cat([pad(mixer(u[b : b + 1, s:]), (0, 0, s, 0)) for b, s in enumerate(starts)])
    assert y.isfinite().all()
    assert_close(y[inside], exact[inside], factor=DEEP)
    kept = inside[..., None].double()
    for mine, wished in zip(gradients(y * kept, mixer, spoiled), gradients(exact * kept, mixer, u), strict=True):
        assert_close(mine, wished, factor=DEEP)
    for sizes in ([N], [12, 9]):  # two sequences are padded in the first chunk only, one in both
        cache, parts, first = None, [], 0
        for part in spoiled.detach().split(sizes, 1):
            start = [min(max(s - first, 0), part.shape[1]) for s in starts]
            out, cache = mixer.extend(part, cache, start=start)
            parts.append(out)
            first += part.shape[1]
        assert_close(torch.cat(parts, 1)[inside], exact[inside], factor=DEEP)
    after, cache = mixer.extend(more, cache)
    for b, start in enumerate(starts):
        alone = mixer(torch.cat([u[b : b + 1, start:], more[b : b + 1]], 1))[0]
        assert_close(after[b], alone[-2:], factor=DEEP)
    assert cache.positions.tolist() == [N + 2 - start for start in starts]


@cover
def test_left_padding_changes_no_past(spec: Spec, rule: str) -> None:
    """A second chunk may be padded, too: what the cache holds does not fade meanwhile."""
    mixer, u = make(spec, rule), batch(12)
    _, cache = mixer.extend(u[:, :5])
    y, cache = mixer.extend(torch.cat([u[:, :3], u[:, 5:]], 1), cache, start=[3, 3])
    assert_close(y[:, 3:], mixer(u)[:, 5:], factor=DEEP)


@cover
def test_half_precision(spec: Spec, rule: str) -> None:
    mixer, u = make(spec, rule).float(), batch().float()
    want = mixer(u)
    with torch.autocast("cpu", torch.bfloat16):
        y = mixer(u)
        extended, cache = mixer.extend(u[:, :9])
        rest, _ = mixer.extend(u[:, 9:], cache)
    for found in (y, torch.cat([extended, rest], 1)):
        assert found.dtype == torch.bfloat16
        assert found.isfinite().all()
        assert (found.float() - want).norm() < 0.03 * want.norm()
    y.float().square().sum().backward()
    assert all(p.grad.isfinite().all() for p in mixer.parameters() if p.grad is not None)


@pytest.mark.parametrize(("spec", "rule"), [case for case in COVER if case in PLAIN])
def test_cache_is_as_large_as_promised(spec: Spec, rule: str) -> None:
    n, heads, dim = 100, 3, 8
    mixer = make(spec, rule).float()
    cache = mixer.make_cache(1, n)
    assert cache.nbytes == rv.analyze(spec, n, heads=heads, head_dim=dim, rule=rule).cost.cache_bytes
    half = rv.analyze(spec, n, heads=heads, head_dim=dim, item_bytes=2, rule=rule).cost.cache_bytes
    assert mixer.make_cache(1, n, dtype=torch.bfloat16).nbytes == half
    before = cache.nbytes
    for part in batch(n, 1).float().split([40, 1, 59], 1):
        mixer.extend(part, cache)
    assert cache.nbytes == before


def check(mixer: Mixer, u: Tensor) -> Cache:
    """Definition, gradients, and decoding in parts; the cache that it ends with."""
    y, want = mixer(u), expected(mixer, u)
    assert_close(y, want, factor=DEEP)
    for found, wished in zip(gradients(y, mixer, u), gradients(want, mixer, u), strict=True):
        assert_close(found, wished, factor=DEEP)
    cache, parts = mixer.make_cache(2, N), []
    for part in u.detach().split([4, 1, 1, 15], 1):
        parts.append(mixer.extend(part, cache)[0])
    assert_close(torch.cat(parts, 1), y, factor=DEEP)
    return cache


@pytest.mark.parametrize(("rule", "kv_heads"), [
    ("softmax", 1), ("softmax", 2), ("joint", 2), ("tied", 1), ("distance", 2), ("distance:shape=decay", 1),
    ("low-rank", 2),
])  # fmt: skip
def test_grouped_queries(rule: str, kv_heads: int) -> None:
    mixer = make("exponential+cache", rule, dim=32, heads=4, kv_heads=kv_heads)
    u = batch(N, 2, 32).requires_grad_()
    cache = check(mixer, u)
    promised = rv.analyze("exponential+cache", N, heads=4, head_dim=8, item_bytes=8, rule=rule, kv_heads=kv_heads)
    assert cache.nbytes == 2 * promised.cost.cache_bytes


@pytest.mark.parametrize(("spec", "rule"), [
    ("attention/first-order", "softmax"), ("local:8/exponential+cache", "joint"), ("attention/first-order", "distance"),
])  # fmt: skip
def test_grouped_queries_of_a_pair(spec: str, rule: str) -> None:
    mixer = make(spec, rule, dim=32, heads=4, kv_heads=2)
    check(mixer, batch(N, 2, 32).requires_grad_())


@pytest.mark.parametrize(("rule", "last"), [
    ("softmax", "first-order"), ("softmax:gate=mamba", "local:8/order:3"), ("distance", TABLE),
])  # fmt: skip
def test_patterns_per_head(rule: str, last: Spec) -> None:
    specs = ["attention", "attention", "exponential+cache", last]
    mixer, u = make(specs, rule, dim=32, heads=4), batch(N, 2, 32).requires_grad_()
    check(mixer, u)
    assert [w.heads for w in mixer.weights(u)] == [2, 1, 1]


@kinds
def test_wrong_places_are_refused(spec: Spec, rule: str) -> None:
    mixer, u = make(spec, rule), batch(8, 3)
    for cuts in ([3, 11], [0, 4, 2, 8], [0, 4]):
        with pytest.raises(ValueError, match="expected cu_seqlens from 0 to N = 8"):
            mixer(u, cu_seqlens=cuts)
    for start in ([-2, 0, 0], [99, 0, 0], [2]):
        with pytest.raises(ValueError, match="expected start with B = 3 numbers from 0 to N = 8"):
            mixer(u, start=start)
    with pytest.raises(TypeError, match="integers"):
        mixer(u, start=[1.5, 0, 0])
    with pytest.raises(ValueError, match="got both"):
        mixer(u, start=[0, 0, 0], cu_seqlens=[0, 8])
    assert_close(mixer(u, start=torch.tensor([0, 0, 0])), mixer(u), factor=DEEP)


@kinds
def test_a_refused_chunk_changes_nothing(spec: Spec, rule: str) -> None:
    mixer, u = make(spec, rule), batch(8)
    cache = mixer.make_cache(2, 4)
    if rule_of(rule).scan or rule_of(rule).name == "low-rank":
        mixer.extend(u, cache)  # a state holds any number
        return
    with pytest.raises(ValueError, match="made for 4 tokens"):
        mixer.extend(u, cache)
    assert not cache.positions.any()
    assert not any(part.any() for part in cache.tensors.values())


@pytest.mark.parametrize(("spec", "rule"), [
    ("exponential+cache", "softmax"), ("first-order", "softmax"), ("attention/first-order", "softmax"),
    ("order:4", "distance"), ("exponential+cache", "distance:shape=constant"),
])  # fmt: skip
def test_layers_compile(spec: Spec, rule: str) -> None:
    torch._dynamo.reset()
    mixer, u = make(spec, rule), batch(70).requires_grad_()
    compiled = torch.compile(mixer, backend="aot_eager", fullgraph=True)
    y, want = compiled(u), mixer(u)
    assert_close(y, want, factor=DEEP)
    for found, wished in zip(gradients(y, mixer, u), gradients(want, mixer, u), strict=True):
        assert_close(found, wished, factor=DEEP)


def test_export_leaves_no_trace() -> None:
    mixer = make("exponential+cache", "softmax").float()
    program = torch.export.export(mixer, (torch.randn(2, 200, 24),))
    u = torch.randn(2, 200, 24)
    assert_close(program.module()(u), mixer(u))
    assert make("exponential", "softmax").float()(u).isfinite().all()


def test_gradients_do_not_reach_through_a_step_without_them() -> None:
    mixer, u = make("local:4", "softmax"), batch(12, 1).requires_grad_()
    _, cache = mixer.extend(u[:, :6])
    with torch.no_grad():
        mixer.extend(u[:, 6:11], cache)
    y, _ = mixer.extend(u[:, 11:], cache)
    assert torch.autograd.grad(y.sum(), u)[0][0, :11].abs().max() == 0
