"""Files of caches by a stranger: sizes that they claim are compared with what they hold before anything is made."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from resolvent.ops import Caches, DecodeCache, ScanState, load_cache
from tests.counting import calls
from tests.hostile.files import NOT_JSON, WRONG, leaves, replaced, write_header
from tests.hostile.limits import check_refused
from tests.hostile.tables import crammed

SETUP = "from resolvent.ops import load_cache"
LOAD = "load_cache(path)"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Several caches: of slots, and a state."""
    slots = DecodeCache("exponential+cache", 2, 2, 4, 4, max_tokens=40)
    slots.positions[:] = [7, 30]
    Caches({"0": slots, "1": ScanState({"memory": torch.zeros(2, 3)}, [7, 30])}).save(tmp_path / "cache")
    return tmp_path / "cache"


def layout_of(path: Path) -> dict[str, Any]:
    with safe_open(path, framework="pt") as file:
        layout: dict[str, Any] = json.loads(file.metadata()["layout"])
    return layout


def rewrite(path: Path, layout: object, version: str = "2") -> None:
    text = layout if isinstance(layout, str) else json.dumps(layout)
    tensors = {name: t.clone() for name, t in load_file(path).items()}
    save_file(tensors, path, {"format": "resolvent-cache", "version": version, "layout": text})


SLOW = f"stride:k+1+0*({'*'.join(['9**1024'] * 8)}//({'*'.join(['7**1365'] * 4)}))+cache"  # long division, each time
CLAIMS: list[tuple[dict[str, object], str]] = [
    ({"batch": 50_000_000}, "expected a position for each of the 50000000 rows, got 2"),
    ({"batch": 100_000, "positions": [1] * 100_000}, r"values is \(2, 2, \d+, 4\), expected \(100000, 2"),
    ({"capacity": 10**7, "max_tokens": None, "pattern": "stride:k+1+cache"}, r"has more than \d+,\d+ strides below"),
    ({"capacity": 10**9, "max_tokens": None, "pattern": "stride:2*k+1+cache"}, r"has more than \d+,\d+ strides below"),
    ({"capacity": 10**12, "max_tokens": 10**12, "pattern": "dense"}, r"expected \(2, 2, 999999999999, 4\)"),
    ({"capacity": 10**12, "max_tokens": 10**12, "pattern": "dense+cache"}, r"expected \(2, 2, 999999999999, 4\)"),
    ({"capacity": 2**62, "max_tokens": None, "pattern": "order:1000000000000"}, r"expected \(2, 2, 1000000000000, 4\)"),
    (
        {"capacity": 10**12, "max_tokens": None, "pattern": "stride:min(k,1)*10**9+k+1+cache"},
        "strides below|mis-shaped",
    ),
    ({"capacity": 10**7, "max_tokens": None, "pattern": SLOW}, "grows past 1024 bits"),
    ({"capacity": 2**61, "max_tokens": None, "pattern": "exponential+cache"}, r"has strides of 2\*\*63 and more"),
    ({"capacity": 2**62, "max_tokens": None, "pattern": "stride:k**9+1+cache"}, r"has strides of 2\*\*63 and more"),
    ({"capacity": 10**30}, "expected capacity to be an integer from 1 to"),
    ({"heads": 10**9, "kv_heads": 10**9}, "mis-shaped"),
    ({"dim": 10**18}, "mis-shaped"),
    ({"dim": 0}, "expected dim to be an integer from 1"),
    (
        {"pattern": "offsets:" + ",".join(map(str, range(1, 200_000)))},
        "expected a pattern of at most 65,536 characters",
    ),
    ({"pattern": "explicit:AAAA"}, "'explicit:AAAA' is damaged"),
    ({"pattern": "explicit:" + "A" * (1 << 22)}, "expected a pattern of at most 4,194,304 characters"),
    ({"pattern": crammed(4_000_000, 0)}, "at most 4,194,304 reads of 262,144 tokens"),
    ({"pattern": crammed(3_000, 1_400), "max_tokens": None, "capacity": 3_000}, "mis-shaped"),
    ({"pattern": crammed(262_144, 16), "max_tokens": None, "capacity": 262_144}, "mis-shaped"),
    ({"pattern": crammed(39, 3)}, "is defined for 39 tokens: expected at most as many, got 40"),
    ({"pattern": "exponential/order:8"}, "has slots for A and others for B"),
    ({"capacity": 2**62, "max_tokens": None, "pattern": f"binomial:{10**40}"}, "expected an integer 1 ≤ s ≤ 1,024"),
    ({"capacity": 2**62, "max_tokens": None, "pattern": "binomial:1000"}, "mis-shaped"),
    ({"capacity": 2**62, "max_tokens": None, "pattern": "fenwick"}, "mis-shaped"),
    ({"positions": [7, 41]}, "expected each number of positions to be an integer from 0 to 40"),
    ({"dtype": "nn"}, "of another dtype"),
    ({"kind": ["slots"]}, "expected kind 'slots', 'state' or 'several'"),
    ({"normalize": ["gate"]}, "expected normalize 'gate' or 'joint'"),
]


def test_claims_cost_nothing(saved: Path, tmp_path: Path) -> None:
    cases = []
    for number, (change, message) in enumerate(CLAIMS):
        path, layout = shutil.copy(saved, tmp_path / f"claim{number}"), layout_of(saved)
        layout["children"]["0"] |= change
        rewrite(path, layout)
        cases.append((path, f"({message}).*Save the cache again"))
    check_refused(SETUP, LOAD, cases)


def test_tables_of_many_caches_cost_nothing(tmp_path: Path) -> None:
    """Each alone would be read, and all together take too long."""
    caches = {str(i): DecodeCache("order:2", 1, 1, 4, 4, max_tokens=2) for i in range(20)}
    Caches(caches).save(tmp_path / "cache")
    layout = layout_of(tmp_path / "cache")
    for i, child in enumerate(layout["children"].values()):
        child |= {"pattern": crammed(200_000 + i, 10), "max_tokens": None, "capacity": 2}
    rewrite(tmp_path / "cache", layout)
    check_refused(SETUP, LOAD, [(tmp_path / "cache", "the tables of reads are too large for one file")])


def test_strides_are_listed_for_slots_that_exist(tmp_path: Path) -> None:
    """The work for a claim of 10^7 tokens is bounded; a cache that holds them is read."""
    cache = DecodeCache("stride:k+1+cache", 1, 1, 1, 1, max_tokens=100_000)
    cache.save(tmp_path / "cache")
    assert load_cache(tmp_path / "cache").nbytes == cache.nbytes
    layout = layout_of(tmp_path / "cache") | {"capacity": 2**40, "max_tokens": None, "pattern": "stride:k+2+cache"}
    rewrite(tmp_path / "cache", layout)

    def load() -> None:
        with pytest.raises(ValueError, match="strides below"):
            load_cache(tmp_path / "cache")

    assert calls(load) < 8 * 500_000


def test_far_positions_of_short_patterns(tmp_path: Path) -> None:
    """A window after 10^15 tokens is as small as after ten."""
    cache = DecodeCache("local:8", 1, 1, 4, 4)
    cache.save(tmp_path / "cache")
    rewrite(tmp_path / "cache", layout_of(tmp_path / "cache") | {"capacity": 10**15, "positions": [10**15 - 1]})
    assert load_cache(tmp_path / "cache").positions.tolist() == [10**15 - 1]


def test_any_text_for_a_layout(saved: Path) -> None:
    for version in ("1", "2"):
        for text in [text for text in NOT_JSON if len(text) < 10**6]:  # safetensors itself writes no longer ones
            rewrite(saved, text, version)
            with pytest.raises(ValueError, match=r"has no readable layout|has a damaged layout"):
                load_cache(saved)


def test_every_value_has_a_type(saved: Path) -> None:
    layout = layout_of(saved)
    for path in leaves(layout):
        for wrong in WRONG:
            rewrite(saved, replaced(layout, path, wrong))
            try:
                load_cache(saved)
            except ValueError as error:
                assert "Save the cache again" in str(error)  # noqa: PT017
                assert len(str(error)) < 1000  # noqa: PT017


def test_caches_in_caches(saved: Path) -> None:
    layout: dict[str, object] = layout_of(saved)
    for _ in range(200):
        layout = {"kind": "several", "children": {"0": layout}}
    for version in ("1", "2"):
        rewrite(saved, layout, version)
        with pytest.raises(ValueError, match="nested at most"):
            load_cache(saved)


def test_headers(saved: Path) -> None:
    meta = {"format": "resolvent-cache", "version": "2", "layout": "{}"}
    write_header(
        saved, {"__metadata__": meta, "a": {"dtype": "F32", "shape": [10**11], "data_offsets": [0, 4 * 10**11]}}
    )
    check_refused(SETUP, LOAD, [(saved, "as its header says, got 0")])
