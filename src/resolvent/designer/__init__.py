"""From a budget to patterns: search with pruning, exact figures, proven bounds. Never imports torch."""

from resolvent.designer.budget import FIGURES, Budget
from resolvent.designer.candidate import Better, Candidate
from resolvent.designer.design import Design, design
from resolvent.designer.measure import Figures
from resolvent.designer.structure import Shape, Structure

__all__ = ["FIGURES", "Better", "Budget", "Candidate", "Design", "Figures", "Shape", "Structure", "design"]
