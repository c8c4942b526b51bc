"""The verbs of caches: what goes on from a changed cache is what would have gone on alone; files are checked."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

import resolvent as rv
from resolvent.ops import Cache, Caches, DecodeCache, State, load_cache
from tests.laws.test_backends import Inputs, mixer_inputs

N, CUT = 48, 29
SPECS = [
    "attention",
    "local:8",
    "first-order",
    "dense",
    "exponential",
    "exponential+cache",
    "quadratic+cache",
    "offsets:2,5",
]
ENDLESS = ["attention", "dense", "exponential", "quadratic", "dense+cache", "stride:3*k+2"]
BOUNDED = ["local:8", "first-order", "order:4", "exponential+cache", "quadratic+cache", "offsets:2,5"]
every = pytest.mark.parametrize("spec", SPECS)


def cut(inputs: Inputs, first: int, last: int) -> Inputs:
    return {name: t[:, :, first:last] for name, t in inputs.items()}


def rows(inputs: Inputs, indices: list[int]) -> Inputs:
    return {name: t[indices] for name, t in inputs.items()}


def started(spec: str, batch: int = 3, **options: object) -> tuple[Inputs, DecodeCache]:
    """A prefill of CUT tokens, the rows at different positions, and a few single tokens."""
    inputs = mixer_inputs(N, torch.float64, batch, 2, 16, 16)
    cache = DecodeCache(spec, batch, 2, 16, 16, dtype=torch.float64, **options)
    rv.extend(**cut(inputs, 0, CUT - 2), p=spec, cache=cache, start=[0, 3, 7][:batch], **kind(cache))
    go_on(inputs, cache, CUT - 2, CUT - 1)
    go_on(inputs, cache, CUT - 1, CUT)
    return inputs, cache


def kind(cache: DecodeCache) -> dict[str, object]:
    return {"normalise": cache.normalise}


def go_on(inputs: Inputs, cache: Cache, first: int = CUT, last: int = N) -> Tensor:
    """A chunk, and the rest token by token."""
    assert isinstance(cache, DecodeCache)
    edges = [first, *range(max(first + 1, last - 3), last + 1)]
    parts = [rv.extend(**cut(inputs, a, b), p=cache.pattern, cache=cache, **kind(cache)) for a, b in pairwise(edges)]
    return torch.cat(parts, 2)


def same(a: Cache, b: Cache) -> None:
    assert a.positions.tolist() == b.positions.tolist()
    assert a.parts.keys() == b.parts.keys()
    for name, part in a.parts.items():
        assert part.dtype == b.parts[name].dtype
        assert torch.equal(part, b.parts[name])


@every
@pytest.mark.parametrize("normalise", ["gate", "whole"])
def test_rows_go_their_own_way(spec: str, normalise: str, tmp_path: Path) -> None:
    """clone, select, repeat, reorder, save and load: each row goes on as if nothing had happened, bit for bit."""
    inputs, cache = started(spec, normalise=normalise)
    changed = {
        "clone": (cache.clone(), [0, 1, 2]),
        "select": (cache.select([2, 0]), [2, 0]),
        "with repeats": (cache.select(torch.tensor([1, 1, 2, 0])), [1, 1, 2, 0]),
        "repeat": (cache.repeat(2), [0, 0, 1, 1, 2, 2]),
        "reorder": (cache.reorder([2, 2, 1]), [2, 2, 1]),
        "to": (cache.to("cpu", torch.float64), [0, 1, 2]),
    }
    cache.save(tmp_path / "cache")
    changed["load"] = (load_cache(tmp_path / "cache"), [0, 1, 2])
    expected = go_on(inputs, cache)
    for name, (other, picked) in changed.items():
        assert other.batch == len(picked), name
        y = go_on(rows(inputs, picked), other)
        assert torch.equal(y, expected[picked]), name
    same(cache, changed["load"][0])
    same(cache, changed["clone"][0])


@every
def test_to_another_dtype(spec: str) -> None:
    inputs, cache = started(spec, normalise="whole")
    other = cache.to(dtype=torch.float32)
    assert all(part.dtype == (torch.float64 if name == "logs" else torch.float32) for name, part in other.parts.items())
    y = go_on({name: t.float() for name, t in inputs.items()}, other)
    torch.testing.assert_close(y.double(), go_on(inputs, cache), rtol=0, atol=2e-5)
    assert cache.dtype == torch.float64
    with pytest.raises(TypeError, match=r"expected a floating dtype, got torch\.int64"):
        cache.to(dtype=torch.int64)


@every
def test_bytes_are_known_before_and_stay(spec: str, tmp_path: Path) -> None:
    cache = DecodeCache(spec, 3, 2, 16, 16, tokens=N, dtype=torch.float64)
    promised = cache.nbytes
    inputs, cache = started(spec, tokens=N)
    assert cache.nbytes == promised
    cache.snapshot()
    go_on(inputs, cache)
    cache.save(tmp_path / "cache")
    assert cache.nbytes == cache.clone().nbytes == load_cache(tmp_path / "cache").nbytes == promised
    assert cache.select([0]).nbytes * 3 == cache.repeat(2).nbytes // 2 == promised


@pytest.mark.parametrize("spec", ENDLESS)
@pytest.mark.parametrize("options", [{}, {"tokens": N}, {"normalise": "whole"}])
def test_patterns_that_drop_nothing_forget(spec: str, options: dict[str, object]) -> None:
    inputs = mixer_inputs(N, torch.float64, 2, 2, 16, 16)
    cache = DecodeCache(spec, 2, 2, 16, 16, dtype=torch.float64, **options)
    expected = go_on(inputs, cache, 0)
    cache.snapshot()
    assert not cache.snapshots  # not needed
    for position in (N, 40, 13, 0):
        cache.rewind(position)
        assert cache.positions.tolist() == [position] * 2
        other = {name: torch.randn_like(t).abs().clamp(max=1) for name, t in inputs.items()}  # a branch, given up
        if position < N:
            go_on(other, cache, position, min(position + 5, N))
            cache.rewind([position, position])
            torch.testing.assert_close(go_on(inputs, cache, position), expected[:, :, position:], rtol=0, atol=1e-12)


def test_rows_rewind_to_positions_of_their_own() -> None:
    inputs = mixer_inputs(N, torch.float64, 2, 2, 16, 16)
    cache = DecodeCache("dense", 2, 2, 16, 16, dtype=torch.float64)
    expected = go_on(inputs, cache, 0)
    cache.rewind([10, 30])
    for row, position in ((0, 10), (1, 30)):
        alone = cache.select([row])
        y = go_on(rows(inputs, [row]), alone, position)
        torch.testing.assert_close(y, expected[[row], :, position:], rtol=0, atol=1e-12)


@pytest.mark.parametrize("spec", BOUNDED)
@pytest.mark.parametrize("normalise", ["gate", "whole"])
def test_back_to_a_snapshot(spec: str, normalise: str) -> None:
    """Also after the cache has grown; a snapshot can be gone back to again, one that was undone cannot."""
    inputs = mixer_inputs(200, torch.float64, 2, 2, 16, 16)
    cache = DecodeCache(spec, 2, 2, 16, 16, dtype=torch.float64, normalise=normalise)
    go_on(inputs, cache, 0, 20)
    cache.snapshot()
    first = go_on(inputs, cache, 20, 30)
    cache.snapshot()
    second = go_on(inputs, cache, 30, 200)
    cache.rewind([30, 30])
    assert torch.equal(go_on(inputs, cache, 30, 200), second)
    for _ in range(2):
        cache.rewind(20)
        assert cache.positions.tolist() == [20, 20]
        cache.snapshot()
        assert len(cache.snapshots) == 1
        assert torch.equal(go_on(inputs, cache, 20, 30), first)
    go_on(inputs, cache, 30, 60)
    with pytest.raises(ValueError, match="this row has snapshots at 20"):
        cache.rewind(30)
    carried = cache.select([1])
    cache.rewind([20, 60])  # a row alone; the other stays
    assert cache.positions.tolist() == [20, 60]
    assert torch.equal(go_on(rows(inputs, [0]), cache.select([0]), 20, 30), first[:1])
    carried.rewind(20)
    assert torch.equal(go_on(rows(inputs, [1]), carried, 20, 30), first[1:])
    cache.drop_snapshots()
    with pytest.raises(ValueError, match="snapshots at no position"):
        cache.rewind(20)
    cache.rewind(0)  # nothing to remember
    torch.testing.assert_close(go_on(inputs, cache, 0, 200)[:, :, 30:], second, rtol=0, atol=1e-12)


@pytest.mark.parametrize("spec", BOUNDED)
def test_without_a_snapshot_bounded_patterns_refuse(spec: str) -> None:
    _, cache = started(spec)
    before = cache.clone()
    message = rf"row 0 cannot go from position {CUT} back to 20: {rv.pattern(spec)}".replace("+", r"\+")
    with pytest.raises(ValueError, match=message + r" gives slots to newer tokens.*snapshot\(\).*clone\(\)") as caught:
        cache.rewind(20)
    assert "no longer hold" in str(caught.value)
    same(cache, before)


def test_rewinds_that_make_no_sense() -> None:
    _, cache = started("dense")
    for position, message in [
        (-1, "expected a position from 0 to 29 to go back to, got -1 for row 0"),
        ([29, 27, 0], "expected a position from 0 to 26 to go back to, got 27 for row 1"),
        ([1, 2], "a position, or one for each of the 3 rows, got 2"),
    ]:
        with pytest.raises(ValueError, match=message):
            cache.rewind(position)
    with pytest.raises(TypeError, match="positions as a list"):
        cache.rewind([1.5, 2, 2])


def test_indices_are_checked() -> None:
    _, cache = started("local:8")
    for run, message in [
        (lambda: cache.select([0, 3]), r"expected rows from 0 to 2, got \[0, 3\]"),
        (lambda: cache.select([-1]), "expected rows from 0 to 2"),
        (lambda: cache.reorder([0, 1]), r"each of the 3 rows, got 2: use select\(\)"),
        (lambda: cache.repeat(0), "at least once, got times=0"),
    ]:
        with pytest.raises(ValueError, match=message):
            run()
    with pytest.raises(TypeError, match="indices as a list or a one-dimensional tensor"):
        cache.select(torch.tensor([[0]]))
    assert cache.select([]).batch == 0


def test_gradients_flow_through_verbs() -> None:
    spec, inputs = "quadratic+cache", mixer_inputs(N, torch.float64, 2, 2, 16, 16)
    leaf = inputs["x"].clone().requires_grad_()
    given = {**inputs, "x": leaf}
    cache = DecodeCache(spec, 2, 2, 16, 16, dtype=torch.float64)
    rv.extend(**cut(given, 0, 20), p=spec, cache=cache)
    cache.snapshot()
    rv.extend(**cut(given, 20, 40), p=spec, cache=cache)
    cache.rewind(20)
    y = rv.extend(**rows(cut(given, 20, N), [1, 0]), p=spec, cache=cache.reorder([1, 0]))
    (found,) = torch.autograd.grad(y.square().sum(), leaf)
    (expected,) = torch.autograd.grad(rv.mix(**given, p=spec)[:, :, 20:].square().sum(), leaf)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_states(tmp_path: Path) -> None:
    state = State({"h": torch.randn(2, 3, 4), "n": torch.tensor([1, 2])})
    first = state.clone()
    state.snapshot()
    state.parts["h"], state.positions[:] = state.parts["h"] * 2, [5, 6]
    assert state.nbytes == 2 * 3 * 4 * 4 + 16
    assert state.to(dtype=torch.float64).parts["n"].dtype == torch.int64
    assert state.repeat(2).positions.tolist() == [5, 5, 6, 6]
    state.save(tmp_path / "state")
    same(load_cache(tmp_path / "state"), state)
    with pytest.raises(ValueError, match="back to 3: a state is one sum over all tokens"):
        state.rewind([3, 6])
    state.rewind(0)
    same(state, first)
    with pytest.raises(ValueError, match=r"same batch first, got \{'a': \(2,\), 'b': \(3,\)\}"):
        State({"a": torch.zeros(2), "b": torch.zeros(3)})


def several() -> tuple[Inputs, Caches]:
    inputs, cache = started("local:8")
    return inputs, Caches({"0": cache, "1": Caches({"far": started("dense")[1], "h": State({"h": torch.randn(3, 2)})})})


def test_several_at_once(tmp_path: Path) -> None:
    inputs, caches = several()
    assert list(caches) == ["0", "1"]
    assert len(caches) == 2
    assert caches.positions.tolist() == caches["0"].positions.tolist() == [29, 26, 22]
    assert caches.nbytes == sum(child.nbytes for child in caches.values())
    caches.save(tmp_path / "several")
    loaded = load_cache(tmp_path / "several")
    same(loaded, caches)
    picked = caches.reorder([1, 0, 1])
    y = go_on(inputs, caches["0"])
    assert torch.equal(go_on(rows(inputs, [1, 0, 1]), picked["0"]), y[[1, 0, 1]])
    assert torch.equal(go_on(inputs, loaded["0"]), y)
    with pytest.raises(ValueError, match=r"expected caches of one batch size, got \{'a': 1, 'b': 2\}"):
        Caches({"a": State({"h": torch.zeros(1)}), "b": State({"h": torch.zeros(2)})})
    with pytest.raises(ValueError, match="expected names without '/'"):
        Caches({"a/b": State({"h": torch.zeros(1)})})


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
        torch.testing.assert_close(go_on(inputs, cache, 20, N), y, rtol=0, atol=1e-12)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "cache.safetensors"
    started("exponential+cache")[1].save(path)
    return path


def tensors_of(path: Path) -> dict[str, Tensor]:
    return {name: t.clone() for name, t in load_file(path).items()}


def rewrite(path: Path, tensors: dict[str, Tensor] | None = None, **metadata: str) -> None:
    with safe_open(path, framework="pt") as file:
        old = file.metadata()
    save_file(tensors_of(path) if tensors is None else tensors, path, old | metadata)


def test_files_are_whole_or_not_there(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = saved.read_bytes()
    assert [p.name for p in saved.parent.iterdir()] == [saved.name]

    def full(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="disk full"):
        started("dense")[1].save(saved)
    assert saved.read_bytes() == before
    assert [p.name for p in saved.parent.iterdir()] == [saved.name]


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_truncated_files(saved: Path, keep: int) -> None:
    saved.write_bytes(saved.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"is no complete safetensors file .*cut short, damaged or made by something"):
        load_cache(saved)


def test_foreign_files(saved: Path) -> None:
    saved.write_bytes(b"not a cache at all, but long enough to look like one")
    with pytest.raises(ValueError, match="is no complete safetensors file"):
        load_cache(saved)
    save_file({"weight": torch.zeros(3)}, saved)
    with pytest.raises(ValueError, match=r"expected a file of format 'resolvent-cache' written by .*, got None"):
        load_cache(saved)
    with pytest.raises(FileNotFoundError):
        load_cache(saved.with_name("nothing"))


def test_other_versions(saved: Path) -> None:
    rewrite(saved, version="2")
    with pytest.raises(ValueError, match="expected version '1' of resolvent-cache, got '2'"):
        load_cache(saved)


def test_wrong_tensors(saved: Path) -> None:
    tensors = tensors_of(saved)
    renamed = dict(tensors)
    renamed["value"] = renamed.pop("values")
    rewrite(saved, renamed)
    with pytest.raises(ValueError, match="not what its layout says: values is missing; value is not expected"):
        load_cache(saved)
    rewrite(saved, {**tensors, "outputs": tensors["outputs"][:, :, 1:].contiguous()})
    with pytest.raises(ValueError, match=r"expected outputs of shape \(3, 2, 6, 16\), got \(3, 2, 5, 16\)"):
        load_cache(saved)
    rewrite(saved, {**tensors, "keys_a": tensors["keys_a"].float()})
    with pytest.raises(ValueError, match=r"expected keys_a of torch\.float64, got torch\.float32"):
        load_cache(saved)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "other"},
        {"pattern": "nothing"},
        {"positions": [1]},
        {"positions": [1, 2, 9999]},
        {"tokens": 4},
        {"dtype": "nn"},
    ],
)
def test_damaged_layouts(saved: Path, change: dict[str, object]) -> None:
    with safe_open(saved, framework="pt") as file:
        layout = json.loads(file.metadata()["layout"])
    rewrite(saved, layout=json.dumps(layout | change))
    with pytest.raises(ValueError, match="has a damaged layout"):
        load_cache(saved)
    del layout["heads"]
    rewrite(saved, layout=json.dumps(layout))
    with pytest.raises(ValueError, match=r"has a damaged layout \(KeyError\('heads'\)\)"):
        load_cache(saved)
    for broken in ("{", "[]"):
        rewrite(saved, layout=broken)
        with pytest.raises(ValueError, match="has no readable layout"):
            load_cache(saved)


def test_a_function_cannot_be_saved(tmp_path: Path) -> None:
    cache = DecodeCache(rv.strided(lambda k: k + 1), 1, 1, 4, 4)
    with pytest.raises(ValueError, match="is a Python function, which no file can hold"):
        cache.save(tmp_path / "cache")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("spec", ["dense", "quadratic+cache"])
def test_grouped_heads_through_files(spec: str, tmp_path: Path) -> None:
    inputs = mixer_inputs(N, torch.float64, 2, 4, 16, 16)
    inputs |= {name: inputs[name][:, :2] for name in ("x", "ka", "kb")}
    cache = DecodeCache(spec, 2, 4, 16, 16, dtype=torch.float64, kv_heads=2)
    go_on(inputs, cache, 0, 20)
    cache.save(tmp_path / "cache")
    loaded = load_cache(tmp_path / "cache")
    assert isinstance(loaded, DecodeCache)
    assert (loaded.kv_heads, loaded.nbytes) == (2, cache.nbytes)
    assert torch.equal(go_on(inputs, loaded, 20), go_on(inputs, cache, 20))
