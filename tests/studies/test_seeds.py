"""A seed that is there twice would count twice: every study raises an error that names both files."""

import shutil
from pathlib import Path

import pytest

from resolvent.errors import SettingError
from resolvent.studies.registry import STUDIES
from resolvent.train.record import read_records
from tests.studies.test_dimension import records as of_dimension

RECORDS = Path(__file__).parents[2] / "docs" / "records"
COMMITTED = {  # by study: the records, and the first run in them
    "table1": ("table1-longer", "attention · copy"),
    "design": ("design-small", "binomial:8,lazy · copy · length 49 · dimension 64"),
    "pareto": ("pareto-quick", "attention · softmax"),
    "mamba": ("mamba-quick", "first-order · softmax"),
    "sharing": ("sharing-quick", "exponential+cache · softmax"),
    "normalization": ("normalization-quick", "exponential+cache · softmax"),
    "length": ("length-quick", "attention · softmax"),
    "ladder": ("ladder-python", "attention · softmax"),
    "incontext": ("incontext-all", "256 tokens, 500 steps · attention"),
    "incontext, by rate": ("incontext-rates", "attention · 0.005 · 256 tokens, 500 steps"),
}


@pytest.mark.parametrize("name", COMMITTED)
def test_a_seed_that_is_there_twice_raises(name: str, tmp_path: Path) -> None:
    file, run = COMMITTED[name]
    records = read_records(RECORDS / f"{file}.jsonl")
    again = read_records(Path(shutil.copy(RECORDS / f"{file}.jsonl", tmp_path / "again.jsonl")))[:1]
    with pytest.raises(SettingError) as error:
        STUDIES[name.partition(",")[0]].report([*records, *again])
    assert str(error.value) == (
        f"expected each seed of {run} once, got seed {again[0].seed} twice, in {RECORDS / file}.jsonl, line 1 and in "
        f"{tmp_path}/again.jsonl, line 1: leave one of the records out."
    )


def test_a_seed_that_is_there_twice_raises_by_width() -> None:
    """Of records that were just made, which no file has."""
    first, *others = of_dimension({"dense": {8: (0.9, 0.8)}})
    with pytest.raises(SettingError, match="expected each seed of dense · 8 once, got seed 20 twice, in a run of this"):
        STUDIES["dimension"].report([first, *others, first])


def test_every_study_is_tried() -> None:
    assert {name.partition(",")[0] for name in COMMITTED} | {"dimension"} == set(STUDIES)
