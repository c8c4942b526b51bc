"""Several patterns side by side, as one value that prints itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, overload

from resolvent.analysis.congestion import Effort
from resolvent.analysis.profile import Profile, analyze, describe, describe_number
from resolvent.errors import SettingError
from resolvent.patterns import PAPER_STRUCTURES, PatternLike

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HEADINGS = ("structure", "reads", "cache", "hops (least)", "mean", "congestion (least)", "nearby")


@dataclass(frozen=True)
class Comparison(Sequence[Profile]):
    """Profiles of patterns at one length; `print` it for the theory half of the paper's Table 1."""

    profiles: tuple[Profile, ...]

    @overload
    def __getitem__(self, index: int) -> Profile: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Profile, ...]: ...

    def __getitem__(self, index: int | slice) -> Profile | tuple[Profile, ...]:
        return self.profiles[index]

    def __len__(self) -> int:
        return len(self.profiles)

    def __iter__(self) -> Iterator[Profile]:
        return iter(self.profiles)

    def to_dict(self) -> list[dict[str, object]]:
        """Plain values for JSON: a list of profiles."""
        return [profile.to_dict() for profile in self.profiles]

    def plot(self) -> Figure:
        """Growth of reads and of the cache, and cache against congestion, of all of them.

        `plot().savefig("page.png")` writes a file.
        """
        from resolvent.analysis.figures.panels import comparison_figure  # which needs matplotlib

        return comparison_figure(self.profiles)

    def __repr__(self) -> str:
        names = [str(profile.pattern) for profile in self.profiles]
        shown = ", ".join(names[:4]) + (f", … {len(names)} in all" if len(names) > 4 else "")
        return f"Comparison({shown}; n={self.profiles[0].n:,})"

    def __str__(self) -> str:
        rows = [_HEADINGS, *(_row(profile) for profile in self.profiles)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
        lines = [self._title]
        for name, *numbers in rows:
            cells = [number.rjust(width) for number, width in zip(numbers, widths[1:], strict=True)]
            lines.append("  ".join([name.ljust(widths[0]), *cells]))
        return "\n".join(lines + self._notes())

    @property
    def _title(self) -> str:
        return f"n = {self.profiles[0].n:,} tokens"

    def _notes(self) -> list[str]:
        notes = []
        if any(profile.least.hops is not None or profile.least.congestion is not None for profile in self.profiles):
            notes.append("(least): of any pattern with as many slots that connects every pair")
            notes.append("slots × congestion ≥ n - 1 in every row and for (least)")
        if any(profile.unreachable_pairs for profile in self.profiles):
            notes.append("∞: some pairs have no path; * over the pairs with a path")
        return notes


def _row(profile: Profile) -> tuple[str, ...]:
    unreachable = profile.unreachable_pairs > 0
    return (
        str(profile.pattern),
        f"{profile.reads_per_token.max:,}",
        f"{profile.cache_slots:,}",
        hops_and_least(profile),
        f"{profile.mean_hops:,.2f}" + ("*" if unreachable else ""),
        congestion_and_least(profile),
        describe_number(profile.congestion_nearby),
    )


def hops_and_least(profile: Profile) -> str:
    """`10 (5)`: the most hops of any pair, and the fewest that its cache allows; `∞` if some pair has no path."""
    least = profile.least.hops
    return "∞" if profile.unreachable_pairs or least is None else f"{profile.max_hops:,} ({least:,})"


def congestion_and_least(profile: Profile) -> str:
    """`103 (103)`: congestion or its bounds, and the least that its cache allows."""
    least = profile.least.congestion
    return describe(profile.congestion) + ("" if least is None else f" ({least:,})")


def compare(*patterns: PatternLike, n: int | str = 1024, effort: Effort = "search") -> Comparison:
    """Compare patterns at one length: cost per token, cache, hops and congestion.

    Args:
        patterns: spellings, `Pattern`s or functions k ↦ stride [default: the paper's nine structures].
        n: sequence length in tokens, such as 4096 or "128k".
        effort: how hard to look for routings of low congestion; see `congestion`.

    Returns:
        A `Comparison`: a sequence of profiles that prints itself as a table.

    >>> print(compare("first-order", "order:8", n=64))
    n = 64 tokens
    structure    reads  cache  hops (least)   mean  congestion (least)  nearby
    first-order      1      1       63 (63)  21.67             64 (63)      72
    order:8          8      8         8 (3)   3.17               8 (8)       9
    (least): of any pattern with as many slots that connects every pair
    slots × congestion ≥ n - 1 in every row and for (least)
    """
    if any(isinstance(each, list | tuple) for each in patterns):
        raise SettingError("expected patterns one by one, as in compare('dense', 'order:8'), got a list: unpack it.")
    return Comparison(tuple(analyze(each, n, effort=effort) for each in patterns or PAPER_STRUCTURES))
