"""In-context Markov language: how much of the past each structure gathers, beside readers whose loss is known."""

from resolvent.studies.incontext.cells import PRESETS, Arm, InContextPreset, preset_of, run_config

__all__ = ["PRESETS", "Arm", "InContextPreset", "preset_of", "run_config"]
