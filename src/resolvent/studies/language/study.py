"""Studies on text: structures × rules × seeds on a corpus, and what their records show.

Studies with the same `out` share their runs: what one has trained, the next one reads. A new study is a `TextStudy`,
in a file of its own, and its name in `resolvent.studies.registry`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, final

from resolvent.errors import SettingError
from resolvent.patterns import PAPER_STRUCTURES, pattern
from resolvent.rules.rope import rope_label, rope_setting
from resolvent.studies.grid import Cell, folder_of, slug
from resolvent.studies.language import claims, figures, lengths, table
from resolvent.studies.language.claims import TextStatement
from resolvent.studies.language.presets import PRESETS, preset_of, run_config, with_parameters_of
from resolvent.studies.language.table import Column
from resolvent.studies.language.variants import Variant, name_of, variants
from resolvent.studies.study import (
    Claims,
    Graded,
    Measure,
    Option,
    Selection,
    Study,
    StudyFigure,
    StudyPlan,
    StudyReport,
    TextTable,
)
from resolvent.tasks import Text
from resolvent.train.config import RunConfig
from resolvent.train.config_file import ConfigFile
from resolvent.train.record import Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_OPTIONS = {  # settings that tell the cells of a study apart
    "model.pattern": "--structures",
    "model.rule": "--rules",
    "train.seed": "--seeds and --first-seed",
    "task.corpus": "--corpus",
}


TEXT_OPTIONS: tuple[Option, ...] = ("corpus", "rules", "first_seed", "rates", "records")
_DEFAULT = "laptop"
_PRESETS = ((_DEFAULT, PRESETS[_DEFAULT].about), *((name, p.about) for name, p in PRESETS.items() if name != _DEFAULT))


@final
@dataclass(frozen=True, kw_only=True)
class TextStudy(Study):
    """Every structure with every rule.

    measuring   what is measured of finished runs beside their own evaluation, and in how many steps; `breakdown` shows
                it in tables of its own
    rates       learning rates of rules, as multiples of the preset's, where they were chosen for each
    matched     whether MLPs are as wide as gives every rule the parameters of the first one
    beside      structures with one rule each that are run, too, unless structures or rules are chosen; if matched, with
                the parameters of the first structure and rule
    first_seed  of the published runs, where the preset's was used to choose settings
    """

    structures: tuple[str, ...]
    columns: Callable[[Sequence[Variant]], list[Column]]
    notes: Callable[[Sequence[Variant]], list[str]]
    statements: Callable[[Sequence[Variant]], list[TextStatement]]
    figure: Callable[[Sequence[Variant]], Figure]
    caption: str  # what to see in the figure
    rules: tuple[str, ...] = ("softmax",)
    measuring: Callable[[Sequence[Cell], Selection, Path], tuple[Measure, int]] | None = None
    breakdown: Callable[[Sequence[Variant]], tuple[TextTable, ...]] = lambda _: ()
    rates: Mapping[str, float] = field(default_factory=dict)
    matched: bool = False
    beside: tuple[tuple[str, str], ...] = ()
    first_seed: int | None = None
    options: tuple[Option, ...] = TEXT_OPTIONS
    presets: tuple[tuple[str, str], ...] = _PRESETS

    def plan(self, selection: Selection) -> StudyPlan:
        if selection.corpus is None:
            raise SettingError("expected --corpus, the folder of a prepared text: see 'resolvent data prepare --help'.")
        preset, about = self.preset_of(selection)
        out = selection.out or Path("out") / f"language-{preset}-{selection.corpus.resolve().name}"
        cells = self.cells(
            preset, str(selection.corpus), out, structures=selection.structures, rules=selection.rules,
            seeds=selection.seeds, first_seed=selection.first_seed, rates=selection.rates, ropes=selection.ropes,
            changes=selection.changes,
        )  # fmt: skip
        if self.measuring is None:
            return StudyPlan(preset, about, out, cells)
        return StudyPlan(preset, about, out, cells, *self.measuring(cells, selection, out))

    def cells(
        self, preset: str, corpus: str, out: Path, *, structures: Sequence[str] | None = None,
        rules: Sequence[str] | None = None, seeds: int | None = None, first_seed: int | None = None,
        rates: Path | None = None, ropes: Sequence[str] | None = None, changes: Sequence[str] = (),
    ) -> list[Cell]:  # fmt: skip
        """Every run, seed by seed, so that a study that is stopped has complete comparisons."""
        size = preset_of(preset)
        _check_options(changes, seeds)
        text, tuned = Text(corpus, size.context).prepared(), _rates(rates, preset)
        first = next(seed for seed in (first_seed, self.first_seed, size.first_seed) if seed is not None)

        def config(structure: str, rule: str, seed: int, rope: str) -> RunConfig:
            factor = (
                self.rates.get(rule, 1.0) * (tuned(structure) or size.train.learning_rate) / size.train.learning_rate
            )
            made = run_config(size, text, structure, seed, rule, factor).changed(changes)
            if rope:
                made = made.updated({"model": {"rope": rope_setting(rope)}})
            reference = self.structures[0] if (structure, rule) in self.beside else structure
            if not self.matched or (structure, rule) == (reference, self.rules[0]):
                return made
            return with_parameters_of(made, run_config(size, text, reference, seed, self.rules[0]).changed(changes))

        made: dict[Path, Cell] = {}
        for seed in range(first, first + (seeds or size.seeds)):
            for (structure, rule), rope in product(self._pairs(structures, rules), dict.fromkeys(ropes or ("",))):
                own = config(structure, rule, seed, rope).prepared()
                if not lengths.has_positions(own.model):  # which are the same whatever positions are
                    own = config(structure, rule, seed, "").prepared()
                label = rope_label(own.model.rope) if ropes else ""
                folder = folder_of(out / "runs", structure) / "-".join(filter(None, [slug(rule), slug(label)]))
                name = name_of(str(pattern(structure)), rule, label)
                cell = Cell("text", name, seed, own, folder / f"seed{seed}")
                made.setdefault(cell.folder, cell)
        return list(made.values())

    def _pairs(self, structures: Sequence[str] | None, rules: Sequence[str] | None) -> list[tuple[str, str]]:
        spelled = [pattern(each).spelling for each in structures or self.structures]
        beside = () if structures or rules else self.beside
        return list(dict.fromkeys([*product(spelled, rules or self.rules), *beside]))

    def report(self, records: Sequence[Record]) -> StudyReport:
        groups = variants(records)
        columns, notes = self.columns(groups), (*self.notes(groups), *table.scale_notes(groups))
        return StudyReport(
            tables=(table.filled(columns, groups), *self.breakdown(groups)),
            brief=table.filled([column for column in columns if column.brief], groups),
            captions=notes,
            notes=notes,
            claims=self._claims(groups),
            figures=(StudyFigure(self.title, partial(self.figure, groups), True, self.caption),),
        )

    def _claims(self, groups: Sequence[Variant]) -> Claims:
        by_name, statements = {variant.name: variant for variant in groups}, self.statements(groups)
        graded = tuple(Graded(each.source, str(each), each.grade(by_name)) for each in statements)
        return Claims("What the paper says", claims.rules(statements), graded)


def _rates(path: Path | None, preset: str) -> Callable[[str], float | None]:
    """The learning rate of a structure in a file; None without one."""
    if path is None:
        return lambda _: None
    file = ConfigFile.read(path)
    if not file.rates:
        raise SettingError(f"{path} has no learning rates: expected a file that 'resolvent study tune' wrote.")
    if file.preset not in (None, preset):
        raise SettingError(f"{path} has learning rates for the preset {file.preset}: expected those for {preset}.")
    return file.rate


def _check_options(changes: Sequence[str], seeds: int | None) -> None:
    for change in changes:
        if (key := change.partition("=")[0].strip()) in _OPTIONS:
            raise SettingError(f"the study sets {key} itself: expected {_OPTIONS[key]} instead of --set {change}.")
    if seeds is not None and seeds < 1:
        raise SettingError(f"expected at least one seed, got {seeds}.")


_FEW = ("exponential+cache", "quadratic+cache", "dense")

PARETO = TextStudy(
    name="pareto",
    title="perplexity against complexity",
    about="Nine structures on text: the paper's perplexity against complexity, with the Pareto frontier and claims.",
    page="pareto.html",
    structures=tuple(PAPER_STRUCTURES),
    columns=table.pareto_columns,
    notes=table.pareto_notes,
    statements=claims.pareto,
    figure=figures.pareto_figure,
    caption=figures.PARETO,
)
SHARING = TextStudy(
    name="sharing",
    title="A tied to B",
    about="A = BD + D' against an A of its own: what halving work and cache costs in perplexity.",
    page="sharing.html",
    structures=_FEW,
    rules=("softmax", "tied"),
    columns=table.rule_columns,
    notes=table.rule_notes,
    statements=claims.sharing,
    figure=figures.rules_figure,
    caption=figures.RULES,
)
NORMALIZATION = TextStudy(
    name="normalization",
    title="gates and the softmax over T",
    about="Three normalizations: a gate for each token, a constant one, and one softmax over all of (I - B)^-1 A.",
    page="normalization.html",
    structures=_FEW,
    rules=("softmax", "softmax:gate=0.5", "joint"),
    columns=table.rule_columns,
    notes=table.rule_notes,
    statements=claims.normalization,
    figure=figures.rules_figure,
    caption=figures.RULES,
)
