"""`toolkit compare`: engines and methods beside each other, on the same prompts, by one definition of each number."""

from toolkit.analysis.compare.comparison import ALLOWABLE, Comparison, compare

__all__ = ["ALLOWABLE", "Comparison", "compare"]
