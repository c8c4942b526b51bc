"""The paper's Table 1: nine structures on three tasks, with theory, accuracies, figures and graded claims."""

from resolvent.studies.table1.cells import PRESETS, Table1Preset, cells, preset_of, run_config

__all__ = ["PRESETS", "Table1Preset", "cells", "preset_of", "run_config"]
