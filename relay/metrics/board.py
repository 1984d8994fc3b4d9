"""How metrics are kept: in a registry of our own, with their children at hand."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.exposition import choose_encoder

Metric = TypeVar("Metric", Counter, Gauge, Histogram)


class Series(dict[Any, Metric], Generic[Metric]):
    """The children of one metric by their label values: a value, a tuple of them, or ().

    A plain lookup on the hot path, where `labels()` would check, convert and lock.
    """

    def __init__(self, metric: Metric, labels: Sequence[str]) -> None:
        super().__init__()
        self._metric: Metric = metric
        self.labels = labels

    def __missing__(self, key: Any) -> Metric:  # noqa: ANN401
        values = _values(key)
        return self.setdefault(key, self._metric.labels(*values) if values else self._metric)

    def exist(self, *axes: Iterable[object]) -> None:
        """Let every combination of the labels' values exist, at 0."""
        for values in itertools.product(*axes):
            self[values[0] if len(values) == 1 else values]

    def drop(self, name: str) -> None:
        """Forget the children whose first label is this."""
        for key in [key for key in self if _values(key)[:1] == (name,)]:
            del self[key]
            self._metric.remove(*_values(key))


class Board:
    """All metrics of one relay, with those of the process and of Python."""

    def __init__(self) -> None:
        # A second series per counter and histogram, which nothing reads.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        self._all: list[Series[Any]] = []

    def counter(self, name: str, text: str, *labels: str) -> Series[Counter]:
        return self._add(Series(Counter(name, text, labels, registry=self._registry), labels))

    def gauge(self, name: str, text: str, *labels: str) -> Series[Gauge]:
        return self._add(Series(Gauge(name, text, labels, registry=self._registry), labels))

    def histogram(
        self, name: str, text: str, buckets: Sequence[float], *labels: str
    ) -> Series[Histogram]:
        metric = Histogram(name, text, labels, buckets=buckets, registry=self._registry)
        return self._add(Series(metric, labels))

    def drop(self, label: str, name: str) -> None:
        """Forget every series of one source or one sink."""
        for series in self._all:
            if series.labels[:1] == (label,):
                series.drop(name)

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """Render in the form that the Accept header asks for; in plain text if in doubt."""
        try:
            encode, content_type = choose_encoder(accept)
        except TypeError:
            # prometheus-client compares the parts of any version, also where they are no numbers.
            encode, content_type = choose_encoder("")
        return encode(self._registry), content_type

    def _add(self, series: Series[Metric]) -> Series[Metric]:
        self._all.append(series)
        return series


def _values(key: object) -> tuple[object, ...]:
    return key if isinstance(key, tuple) else (key,)
