"""Patterns of others: each against its definition, written down once more from the publication."""

import numpy as np
import pytest

import resolvent as rv
from resolvent.patterns import FAMILIES
from resolvent.patterns.published import PUBLISHED, sample, splitmix64

N = 200
# What token 1,000 of bigbird:2,1,3 reads, by seed.
BIGBIRD = {0: [0, 275, 348, 747, 998, 999], 7: [0, 401, 588, 802, 998, 999]}


def rows(spec: str, n: int = N) -> list[list[int]]:
    return [rv.pattern(spec).sources(i).tolist() for i in range(n)]


def test_sparse_transformer_is_the_union_of_both_heads() -> None:
    for stride in [1, 3, 8, 32, 500]:
        for i, row in enumerate(rows(f"sparse-transformer:{stride}")):
            first = set(range(max(0, i - stride), i))
            second = {j for j in range(i) if (i - j) % stride == 0}
            assert row == sorted(first | second)


def test_sparse_transformer_reaches_everything_in_two_hops_with_two_root_n_reads() -> None:
    p = rv.pattern("sparse-transformer")
    assert str(p) == "sparse-transformer:32"
    assert p.widest_row(1024) == 31 + 31  # 1, …, 32 and 64, 96, …, 992
    assert_hops(p, 300, 2)


def test_longformer_reads_a_window_and_the_first_tokens() -> None:
    for w, g in [(1, 0), (1, 1), (4, 2), (3, 10), (300, 5)]:
        for i, row in enumerate(rows(f"longformer:{w},{g}")):
            assert row == [j for j in range(i) if j < g or i - j <= w]
        p = rv.pattern(f"longformer:{w},{g}")
        assert [p.slots(n) for n in (1, 2, N)] == [0, 1, min(w + g, N - 1)]  # the global ones are never dropped


def test_bigbird_reads_a_window_the_first_tokens_and_random_ones() -> None:
    for w, g, r in [(1, 0, 0), (4, 2, 2), (2, 0, 5), (3, 3, 1024)]:
        for i, row in enumerate(rows(f"bigbird:{w},{g},{r}")):
            fixed = {j for j in range(i) if j < g or i - j <= w}
            assert fixed <= set(row)
            assert len(row) == min(len(fixed) + r, i)


def test_bigbird_is_random_by_seed_and_token_alone() -> None:
    """These numbers are part of saved models: they must never change."""
    assert rv.pattern("bigbird:2,1,3").sources(1000).tolist() == BIGBIRD[0]
    assert rv.pattern("bigbird:2,1,3,7").sources(1000).tolist() == BIGBIRD[7]
    assert rv.pattern("bigbird:2,1,3,0") == rv.pattern("bigbird:2,1,3") != rv.pattern("bigbird:2,1,3,7")
    assert splitmix64(1234567) == 6457827717110365317  # of the published generator


def test_random_reads_are_spread_evenly() -> None:
    counts = np.bincount([j for state in range(4000) for j in sample(20, 5, splitmix64(state))], minlength=20)
    assert counts.sum() == 20_000
    assert abs(counts - 1000).max() < 5 * (1000 * 0.75) ** 0.5  # five standard deviations


def test_logsparse_reads_a_window_and_powers_of_two_beyond_it() -> None:
    for w in [0, 1, 2, 5, 60, 1000]:
        spec = f"logsparse:{w}" if w else "logsparse"
        distances = {*range(1, w + 1), *(w + 2**k for k in range(12))}
        assert rows(spec) == [[j for j in range(i) if i - j in distances] for i in range(N)]
        assert str(rv.pattern(f"logsparse:{w}")) == spec


def test_dilated_reads_a_window_with_gaps() -> None:
    for w, d in [(1, 1), (8, 1), (3, 2), (4, 50), (1, 1000)]:
        expected = [[j for j in range(i) if (i - j) % d == 0 and i - j <= w * d] for i in range(N)]
        assert rows(f"dilated:{w},{d}") == expected
        assert rv.pattern(f"dilated:{w},{d}").slots(N) == min(w * d, N - 1)


def test_butterfly_reads_what_differs_in_one_bit() -> None:
    assert rows("butterfly") == [[j for j in range(i) if (i ^ j).bit_count() == 1] for i in range(N)]


def test_fenwick_reads_the_nodes_whose_intervals_make_up_the_past() -> None:
    for i, row in enumerate(rows("fenwick")):
        intervals = [range(j + 1 - ((j + 1) & -(j + 1)), j + 1) for j in row]
        assert [j for interval in intervals for j in interval] == list(range(i))


def test_two_hop_needs_two_hops_and_log_n_reads() -> None:
    for n in [1, 2, 3, 8, 31, 64, 300]:
        p = rv.pattern("two-hop")
        assert_hops(p, n, 2)
        assert p.total_reads(n) <= n * max((n - 1).bit_length(), 1)


def assert_hops(p: rv.Pattern, n: int, most: int) -> None:
    """By products of boolean matrices."""
    step = p.mask(n) | np.eye(n, dtype=np.bool_)
    reached = np.linalg.matrix_power(step.astype(np.int64), most) > 0
    assert np.array_equal(reached, np.tri(n, dtype=np.bool_))


def test_each_has_a_source_and_a_claim() -> None:
    for family in PUBLISHED:
        assert FAMILIES[family.name] is family
        assert any(year in family.source for year in ("1987", "2019", "2020", "2025"))
        assert family.claim
        assert rv.pattern(family.sample).recurrent
        published = rv.pattern(family.sample + "+attention")
        assert not published.recurrent
        assert not published.mask(9, "b").any()


@pytest.mark.parametrize("spec", ["sparse-transformer:4", "logsparse:2", "dilated:3,2"])
def test_those_made_of_strides_have_a_cache_efficient_version(spec: str) -> None:
    p = rv.pattern(f"{spec}+cache")
    assert str(p) == f"{spec}+cache"
    for i in range(1, N):
        assert set(p.sources(i).tolist()) <= {*p.sources(i - 1).tolist(), i - 1}


def test_they_start_in_constant_time_whatever_their_size() -> None:
    """Nothing is listed before it is asked for."""
    largest = 1 << 20
    for spec in (f"sparse-transformer:{largest}", f"logsparse:{largest}", f"dilated:{largest},{largest}",
                 f"longformer:{largest},{largest}", f"bigbird:{largest},{largest},1024,{2**64 - 1}",
                 "binomial:1024", "binomial:1024,lazy"):  # fmt: skip
        p = rv.pattern(spec)
        assert str(p) == spec
        assert p.reads(50) == (0 if spec.startswith("dilated") else 50)
        assert p.slots(50) == 49
