"""Settings of rotary positions: the definition, gradients, decoding, packing, padding, and what is refused."""

import dataclasses
from itertools import accumulate
from pathlib import Path

import pytest
import torch
from torch import Tensor

import resolvent as rv
from resolvent.coefficients import positions_of
from resolvent.coefficients.rope import rope as turn
from resolvent.errors import SettingError
from resolvent.mixer import Mixer
from resolvent.rules.rope import Rope, as_rope, rope_label, rope_setting
from tests.mixers import expected, make
from tests.operator_cases import DEEP, TABLE, Spec, assert_close

N = 23
SCALED = ["linear:factor=4", "ntk:factor=8"]
BY_DISTANCE = ["near:within=0", "near:within=5", "capped:within=3", "capped:within=100"]
CASES: list[tuple[Spec, str, str]] = [
    (spec, "softmax", rope)
    for spec in ("attention", "exponential", "quadratic+cache", "local:8/order:3", TABLE)
    for rope in (*SCALED, *BY_DISTANCE)
]
CASES += [("exponential+cache", "tied", "capped:within=3"), ("dense", "tied:blend=free", "near:within=5"),
          ("order:8", "softmax:conv=3", "near:within=2"), ("exponential", "joint", "ntk:factor=8"),
          ("attention/first-order", "low-rank:rank=5", "linear:factor=4")]  # fmt: skip
cases = pytest.mark.parametrize(("spec", "rule", "rope"), CASES, ids=[f"{s}/{r}/{p}" for s, r, p in CASES])


def batch(n: int = N, b: int = 2, dim: int = 24) -> Tensor:
    return torch.randn(b, n, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(n))


def gradients(y: Tensor, mixer: Mixer, u: Tensor) -> list[Tensor]:
    weight = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(5))
    return list(torch.autograd.grad((y * weight).sum(), [u, *mixer.parameters()], materialize_grads=True))


@cases
def test_definition_and_gradients(spec: Spec, rule: str, rope: str) -> None:
    mixer, u = make(spec, rule, rope=rope), batch().requires_grad_()
    y, want = mixer(u), expected(mixer, u)
    assert_close(y, want, factor=DEEP)
    for found, wished in zip(gradients(y, mixer, u), gradients(want, mixer, u), strict=True):
        assert_close(found, wished, factor=DEEP)


@cases
def test_sequences_mean_the_same_wherever_they_lie(spec: Spec, rule: str, rope: str) -> None:
    """In parts out of a cache, token by token, packed, and behind padding."""
    mixer, u = make(spec, rule, rope=rope), batch()
    want = mixer(u)
    for sizes in ([1] * N, [9, 1, 13]):
        cache, parts = None, []
        with torch.no_grad():
            for part in u.split(sizes, 1):
                y, cache = mixer.extend(part, cache)
                parts.append(y)
        assert_close(torch.cat(parts, 1), want, factor=DEEP)
    lengths = [7, 1, 15]
    packed = mixer(u[:1], cu_seqlens=[0, *accumulate(lengths)])
    assert_close(packed, torch.cat([mixer(part) for part in u[:1].split(lengths, 1)], 1), factor=DEEP)
    padded, cache = mixer.extend(u, start=[0, 9])
    assert_close(padded[1, 9:], mixer(u[1:, 9:])[0], factor=DEEP)
    with torch.no_grad():  # sequences at different positions
        more, _ = mixer.extend(u[:, :2], cache)
    assert_close(more[1], mixer(torch.cat([u[1:, 9:], u[1:, :2]], 1))[0, -2:], factor=DEEP)


@pytest.mark.parametrize("rope", [*SCALED, *BY_DISTANCE])
def test_weights_grouped_queries_and_caches(rope: str) -> None:
    mixer = make("exponential+cache", "softmax", dim=32, heads=4, kv_heads=2, rope=rope)
    u = batch(N, 2, 32)
    assert_close(mixer(u), expected(mixer, u), factor=DEEP)
    x = mixer.values(u).view(2, N, 2, 8).transpose(1, 2).repeat_interleave(2, 1)
    mixed = torch.cat([w.transfer() @ x for w in mixer.weights(u)], 1)
    assert_close(mixer.output(mixed.transpose(1, 2).flatten(2)), mixer(u), factor=DEEP)
    config = rv.ModelConfig(layers=2, dim=32, heads=4, kv_heads=2, pattern=["exponential+cache", "dense"], rope=rope)
    model = rv.LanguageModel(config)
    assert model.profile(100).cache_bytes == model.make_cache(1, 100).nbytes


@pytest.mark.parametrize("rope", ["near:within=5", "capped:within=3"])
def test_half_precision(rope: str) -> None:
    """Positions are exact there: 300 is more than bfloat16 can count to."""
    mixer, u = make("quadratic+cache", "softmax", rope=rope).float(), batch(300).float()
    want = mixer(u)
    with torch.autocast("cpu", torch.bfloat16):
        found = mixer(u)
    assert found.dtype == torch.bfloat16
    assert (found.float() - want).norm() < 0.03 * want.norm()


def test_what_the_settings_mean() -> None:
    x, positions = torch.randn(1, 64, 1, 8, dtype=torch.float64), positions_of(1, 64, torch.device("cpu"))
    spread = positions_of(1, 16, torch.device("cpu"))
    fourth = dataclasses.replace(spread, ids=4 * spread.ids, longest=64, rotations={})
    assert_close(turn(x[:, ::4], fourth, as_rope("linear:factor=4")), turn(x[:, ::4], spread, as_rope(10_000.0)))
    last = dataclasses.replace(spread, ids=8 * spread.ids, longest=128, rotations={})
    slowest = turn(x[:, ::4], last, as_rope("ntk:factor=8"))[..., -2:]
    assert_close(slowest, turn(x[:, ::4], spread, as_rope(10_000.0))[..., -2:])
    assert_close(turn(x, positions, as_rope("ntk:factor=8"))[..., :2], turn(x, positions, as_rope(10_000.0))[..., :2])
    u = batch(40)
    whole, plain = (make("quadratic", "softmax", rope=rope) for rope in ("capped:within=39", 10_000.0))
    assert_close(whole(u), plain(u), factor=DEEP)
    none, near = (make("quadratic", "softmax", rope=rope) for rope in (None, "near:within=0"))
    assert_close(none(u), near(u), factor=DEEP)


@pytest.mark.parametrize(("kind", "w"), [("near", 5), ("near", 12), ("capped", 6), ("capped", 13)])
def test_one_product_would_need_long_vectors(kind: str, w: int) -> None:
    """The rank of scores turned by position is 2. Where distances from c on turn alike, it is c - 2 or more."""
    c = w + 1 if kind == "near" else w
    distances = torch.arange(c - 1).double()[:, None] + torch.arange(c - 1) + 1
    beyond = torch.where(distances < c, distances, 0 if kind == "near" else w)
    ranks = [int(torch.linalg.matrix_rank((0.7 * turned).cos(), rtol=1e-12)) for turned in (distances, beyond)]
    assert ranks[0] == 2
    assert ranks[1] >= c - 2


def test_spellings() -> None:
    for text in ("linear:factor=8", "ntk:factor=2.5", "near:within=64", "capped:within=1234567,base=1000000"):
        assert str(as_rope(text)) == text
        assert rope_setting(text) == text
    assert as_rope("near:within=7,base=100") == Rope(100.0, "near", within=7)
    assert (rope_setting("500"), rope_setting("1e6"), rope_setting("none"), as_rope(None)) == (500.0, 1e6, None, None)
    assert [str(as_rope(base)) for base in (1e6, 0.5, 1e300)] == ["1000000", "0.5", "1e+300"]
    with pytest.raises(SettingError, match="expected rope to be a finite number"):
        rope_setting("inf")
    assert [rope_label(setting) for setting in (10_000.0, 10_000, None, 500.0, "near:within=7")] == [
        "", "", "no positions", "500", "near:within=7",
    ]  # fmt: skip


@pytest.mark.parametrize(("rope", "message"), [
    ("nkt:factor=8", "unknown rope 'nkt': expected a number, or linear:factor=….*Did you mean 'ntk'"),
    ("ntk", "'ntk': expected factor to be a number ≥ 1"),
    ("ntk:factor=0.5", "expected factor to be a number ≥ 1"),
    ("ntk:within=8", "expected factor=… and perhaps base=…, numbers, got 'within=8'"),
    ("near:within=far", "got 'within=far'"),
    ("near:within=2.5", "expected within to be an integer from 0 to 16,777,215"),
    ("capped:within=99999999", "expected within to be an integer"),
    ("capped:within=8,base=0", "expected base > 0, got 0"),
    ("x" * 10**6, "unknown rope 'xxx"),
    (-1.0, "expected rope to be a finite number > 0, or None, got -1.0; or a spelling"),
    ([], "expected rope to be a finite number"),
])  # fmt: skip
def test_bad_settings(rope: object, message: str) -> None:
    with pytest.raises(SettingError, match=message) as caught:
        rv.ModelConfig(rope=rope)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(("settings", "message"), [
    ({"rule": "joint", "rope": "near:within=5"}, "the 'joint' rule cannot read by distance.*to be softmax or tied"),
    ({"rule": "distance", "rope": "capped:within=5"}, "the 'distance' rule cannot read by distance"),
    ({"rule": "distance:shape=decay", "rope": "ntk:factor=2"}, "has no queries and keys that positions turn"),
    ({"rule": "mamba1", "pattern": "first-order", "rope": "ntk:factor=2"}, "the 'mamba1' rule has no queries and keys"),
    ({"dim": 4, "heads": 2, "rope": "ntk:factor=2"}, "expected head_dim ≥ 4, got 2"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(settings: dict[str, object], message: str) -> None:
    shape = {"dim": 16, "heads": 2, "pattern": "exponential"} | settings
    with pytest.raises(SettingError, match=message):
        rv.ModelConfig(layers=1, **shape)  # type: ignore[arg-type]
    with pytest.raises(SettingError, match=message):
        rv.Mixer(**shape)  # type: ignore[arg-type]


def test_models_are_saved_and_changed(tmp_path: Path) -> None:
    config = rv.ModelConfig(layers=2, dim=32, heads=4, pattern=["local:4", "exponential+cache"])
    model = rv.LanguageModel.seeded(config, 0)
    tokens = torch.randint(0, 256, (2, 50), generator=torch.Generator().manual_seed(0))
    for rope in (*SCALED, *BY_DISTANCE):
        changed = model.with_rope(rope)
        assert changed.embedding.weight is model.embedding.weight
        changed.save(tmp_path / "model")
        loaded = rv.LanguageModel.load(tmp_path / "model")
        assert loaded.config.rope == rope
        with torch.no_grad():
            assert torch.equal(loaded(tokens), changed(tokens))
            far_apart = (changed(tokens) - model(tokens)).abs().amax((0, 2))
        if rope == "capped:within=100":
            assert far_apart.max() < 1e-4  # no distance is longer
        elif rope == "near:within=5":
            assert far_apart[:6].max() < 1e-4 < far_apart[20:].max()
        assert len(changed.generate([[1, 2, 3], [4]], 5)[0]) == 5
    assert model.config.rope == 10_000.0


def test_set_takes_a_spelling() -> None:
    from resolvent.tasks import Copy
    from resolvent.train import RunConfig, TrainConfig

    run = RunConfig(rv.ModelConfig(), Copy(vocab_size=20, length=8), TrainConfig())
    assert run.changed(["model.rope=ntk:factor=8"]).model.rope == "ntk:factor=8"
    assert run.changed(["model.rope=ntk:factor=8"]).changed(["model.rope=500"]).model.rope == 500
    assert run.changed(["model.rope=null"]).model.rope is None
    with pytest.raises(SettingError, match="unknown rope 'ntc'"):
        run.changed(["model.rope=ntc:factor=8"])


def test_compiling() -> None:
    torch._dynamo.reset()
    mixer, u = make("exponential", "softmax", rope="ntk:factor=8"), batch()
    assert_close(torch.compile(mixer, backend="aot_eager", fullgraph=True)(u), mixer(u), factor=DEEP)
    mixer = make("exponential", "softmax", rope="near:within=5")
    with pytest.raises(Exception, match=r"expected dense, cpu, triton, torch, reference under torch\.compile"):
        torch.compile(mixer, backend="aot_eager", fullgraph=True)(batch())
