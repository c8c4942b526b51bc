"""All studies. A new one is a folder or a file, and a line here: its command and its published results follow."""

from __future__ import annotations

from resolvent.studies.designed.study import DESIGN
from resolvent.studies.dimension import DIMENSION
from resolvent.studies.incontext.study import INCONTEXT
from resolvent.studies.language.ladder import LADDER
from resolvent.studies.language.mamba import MAMBA
from resolvent.studies.language.positions import LENGTH
from resolvent.studies.language.study import NORMALIZATION, PARETO, SHARING
from resolvent.studies.study import Study
from resolvent.studies.table1.study import TABLE1

STUDIES: dict[str, Study] = {
    study.name: study
    for study in (TABLE1, DIMENSION, DESIGN, PARETO, MAMBA, SHARING, NORMALIZATION, LENGTH, INCONTEXT, LADDER)
}
