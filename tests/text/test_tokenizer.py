"""Tokenizers: every text round-trips, ids are those of the original, and nothing in a text is special."""

import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from resolvent.text import TOKENIZERS, ByteTokenizer, GPT2Tokenizer, TextError, Tokenizer, tokenizer

module = import_module("resolvent.text.tokenizer")
SPECIAL = "<|endoftext|>"
HARD = ["", SPECIAL, f"a{SPECIAL}b", "\r\n \t\n", "it's we'll  'S", "naïve 日本語 🙂👩‍👩‍👧",
        "\x00\x1c\x85\u2028\ufeff\ufffd", "x" * 5000]  # fmt: skip
texts = st.one_of(st.text(), st.sampled_from(HARD), st.lists(st.sampled_from([*HARD[:7], " ", "a"])).map("".join))
law = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(params=TOKENIZERS)
def each(request: pytest.FixtureRequest, gpt2: GPT2Tokenizer) -> Tokenizer:
    return gpt2 if request.param == "gpt2" else tokenizer(request.param)


@law
@given(text=texts)
def test_every_text_comes_back(each: Tokenizer, text: str) -> None:
    ids = each.encode(text)
    assert ids.dtype == np.uint16
    assert each.end_of_text not in ids
    assert each.decode(ids) == text


def test_numbers(gpt2: GPT2Tokenizer) -> None:
    """As published: two words, and the special token as plain text; and bytes."""
    assert gpt2.encode("Hello world").tolist() == [15496, 995]
    assert gpt2.encode(SPECIAL).tolist() == [27, 91, 437, 1659, 5239, 91, 29]
    assert (gpt2.vocab_size, gpt2.end_of_text) == (50257, 50256)
    assert ByteTokenizer().encode("é\n").tolist() == [0xC3, 0xA9, 10]


@law
@given(text=texts)
def test_gpt2_agrees_with_another_implementation(gpt2: GPT2Tokenizer, session_cache: Path, text: str) -> None:
    from tokenizers import ByteLevelBPETokenizer

    files = session_cache / "resolvent" / "tokenizers" / "gpt2"
    if not hasattr(test_gpt2_agrees_with_another_implementation, "other"):
        made = ByteLevelBPETokenizer(str(files / "encoder.json"), str(files / "vocab.bpe"))
        test_gpt2_agrees_with_another_implementation.other = made
    assert gpt2.encode(text).tolist() == test_gpt2_agrees_with_another_implementation.other.encode(text).ids


def test_white_space_is_unicodes() -> None:
    import regex

    everything = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x110000)]))
    assert sorted(module.WHITE) == regex.findall(r"\p{White_Space}", everything)


gaps = st.lists(st.sampled_from([" ", "\n", "\u3000", "\xa0", "a", "!", "'s", "\x1c"]), max_size=30).map("".join)


@law
@given(text=gaps)
def test_cuts_at_long_gaps_change_nothing(gpt2: GPT2Tokenizer, text: str) -> None:
    expected = gpt2.encode(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_LONG", 2)
        patch.setattr(module, "_LONG_RUN", module.re.compile(f"[{module.WHITE}]{{2,}}"))
        assert module._split_at_long_runs("a  b \n") == ["a", " ", " b", " \n"]
        assert np.array_equal(gpt2.encode(text), expected)


@pytest.mark.parametrize("text", ["x" + " " * 10**6 + "y", "x" + "\n" * 10**6, f"{' ' * 10**6}a{' ' * 10000}b"])
def test_gaps_that_overflow_tiktoken(gpt2: GPT2Tokenizer, text: str) -> None:
    assert gpt2.decode(gpt2.encode(text)) == text


def test_decode_shows_ends_and_broken_characters(each: Tokenizer) -> None:
    ids = [*each.encode("é").tolist(), each.end_of_text, *each.encode("b").tolist()]
    assert each.decode(ids) == f"é{SPECIAL}b"
    assert each.decode(np.array(ids, dtype=np.int64)) == f"é{SPECIAL}b"
    assert each.decode([]) == ""
    assert ByteTokenizer().decode([0xC3]) == "\ufffd"


def test_errors(each: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TextError, match=r"half of a surrogate pair at character 1 \(U\+D800\)"):
        each.encode("a\ud800")
    for ids, message in (
        ([1, each.vocab_size], f"expected tokens of '{each.name}', from 0 to .*, got 1 to {each.vocab_size}"),
        ([-1], "got -1 to -1"),
        ([[1, 2]], r"a 1-D array of token ids, got shape \(1, 2\)"),
        ([1.0], "of float64"),
    ):
        with pytest.raises(TextError, match=message):
            each.decode(ids)
    with pytest.raises(TextError, match=r"unknown tokenizer 'gpt-2': expected gpt2, bytes, .*Did you mean 'gpt2'\?"):
        tokenizer("gpt-2")
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    with pytest.raises(ImportError, match=r"needs tiktoken: pip install tiktoken, or use --tokenizer bytes"):
        tokenizer("gpt2")
