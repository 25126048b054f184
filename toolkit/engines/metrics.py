"""Reading a Prometheus exposition page: series summed over their labels, timestamps left aside."""

from collections import defaultdict
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families


class Page:
    """A parsed /metrics page. Raises ValueError when `text` is not in the exposition format."""

    def __init__(self, text: str) -> None:
        self._samples: dict[str, list[tuple[Mapping[str, str], float]]] = defaultdict(list)
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if not sample.name.endswith("_created"):
                    self._samples[sample.name].append((sample.labels, sample.value))

    def total(self, name: str) -> float | None:
        """Sum of the series `name` over all labels (several engines may share a page); None when absent."""
        series = self._samples.get(name)
        return sum(value for _, value in series) if series else None

    def by_label(self, name: str, label: str) -> dict[str, float]:
        """Sum of the series `name` per value of `label`, over all other labels."""
        sums: dict[str, float] = defaultdict(float)
        for labels, value in self._samples.get(name, ()):
            if label in labels:
                sums[labels[label]] += value
        return dict(sums)

    def labels(self, name: str) -> list[Mapping[str, str]]:
        """The label sets of the series `name`, for the info metrics that carry facts in their labels."""
        return [labels for labels, _ in self._samples.get(name, ())]
