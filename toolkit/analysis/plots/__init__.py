"""The figures, by what they show. Each function gives a matplotlib Figure; `style` writes it as PNG or SVG."""

from toolkit.analysis.plots.acceptance import positions_figure
from toolkit.analysis.plots.crossover import crossover_figure, plot_crossover
from toolkit.analysis.plots.factors import factors_figure
from toolkit.analysis.plots.latency import latency_figure
from toolkit.analysis.plots.layers import layers_figure

__all__ = [
    "crossover_figure",
    "factors_figure",
    "latency_figure",
    "layers_figure",
    "plot_crossover",
    "positions_figure",
]
