"""The in-context study: equal parameters, what its records show, and readers that no model is below."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from resolvent.errors import SettingError
from resolvent.model import LanguageModel
from resolvent.studies import grid, incontext
from resolvent.studies.incontext import theory
from resolvent.studies.incontext.cells import RATES, Arm, rate_of, run_config, structures_of
from resolvent.studies.incontext.cells import cells as incontext_cells
from resolvent.studies.incontext.results import results, shares
from resolvent.studies.incontext.study import INCONTEXT
from resolvent.studies.page import page
from resolvent.studies.study import Selection
from resolvent.tasks import Markov
from resolvent.tasks.markov import ORACLE, PAST, last
from resolvent.tasks.synthetic import HELD_OUT, stream
from resolvent.train import Record, train
from resolvent.train.evaluate import on_documents
from resolvent.train.evaluations import DocumentEvaluation, ReaderLoss, Slice
from tests.small_runs import record_of

RANGES = ((0, 7), (8, 15), (16, 31), (32, 63), (64, 127), (128, 255))
FLOORS = {ORACLE: 1.1, PAST: 1.6, last(64): 1.8, last(8): 2.4}


def evaluation(loss: float, floor: float = 1.6) -> DocumentEvaluation:
    def slices(value: float) -> tuple[Slice, ...]:
        return tuple(Slice(first, last, 100, value) for first, last in RANGES)

    readers = {name: ReaderLoss(value + floor - 1.6, slices(value)) for name, value in FLOORS.items()}
    spectrum = (0.5, 0.3, 0.2)
    return DocumentEvaluation(loss, math.exp(loss), 600, 6, PAST, 0.002, slices(loss), readers, spectrum)


LOSSES = {"attention": 1.72, "local:8": 2.59, "first-order": 2.53, "order:8": 2.49, "dense": 1.70, "exponential": 2.45,
          "exponential+cache": 2.47, "quadratic": 2.0, "quadratic+cache": 2.42, "binomial:8": 2.5,
          "binomial:8,lazy": 2.46, "binomial:15": 2.5, "binomial:15,lazy": 2.27, "order:15": 2.3}  # fmt: skip


def records(*arms: Arm, seeds: int = 2) -> list[Record]:
    """With the losses above, more for longer documents and fewer steps; documents of odd seeds are harder by 0.1."""
    made = []
    for arm in arms or (Arm(),):
        at_other_lengths = dict(zip(structures_of(arm.context), structures_of(256), strict=False))
        for structure in structures_of(arm.context):
            for seed in range(300, 300 + seeds):
                loss = (
                    LOSSES[at_other_lengths.get(structure, "order:15")]
                    + 0.05 * math.log2(arm.context / 256)
                    - 0.01 * (arm.steps > 500)
                )
                made.append(record_of(config=run_config(arm, structure, seed), parameters=100_000,
                                      evaluation=evaluation(loss + seed % 2 / 10, 1.6 + seed % 2 / 10)))  # fmt: skip
    return made


def test_structures_have_equal_parameters() -> None:
    """All as many as dense, but for what one unit of the MLPs has; with the first block and without."""
    for first in ("local:2", None):
        models = {name: run_config(Arm(first=first), name, 0).model for name in structures_of(256)}
        sizes = {name: LanguageModel.shape_only(model).parameter_count() for name, model in models.items()}
        assert all(abs(size - sizes["dense"]) <= 2 * 129 for size in sizes.values()), sizes
        assert models["dense"].inner_dim == 4 * 64 <= min(model.inner_dim for model in models.values())


def test_what_is_run(tmp_path: Path) -> None:
    plan = INCONTEXT.plan(Selection(preset="full", out=tmp_path))
    assert len(plan.cells) == len({cell.folder for cell in plan.cells}) == 14 * 5
    assert {cell.seed for cell in plan.cells} == set(range(300, 305))
    assert len({json.dumps(cell.config.to_dict()) for cell in plan.cells}) == 70
    for name, preset in incontext.PRESETS.items():
        assert {arm.steps * max(4096 // arm.context, 1) * arm.context for arm in preset.arms} == {
            arm.steps * 4096 for arm in preset.arms
        }, name
    chosen_on = {cell.seed for cell in INCONTEXT.plan(Selection(preset="rates", out=tmp_path)).cells}
    assert chosen_on.isdisjoint({cell.seed for cell in plan.cells})
    with pytest.raises(SettingError, match=r"unknown preset 'ful' of incontext: expected quick, .*Did you mean 'full'"):
        INCONTEXT.plan(Selection(preset="ful"))


def test_runs_made_elsewhere_are_not_repeated(tmp_path: Path) -> None:
    """They are told by their settings; what a cell has left itself stays."""
    chosen = INCONTEXT.plan(Selection(preset="full", out=tmp_path)).cells
    first, *others = records(seeds=2)
    own = dataclasses.replace(first, seconds=first.seconds + 1)
    (cell,) = (cell for cell in chosen if cell.config == own.config)
    cell.folder.mkdir(parents=True)
    own.write(cell.folder / "run.json")
    grid.adopt(chosen, [first, *others, *records(Arm(steps=501), seeds=2)])
    assert {(cell.structure, cell.seed) for cell in grid.finished(chosen)} == {
        (structure, seed) for structure in structures_of(256) for seed in (300, 301)
    }
    assert cell.record() == own
    assert [each.record() for each in chosen if each.config == others[0].config] == [others[0]]


def test_rates_of_other_sizes_are_those_of_the_nearest() -> None:
    """Whatever the winners are."""
    for name, rate in RATES.items():
        assert rate_of(name) == rate
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "resolvent.studies.incontext.cells.RATES",
            {"binomial:8": 1.0, "binomial:15": 2.0, "binomial:15,lazy": 3.0},
        )
        assert [rate_of(f"binomial:{s}") for s in (9, 12, 27)] == [1.0, 2.0, 2.0]
        assert rate_of("binomial:9,lazy") == 3.0


def test_what_records_show() -> None:
    report = INCONTEXT.report(records())
    table = {row[0]: row for row in report.tables[0].rows}
    head = report.tables[0].head
    assert table["quadratic"][head.index("above floor")] == "0.400 ± 0.000"  # on the same documents: no spread
    assert table["quadratic"][head.index("share of the way")] == "65 ± 0 %"
    assert table["reader: last 8 tokens"][head.index("above floor")] == "+0.800"
    grades = {claim.comparison: claim.grade for claim in report.claims.graded}
    assert grades["quadratic < exponential"] == "supported"
    assert grades["first-order < local:8"] == "supported"
    assert grades["quadratic goes most of the way from first-order to attention"] == "supported"
    assert grades["exponential+cache goes most of the way from first-order to attention"] == "contradicted"
    assert grades["first-order > exponential/exponential+cache > quadratic/quadratic+cache > attention/dense"] == (
        "supported"
    )
    assert grades["binomial:15,lazy < order:15"] == "supported"
    assert grades["binomial:8 < exponential+cache"] == "contradicted"
    assert page(report, "x").count("<img") == 3  # all figures are drawn


def test_chains_on_fewer_tokens_have_a_column_and_no_part_in_the_fit() -> None:
    own = records(Arm(), Arm(k=4), Arm(2000, k=4), seeds=1)
    report, groups = INCONTEXT.report(own), results(own)
    assert [str(setting) for setting in groups][1:] == [
        "256 tokens, 500 steps, k = 4",
        "256 tokens, 2,000 steps, k = 4",
    ]
    share = {row[0]: row[1:] for row in report.tables[2].rows}
    assert share["quadratic"] == ("65 %",) * 3
    assert theory.fits(groups) == theory.fits(results(records(Arm(), seeds=1)))
    assert own[-1].config.model.vocab_size == own[-1].config.task.vocab_size == 4


def test_all_has_the_runs_of_the_other_presets(tmp_path: Path) -> None:
    every = [cell.folder for cell in incontext_cells("all", tmp_path)]
    assert len(set(every)) == len(every)
    for name, size in incontext.PRESETS.items():
        own = {cell.folder for cell in incontext_cells(name, tmp_path)}
        assert (own <= set(every)) == (name not in ("demo", "rates")), name
        assert len(own) == (len(every) if size.together else
                            size.seeds * sum(len(size.structures(arm.context)) for arm in size.arms))  # fmt: skip


def test_records_that_cannot_be_compared() -> None:
    own = records(seeds=1)
    harder = dataclasses.replace(own[0].config, task=Markov(alpha=0.2))
    with pytest.raises(SettingError, match="expected one alpha, order and hidden in all records"):
        results([own[1], dataclasses.replace(own[0], config=harder)])
    elsewhere = dataclasses.replace(own[1].evaluation, by_position=own[1].evaluation.by_position[:3])  # type: ignore[type-var]
    with pytest.raises(SettingError, match="were measured in different ways"):
        results([own[0], dataclasses.replace(own[1], evaluation=elsewhere)])
    (group,) = results(own[:1]).values()
    assert shares(group[0], group) == []


def test_there_is_no_share_of_the_way_where_attention_is_no_better() -> None:
    def run(structure: str, loss: float) -> Record:
        return record_of(config=run_config(Arm(first=None), structure, 300), evaluation=evaluation(loss))

    own = [run("attention", 2.5), run("first-order", 2.4), run("quadratic", 2.3)]
    (group,) = results(own).values()
    assert shares(group[2], group) == []


# Theory beside data


def test_a_reader_within_hops_is_the_window_reader_for_bands() -> None:
    """Within h hops of order:w lie the last h·w inputs and one's own, each with its pair: h·w + 2 tokens."""
    t = Markov(k=4, context=64)
    documents = t.draw(stream(HELD_OUT - 1, 0), 64, 64)
    for hops in (1, 2):
        nats = theory.reach_reader("order:5", hops, t)
        assert nats == pytest.approx(t.counting(documents.tokens, 5 * hops + 2).mean(0))
    assert theory.reach_reader("dense", 1, t) == pytest.approx(t.counting(documents.tokens).mean(0))


def test_the_fit_finds_what_is_there() -> None:
    """Losses that are linear in log hops are predicted by it, and left-out structures too; not by the parameters."""
    own = records()
    profiles = {result.structure: math.log(result.theory.mean_hops) for result in next(iter(results(own).values()))}
    made = [
        dataclasses.replace(
            record,
            evaluation=evaluation(1.7 + 0.1 * profiles[str(record.config.model.pattern[-1])]),  # type: ignore[index]
        )
        for record in own
    ]
    fits = {fit.predictors: fit for fit in theory.fits(results(made))}
    best = fits["log mean hops",]
    assert best.slopes[0] == pytest.approx((0.1, 0.0), abs=1e-6)
    assert best.explained == pytest.approx(1)
    assert best.left_out < 1e-6 < fits[()].left_out
    assert fits["log parameters",].slopes[0][1] == math.inf  # equal for all
    assert theory.fits(results(made[:4])) == []
    few = [record for record in made if record.config.model.pattern[-1] not in ("attention", "dense")]  # type: ignore[index]
    assert theory.fits(results(made), ("attention", "dense")) == theory.fits(results(few)) != theory.fits(results(made))


# From a run to its record


def test_a_run_leaves_its_readers(tmp_path: Path) -> None:
    """The record has the floors on the very documents that the model was measured on, and comes back from its file."""
    changes = ["train.steps=3", "train.warmup=1", "train.batch=4", "train.eval_batches=3", "train.eval_every=3",
               "model.dim=16", "model.ff_dim=16", "task.context=40"]  # fmt: skip
    config = run_config(Arm(), "exponential+cache", 5).changed(changes)
    record = train(config, tmp_path)
    own = record.evaluation
    assert isinstance(own, DocumentEvaluation)
    batches = list(Markov(context=40).held_out(5, 4, 3))
    for name, reader in own.readers.items():
        assert reader.loss == pytest.approx(np.mean([batch.readers[name].mean() for batch in batches]))
    assert (own.documents, own.tokens) == (12, 480)
    assert [(piece.first, piece.last) for piece in own.by_position] == [(0, 7), (8, 15), (16, 31), (32, 39)]
    assert sum(piece.count * piece.value for piece in own.by_position) / 480 == pytest.approx(own.loss)
    assert sum(own.hop_spectrum) == pytest.approx(1, abs=1e-4)
    assert own.excess > 3 * own.excess_error > 0
    assert Record.read(tmp_path / "run.json") == record
    assert "floor" in str(own)


def test_the_model_is_measured_by_cross_entropy() -> None:
    """By a loop over tokens; and a model that gives every token the same chance has the loss log k."""
    model = LanguageModel.seeded(dataclasses.replace(run_config(Arm(), "dense", 0).model, dim=16, ff_dim=16), 0)
    batch = next(Markov(context=20).held_out(0, 3, 1))
    own = on_documents(model, [batch], PAST)
    logits = model(torch.from_numpy(batch.tokens.copy())).log_softmax(-1)
    chosen = logits.gather(-1, torch.from_numpy(batch.targets.copy())[..., None])[..., 0]
    assert own.loss == pytest.approx(-float(chosen.mean().detach()), rel=1e-4)
    excess = -chosen.detach().double().numpy() - batch.readers[PAST]
    assert own.excess_error == pytest.approx(excess.mean(1).std(ddof=1) / 3**0.5, rel=1e-3)
    assert own.hop_spectrum == ()
    torch.nn.init.zeros_(model.embedding.weight)
    assert on_documents(model, [batch], PAST).loss == pytest.approx(math.log(16), rel=1e-5)


def test_a_floor_must_be_among_the_readers() -> None:
    values = evaluation(2.0).to_dict()
    assert DocumentEvaluation.from_dict(json.loads(json.dumps(values))) == evaluation(2.0)
    with pytest.raises(SettingError, match=r"expected the floor among the readers oracle, past, .* got 'best'"):
        DocumentEvaluation.from_dict({**values, "floor": "best"})


def test_published_models_are_not_below_the_floor() -> None:
    """Of all committed records: the excess is positive, or within four standard errors of its documents."""
    from resolvent.train.record import read_records

    folder = Path(__file__).parents[2] / "docs" / "records"
    for path in folder.glob("incontext-*.jsonl"):
        for record in read_records(path):
            own = record.evaluation
            assert isinstance(own, DocumentEvaluation)
            assert own.excess > -4 * own.excess_error, (path.name, record)
