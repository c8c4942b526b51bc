"""The verbs of caches: what goes on from a changed cache is what would have gone on alone; states are checked."""

import re
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

import resolvent as rv
from resolvent.ops import Cache, Caches, DecodeCache, ScanState, decode_cache
from resolvent.ops.cache.stages import stage_caches
from tests.operator_cases import (
    ENDLESS_ROWS,
    FEW_READS,
    JOINT,
    KINDS,
    NORMALIZATIONS,
    TABLE,
    Inputs,
    Spec,
    assert_close,
    assert_same_bits,
    cut,
    extend,
    mix,
    mixer_inputs,
    normalization,
)

N, CUT = 48, 29
SPECS: list[Spec] = [*KINDS, "binomial:5,lazy", rv.pair("exponential", TABLE)]
ENDLESS: list[Spec] = ["attention", "dense", "exponential", "dense+cache", ENDLESS_ROWS, "attention/exponential"]
BOUNDED: list[Spec] = ["local:8", "first-order", "exponential+cache", "quadratic+cache", "offsets:2,5", "fenwick"]
BOUNDED += ["binomial:4", rv.explicit(lambda i: [j for j in (i - 1, i - 4) if j >= 0], n=200)]
BOUNDED_PAIRS: list[Spec] = ["attention/first-order", "local:8/exponential+cache", rv.pair(TABLE, "fenwick")]
every = pytest.mark.parametrize("spec", SPECS)


def rows(inputs: Inputs, indices: list[int]) -> Inputs:
    return {name: t[indices] for name, t in inputs.items()}


def started(spec: Spec, batch: int = 3, **options: object) -> tuple[Inputs, Cache]:
    """A prefill of CUT tokens, the rows at different positions, and a few single tokens."""
    inputs = mixer_inputs(N, torch.float64, batch, 2, 16, 16)
    cache = decode_cache(spec, batch, 2, 16, 16, dtype=torch.float64, **options)
    extend(cut(inputs, 0, CUT - 2), spec, cache, start=[0, 3, 7][:batch], **normalization(cache))
    go_on(inputs, cache, CUT - 2, CUT - 1)
    go_on(inputs, cache, CUT - 1, CUT)
    return inputs, cache


def go_on(inputs: Inputs, cache: Cache, first: int = CUT, last: int = N) -> Tensor:
    """A chunk, and the rest token by token."""
    edges = [first, *range(max(first + 1, last - 3), last + 1)]
    patterns = [stage.pattern for stage in stage_caches(cache)]
    spec = patterns[0] if len(patterns) == 1 else rv.pair(*patterns)
    parts = [extend(cut(inputs, a, b), spec, cache, **normalization(cache)) for a, b in pairwise(edges)]
    return torch.cat(parts, 2)


def same(a: Cache, b: Cache) -> None:
    assert a.positions.tolist() == b.positions.tolist()
    assert a.tensors.keys() == b.tensors.keys()
    for name, part in a.tensors.items():
        assert part.dtype == b.tensors[name].dtype
        assert torch.equal(part, b.tensors[name])


@every
def test_rows_go_their_own_way(spec: Spec) -> None:
    """clone, select, repeat, reorder, state_dict: each row goes on as if nothing had happened, bit for bit.

    (But for attention, whose chunks are products by torch, which may add up another batch in another order.)
    """
    for kind in NORMALIZATIONS:
        check_verbs(spec, kind)


def check_verbs(spec: Spec, kind: dict[str, object]) -> None:
    inputs, cache = started(spec, **kind)
    backend = rv.choose_backend(inputs["x"], spec, **kind).backend
    changed = {
        "clone": (cache.clone(), [0, 1, 2]),
        "select": (cache.select([2, 0]), [2, 0]),
        "with repeats": (cache.select(torch.tensor([1, 1, 2, 0])), [1, 1, 2, 0]),
        "repeat": (cache.repeat(2), [0, 0, 1, 1, 2, 2]),
        "reorder": (cache.reorder([2, 2, 1]), [2, 2, 1]),
        "to": (cache.to("cpu", torch.float64), [0, 1, 2]),
    }
    loaded = decode_cache(spec, 3, 2, 16, 16, dtype=torch.float64, **kind)
    loaded.load_state_dict(cache.state_dict())
    changed["load"] = (loaded, [0, 1, 2])
    expected = go_on(inputs, cache)
    for name, (other, picked) in changed.items():
        assert other.batch == len(picked), name
        y = go_on(rows(inputs, picked), other)
        assert_same_bits(y, expected[picked], backend, name)
    same(cache, changed["load"][0])
    same(cache, changed["clone"][0])


@every
def test_to_another_dtype(spec: Spec) -> None:
    inputs, cache = started(spec, **JOINT)
    other = cache.to(dtype=torch.float32)
    assert all(
        part.dtype == (torch.float64 if name.endswith("logs") else torch.float32)
        for name, part in other.tensors.items()
    )
    y = go_on({name: t.float() for name, t in inputs.items()}, other)
    assert_close(y, go_on(inputs, cache))
    assert all(stage.dtype == torch.float64 for stage in stage_caches(cache))
    with pytest.raises(TypeError, match=r"expected a floating dtype, got torch\.int64"):
        cache.to(dtype=torch.int64)


@pytest.mark.parametrize("spec", ["exponential", "local:8", FEW_READS, "local:8/exponential+cache"])
def test_bytes_are_known_before_and_stay(spec: Spec) -> None:
    cache = decode_cache(spec, 3, 2, 16, 16, max_tokens=N, dtype=torch.float64)
    promised = cache.nbytes
    inputs, cache = started(spec, max_tokens=N)
    assert cache.nbytes == promised
    cache.snapshot()
    go_on(inputs, cache)
    assert cache.nbytes == cache.clone().nbytes == promised
    assert cache.select([0]).nbytes * 3 == cache.repeat(2).nbytes // 2 == promised


@pytest.mark.parametrize("spec", ENDLESS)
def test_patterns_that_drop_nothing_forget(spec: Spec) -> None:
    for options in ({}, {"max_tokens": N}, JOINT):
        check_endless(spec, options)


def check_endless(spec: Spec, options: dict[str, object]) -> None:
    inputs = mixer_inputs(N, torch.float64, 2, 2, 16, 16)
    cache = decode_cache(spec, 2, 2, 16, 16, dtype=torch.float64, **options)
    expected = go_on(inputs, cache, 0)
    cache.snapshot()
    assert not any(stage.snapshots for stage in stage_caches(cache))  # not needed
    for position in (N, 40, 13, 0):
        cache.rewind(position)
        assert cache.positions.tolist() == [position] * 2
        other = {name: torch.randn_like(t).abs().clamp(max=1) for name, t in inputs.items()}  # a branch, given up
        if position < N:
            go_on(other, cache, position, min(position + 5, N))
            cache.rewind([position, position])
            assert_close(go_on(inputs, cache, position), expected[:, :, position:])
    cache.rewind([10, 30])
    for row, position in enumerate((10, 30)):
        y = go_on(rows(inputs, [row]), cache.select([row]), position)
        assert_close(y, expected[[row], :, position:])


@pytest.mark.parametrize("spec", [*BOUNDED, *BOUNDED_PAIRS])
def test_back_to_a_snapshot(spec: Spec) -> None:
    """Also after the cache has grown; a snapshot can be gone back to again, one that was undone cannot."""
    for kind in NORMALIZATIONS:
        check_snapshots(spec, kind)


def check_snapshots(spec: Spec, kind: dict[str, object]) -> None:
    inputs = mixer_inputs(200, torch.float64, 2, 2, 16, 16)
    cache = decode_cache(spec, 2, 2, 16, 16, dtype=torch.float64, **kind)
    equal = partial(assert_same_bits, backend=rv.choose_backend(inputs["x"], spec, **kind).backend)
    go_on(inputs, cache, 0, 20)
    cache.snapshot()
    first = go_on(inputs, cache, 20, 30)
    cache.snapshot()
    second = go_on(inputs, cache, 30, 200)
    cache.rewind([30, 30])
    equal(go_on(inputs, cache, 30, 200), second)
    for _ in range(2):
        cache.rewind(20)
        assert cache.positions.tolist() == [20, 20]
        cache.snapshot()
        assert all(len(stage.snapshots) <= 1 for stage in stage_caches(cache))
        equal(go_on(inputs, cache, 20, 30), first)
    go_on(inputs, cache, 30, 60)
    with pytest.raises(ValueError, match="this row has snapshots at 20"):
        cache.rewind(30)
    carried = cache.select([1])
    cache.rewind([20, 60])  # a row alone; the other stays
    assert cache.positions.tolist() == [20, 60]
    equal(go_on(rows(inputs, [0]), cache.select([0]), 20, 30), first[:1])
    carried.rewind(20)
    equal(go_on(rows(inputs, [1]), carried, 20, 30), first[1:])
    cache.drop_snapshots()
    with pytest.raises(ValueError, match="snapshots at no position"):
        cache.rewind(20)
    cache.rewind(0)  # nothing to remember
    assert_close(go_on(inputs, cache, 0, 200)[:, :, 30:], second)


def test_a_snapshot_that_one_row_has_undone_is_gone() -> None:
    """That row goes on with other tokens, and what it held at the snapshot is no longer its past."""
    spec, inputs = "quadratic+cache", mixer_inputs(60, torch.float64, 2, 2, 16, 16)
    cache = decode_cache(spec, 2, 2, 16, 16, dtype=torch.float64)
    for first, last in ((0, 20), (20, 30)):
        go_on(inputs, cache, first, last)
        cache.snapshot()
    go_on(inputs, cache, 30, 40)
    cache.rewind([20, 30])
    go_on(inputs, cache, 40, 60)
    assert cache.positions.tolist() == [40, 50]
    with pytest.raises(ValueError, match=r"row 0 cannot go from position 40 back to 30.*has snapshots at 20"):
        cache.rewind([30, 50])


REFUSALS: list[tuple[Spec, Callable[[Cache], object], str]] = [
    ("local:8", lambda cache: cache.select([0, 3]), r"expected rows from 0 to 2, got \[0, 3\]"),
    ("local:8", lambda cache: cache.select([-1]), "expected rows from 0 to 2"),
    ("local:8", lambda cache: cache.select(torch.tensor([[0]])), "indices as a list or a one-dimensional tensor"),
    ("local:8", lambda cache: cache.reorder([0, 1]), r"each of the 3 rows, got 2: use select\(\)"),
    ("local:8", lambda cache: cache.repeat(0), "at least once, got times=0"),
    ("dense", lambda cache: cache.rewind(-1), "expected a position from 0 to 29 to go back to, got -1 for row 0"),
    ("dense", lambda cache: cache.rewind([29, 27, 0]), "a position from 0 to 26 to go back to, got 27 for row 1"),
    ("dense", lambda cache: cache.rewind([1, 2]), "a position, or one for each of the 3 rows, got 2"),
    ("dense", lambda cache: cache.rewind([1.5, 2, 2]), "positions as a list"),
    ("attention/first-order", lambda cache: cache.rewind(20), "cache 'b': row 0 cannot go from position 29 back to 20"),
]
REFUSALS += [
    (spec, lambda cache: cache.rewind(20), rf"{re.escape(str(rv.pattern(spec)))} gives slots to newer.*no longer hold")
    for spec in BOUNDED
]


@pytest.mark.parametrize(("spec", "call", "message"), REFUSALS)
def test_refusals(spec: Spec, call: Callable[[Cache], object], message: str) -> None:
    """Rows and positions that are not there, and rewinds where a bounded pattern has no snapshot: nothing changes."""
    _, cache = started(spec)
    before = cache.clone()
    with pytest.raises((ValueError, TypeError), match=message):
        call(cache)
    assert cache.positions.tolist() == [29, 26, 22]
    for stage, kept in zip(stage_caches(cache), stage_caches(before), strict=True):
        same(stage, kept)


def test_gradients_flow_through_verbs() -> None:
    spec, inputs = "quadratic+cache", mixer_inputs(N, torch.float64, 2, 2, 16, 16)
    leaf = inputs["x"].clone().requires_grad_()
    given = {**inputs, "x": leaf}
    cache = DecodeCache(spec, 2, 2, 16, 16, dtype=torch.float64)
    extend(cut(given, 0, 20), spec, cache)
    cache.snapshot()
    extend(cut(given, 20, 40), spec, cache)
    cache.rewind(20)
    y = extend(rows(cut(given, 20, N), [1, 0]), spec, cache.reorder([1, 0]))
    (found,) = torch.autograd.grad(y.square().sum(), leaf)
    (expected,) = torch.autograd.grad(mix(given, spec)[:, :, 20:].square().sum(), leaf)
    assert_close(found, expected)


def test_states() -> None:
    state = ScanState({"h": torch.randn(2, 3, 4), "n": torch.tensor([1, 2])})
    first = state.clone()
    state.snapshot()
    state.tensors["h"], state.positions[:] = state.tensors["h"] * 2, [5, 6]
    assert state.nbytes == 2 * 3 * 4 * 4 + 16
    assert state.to(dtype=torch.float64).tensors["n"].dtype == torch.int64
    assert state.to(dtype=torch.bfloat16).tensors["h"].dtype == torch.bfloat16
    sums = ScanState({"memory": torch.randn(2, 3)})  # over all tokens, which half precision would spoil
    assert torch.equal(sums.to(dtype=torch.bfloat16).tensors["memory"], sums.tensors["memory"])
    assert state.repeat(2).positions.tolist() == [5, 5, 6, 6]
    loaded = first.clone()
    loaded.load_state_dict(state.state_dict())
    same(loaded, state)
    with pytest.raises(ValueError, match="back to 3: a state is one sum over all tokens"):
        state.rewind([3, 6])
    state.rewind(0)
    same(state, first)
    with pytest.raises(ValueError, match=r"same batch first, got \{'a': \(2,\), 'b': \(3,\)\}"):
        ScanState({"a": torch.zeros(2), "b": torch.zeros(3)})


def several() -> tuple[Inputs, Caches]:
    inputs, cache = started("local:8")
    return inputs, Caches(
        {"0": cache, "1": Caches({"far": started("dense")[1], "h": ScanState({"h": torch.randn(3, 2)})})}
    )


def test_several_at_once() -> None:
    inputs, caches = several()
    assert list(caches) == ["0", "1"]
    assert len(caches) == 2
    assert caches.positions.tolist() == caches["0"].positions.tolist() == [29, 26, 22]
    assert caches.nbytes == sum(child.nbytes for child in caches.values())
    loaded = several()[1]
    loaded.load_state_dict(caches.state_dict())
    same(loaded, caches)
    picked = caches.reorder([1, 0, 1])
    y = go_on(inputs, caches["0"])
    assert torch.equal(go_on(rows(inputs, [1, 0, 1]), picked["0"]), y[[1, 0, 1]])
    assert torch.equal(go_on(inputs, loaded["0"]), y)
    with pytest.raises(ValueError, match=r"expected caches of one batch size, got \{'a': 1, 'b': 2\}"):
        Caches({"a": ScanState({"h": torch.zeros(1)}), "b": ScanState({"h": torch.zeros(2)})})
    with pytest.raises(ValueError, match="expected names without '/'"):
        Caches({"a/b": ScanState({"h": torch.zeros(1)})})


def test_several_rewind_all_or_none() -> None:
    inputs = mixer_inputs(N, torch.float64, 1, 2, 16, 16)
    caches = Caches({name: DecodeCache(name, 1, 2, 16, 16, dtype=torch.float64) for name in ("dense", "local:8")})
    for cache in caches.values():
        go_on(inputs, cache, 0, 20)
    caches.snapshot()
    expected = [go_on(inputs, cache, 20, N) for cache in caches.values()]
    with pytest.raises(ValueError, match="cache 'local:8': row 0 cannot go from position 48 back to 30"):
        caches.rewind(30)
    assert caches["dense"].positions.tolist() == [N]
    caches.rewind(20)
    for cache, y in zip(caches.values(), expected, strict=True):
        assert_close(go_on(inputs, cache, 20, N), y)


def test_a_state_of_another_cache_changes_nothing() -> None:
    """Names, shapes, positions and lengths are looked at before anything is taken; of several caches, all of them."""
    _, cache = started("exponential+cache")
    before, good = cache.clone(), cache.clone().state_dict()
    shorter = {**good, "outputs": good["outputs"][:, :, 1:]}
    for wrong, message in (
        ({name: t for name, t in good.items() if name != "values"}, "expected a state of tensors of shapes"),
        (shorter, r"'outputs': \(3, 2, 5, 16\)"),
        ({**good, "positions": torch.tensor([1, 2, 9999])}, "at least 0 and at most 64"),
        ({**good, "positions": torch.tensor([1, 2])}, r"'positions': \(2,\)"),
        ({**good, "capacity": torch.tensor(0)}, "expected a capacity"),
    ):
        with pytest.raises(ValueError, match=message):
            cache.load_state_dict(wrong)
        same(cache, before)
    fixed = DecodeCache("exponential+cache", 3, 2, 16, 16, max_tokens=60)
    with pytest.raises(ValueError, match="expected the state of a cache for 60 tokens, got one for 64"):
        fixed.load_state_dict(good)
    _, caches = several()
    untouched = caches.clone()
    with pytest.raises(ValueError, match=r"cache '1': cache 'h': expected a state of tensors"):
        caches.load_state_dict({name: t for name, t in untouched.state_dict().items() if name != "1/h/h"})
    with pytest.raises(ValueError, match="expected a state of the caches 0, 1, got some of 2"):
        caches.load_state_dict({"2/values": torch.zeros(1)})
    same(caches, untouched)


def test_a_state_of_a_cache_that_has_grown(tmp_path: Path) -> None:
    """It fits one that has grown less, through a file, too; snapshots are dropped."""
    inputs, cache = started("dense")
    long = {name: torch.cat([t] * 3, -2 if t.ndim > 3 else -1) for name, t in inputs.items()}
    extend(cut(long, CUT, 2 * N), "dense", cache)
    torch.save(cache.state_dict(), tmp_path / "state")
    small = started("dense")[1]
    small.snapshot()
    small.load_state_dict(torch.load(tmp_path / "state"))
    same(small, cache)
    last = cut(long, 2 * N, 2 * N + 20)
    assert_close(extend(last, "dense", small), extend(last, "dense", cache))


@pytest.mark.parametrize("dim", [5, 16])  # torch operations, and the kernel
def test_sequences_at_different_positions_take_any_scale(dim: int) -> None:
    """Reads that pad a shorter list are left out, whatever the sign of their scores."""
    for scale in (-0.7, 0.0, 0.5):
        check_scale(dim, scale)


def check_scale(dim: int, scale: float) -> None:
    x, q, k = torch.randn(3, 2, 1, 12, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    positions = [3, 9]
    caches = [decode_cache("exponential", 1, 1, dim, dim, max_tokens=12, dtype=torch.float64) for _ in positions]
    together = decode_cache("exponential", 2, 1, dim, dim, max_tokens=12, dtype=torch.float64)

    def go_on(rows: slice, first: int, last: int, cache: Cache, start: list[int] | None = None) -> Tensor:
        a = (q[rows, :, first:last], k[rows, :, first:last])
        return rv.extend(x[rows, :, first:last], "exponential", cache, a, a, 0.5, scale=scale, start=start)

    lags = [positions[1] - position for position in positions]
    go_on(slice(0, 2), 0, positions[1], together, lags)  # padding before the first sequence
    for row, (cache, lag) in enumerate(zip(caches, lags, strict=True)):
        go_on(slice(row, row + 1), lag, positions[1], cache)
    outputs = go_on(slice(0, 2), positions[1], 11, together)
    for row, cache in enumerate(caches):
        assert_close(outputs[row : row + 1], go_on(slice(row, row + 1), positions[1], 11, cache))
