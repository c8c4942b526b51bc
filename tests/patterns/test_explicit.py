"""Explicit patterns: from masks, rows and functions; saved by content; damaged and hostile spellings are refused."""

import base64
import zlib

import numpy as np
import pytest

import resolvent as rv
from resolvent.patterns.table import MOST_READS, MOST_TOKENS
from tests.counting import peak_bytes

MOST_BYTES = 200 * 10**6  # that any spelling may take
CAUSAL = np.tri(6, dtype=np.bool_)


def spelled(*words: int, after: bytes = b"") -> str:
    """A spelling with these numbers: n, the reads of each token, and distances."""
    packed = zlib.compress(np.array(words, dtype="<u4").tobytes() + after, 9)
    return "explicit:" + base64.urlsafe_b64encode(packed).decode().rstrip("=")


def bomb(megabytes: int) -> bytes:
    """What unpacks to as many million zeros, written at once: packing them takes seconds.

    A block of zeros starts anywhere after a full flush, so one is repeated; of zeros, the checksum is their number.
    """
    block, zeros = zlib.compressobj(9, zlib.DEFLATED, -15), 10**6 * megabytes
    million = block.compress(bytes(10**6)) + block.flush(zlib.Z_FULL_FLUSH)
    end = zlib.compressobj(9, zlib.DEFLATED, -15).flush()
    return b"\x78\xda" + million * megabytes + end + (zeros % 65521 << 16 | 1).to_bytes(4, "big")


def test_a_bomb_is_one() -> None:
    assert zlib.decompress(bomb(3)) == bytes(3 * 10**6)


def test_mask_rows_and_function_are_one_pattern() -> None:
    rows = [[], [0], [0, 1], [2], [], [1, 4]]
    mask = np.zeros((6, 6), dtype=np.bool_)
    for i, row in enumerate(rows):
        mask[i, row] = True
    starts = np.cumsum([0, *map(len, rows)])
    same = [
        rv.explicit(mask),
        rv.explicit(mask | np.eye(6, dtype=np.bool_)),  # a token always sees itself
        rv.explicit((starts, np.concatenate([np.array(row, dtype=np.int64) for row in rows]))),
        rv.explicit((starts.tolist(), [j for row in rows for j in row])),
        rv.explicit(rows.__getitem__, n=6),
        rv.explicit(lambda i: reversed(rows[i]), n="6"),
        rv.pattern(spelled(6, 0, 1, 2, 1, 0, 2, 1, 1, 2, 1, 1, 4)),
    ]
    assert len(set(same)) == 1
    assert same[0].spelling == spelled(6, 0, 1, 2, 1, 0, 2, 1, 1, 2, 1, 1, 4)
    assert str(same[0]).startswith("explicit:6@")
    assert [p.sources(5).tolist() for p in same] == [[1, 4]] * len(same)
    assert rv.explicit(mask, recurrent=False).spelling == same[0].spelling + "+attention"
    assert rv.explicit(mask, direct="diagonal") == rv.pattern(same[0].spelling + "+diagonal")


def test_a_table_ends() -> None:
    p = rv.explicit(CAUSAL)
    assert p.limit == 6
    assert rv.pair(p, rv.explicit(CAUSAL[:4, :4])).limit == 4
    for ask in (lambda: p.sources(6), lambda: p.mask(7), lambda: p.slots(7), lambda: p.lives(7),
                lambda: p.total_reads(7), lambda: p.widest_row(7), lambda: p.life(6)):  # fmt: skip
        with pytest.raises(rv.PatternError, match="is defined for 6 tokens: expected at most as many, got 7"):
            ask()


@pytest.mark.parametrize(("rows", "message"), [
    (np.ones((3, 3), dtype=np.bool_), "expected a causal mask, got True at row 0, column 1"),
    (np.ones((3, 3)), "boolean mask of shape (n, n), got float64"),
    (np.ones((3, 4), dtype=np.bool_), "got bool of shape (3, 4)"),
    (np.zeros((0, 0), dtype=np.bool_), "at least one row"),
    (lambda i: [i], "token 0 reads earlier tokens only"),
    (lambda i: [-1] if i else [], "token 1 reads earlier tokens only: expected positions from 0 to 0, got -1"),
    (lambda i: [0.5] if i else [], "as a list of integers, got [0.5]"),
    (([0, 1], [0]), "token 0 reads earlier"),
    (([0, 0, 2], [0]), "starts to grow from 0 to 1"),
    (([0.0, 1.0], [0]), "compressed rows (starts, positions)"),
    ("dense", "got <U5"),
])  # fmt: skip
def test_bad_rows(rows: object, message: str) -> None:
    with pytest.raises(rv.PatternError) as caught:
        rv.explicit(rows)
    assert message in str(caught.value)


def test_other_bad_things() -> None:
    with pytest.raises(rv.PatternError, match="expected 7 rows, got 6: leave n out"):
        rv.explicit(CAUSAL, n=7)
    with pytest.raises(rv.PatternError, match="reads nothing but itself"):
        rv.explicit(CAUSAL, direct="diagonal", recurrent=False)
    with pytest.raises(rv.PatternError, match="names a table by its digest: pass the pattern itself"):
        rv.pattern(str(rv.explicit(CAUSAL)))


HOSTILE = {
    "nothing": "explicit:",
    "no base64": "explicit:a b!",
    "no zlib": "explicit:AAAA",
    "padding in the middle": "explicit:AA==AA",
    "no words": spelled(),
    "no tokens": spelled(0),
    "fewer tokens than said": spelled(5, 0, 0),
    "2**32 - 1 tokens": spelled(2**32 - 1, 0, 0),
    "fewer reads than said": spelled(2, 0, 1),
    "more reads than said": spelled(2, 0, 1, 1, 1),
    "counts that overflow to the right sum": spelled(3, 2**31, 2**31, 1, 1),
    "reads of the future": spelled(2, 0, 1, 2),
    "reads itself": spelled(2, 0, 1, 0),
    "reads twice": spelled(3, 0, 0, 2, 1, 1),
    "farthest first": spelled(3, 0, 0, 2, 2, 1),
    "half a word": spelled(1, 0, after=b"\0"),
    "something after": spelled(1, 0) + "AAAA",
    "cut": spelled(*range(99))[:-8],
    "a bomb": "explicit:" + base64.urlsafe_b64encode(bomb(1000)).decode(),
    "too many tokens": spelled(MOST_TOKENS + 1, *[0] * (MOST_TOKENS + 1)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_spellings_are_refused(name: str) -> None:
    with pytest.raises(rv.PatternError, match="is damaged: expected") as caught:
        rv.pattern(HOSTILE[name])
    assert len(str(caught.value)) < 200


SIZES = ["9" * 19, "9" * 5000, "1048577", "10**9", "-1"]


def test_hostile_spellings_take_little_memory() -> None:
    families = [f"{name}:{size}{rest}" for name in ("bigbird", "longformer", "dilated", "sparse-transformer",
                                                    "logsparse", "binomial")
                for size in SIZES for rest in (",1", ",1,1")]  # fmt: skip
    texts = [*HOSTILE.values(), *families, "x" * 10**6, "a/" * 10**6, "dense/" + "y" * 10**6, "explicit:" + "A" * 10**7]

    def refuse(text: str) -> None:
        with pytest.raises(rv.PatternError, match=r"expected|Expected") as caught:
            rv.pattern(text)
        assert len(str(caught.value)) < 2000

    for text in texts:
        assert peak_bytes(lambda text=text: refuse(text)) < MOST_BYTES, text[:100]


def test_the_largest_table_is_read_in_little_memory() -> None:
    n = 2896
    counts = np.arange(n)  # every token reads all before it
    distances = np.concatenate([np.arange(1, count + 1) for count in counts])
    assert 0 <= MOST_READS - len(distances) < n
    spelling = rv.explicit(np.tri(n, dtype=np.bool_)).spelling
    assert spelling == spelled(n, *counts.tolist(), *distances.tolist())
    assert peak_bytes(lambda: rv.pattern(spelling)) < MOST_BYTES
    with pytest.raises(rv.PatternError, match="too large for a file: expected at most 4,194,304 reads"):
        _ = rv.explicit(np.tri(n + 1, dtype=np.bool_)).spelling
