"""Metric types that hold plain numbers and become Prometheus families only at a scrape."""

import itertools
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

V = TypeVar("V")
S = TypeVar("S", bound="Series[Any]")

Labels = Mapping[str, Sequence[object]]
"""The values that each label of a metric can take; OPEN if they are not known beforehand."""

OPEN = ()
_NO_LABELS: Labels = {}


class Series(dict[Any, V], ABC):
    """Values of one metric by label values: a single one, a tuple, or ().

    Only the event loop's thread writes. Prometheus' own types lock on every update, which triples
    the cost of the metrics of an acknowledgement.
    """

    def __init__(self, name: str, text: str, labels: Labels) -> None:
        super().__init__()
        self.name = name
        self.text = text
        self.labels = labels

    def __missing__(self, key: Any) -> V:
        return self.setdefault(key, self.zero())

    @abstractmethod
    def zero(self) -> V:
        """Return the initial value of a series."""

    @abstractmethod
    def family(self) -> Metric:
        """Return the family for a scrape; called from another thread."""

    def create(self, **given: object) -> None:
        """Create the series at 0 of some labels' values, with all values of the other labels."""
        axes = ((given[name],) if name in given else self.labels[name] for name in self.labels)
        for values in itertools.product(*axes):
            self[values[0] if len(values) == 1 else values]

    def drop(self, name: str) -> None:
        """Remove the series whose first label has this value."""
        for key in [key for key in self if _texts(key)[:1] == [name]]:
            del self[key]


class NumberSeries(Series[float]):
    """A plain number per series."""

    FAMILY: ClassVar[type[CounterMetricFamily | GaugeMetricFamily]]

    def zero(self) -> float:
        return 0.0

    def family(self) -> Metric:
        family = self.FAMILY(self.name, self.text, labels=[*self.labels])
        for key, value in self.copy().items():
            family.add_metric(_texts(key), value)
        return family


class Counter(NumberSeries):
    """A value that only grows."""

    FAMILY = CounterMetricFamily


class Gauge(NumberSeries):
    """A value that is set."""

    FAMILY = GaugeMetricFamily


class HistogramChild:
    """Observations for one set of label values."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def counts(self) -> tuple[int, ...]:
        """Return the count of each bucket, that of larger values last."""
        return tuple(self._counts)

    def cumulated(self) -> tuple[list[tuple[str, float]], float]:
        """Return cumulative buckets and the sum."""
        total = self._sum
        names = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        return list(zip(names, itertools.accumulate(self._counts), strict=True)), total


class Histogram(Series[HistogramChild]):
    """A histogram with classic buckets."""

    def __init__(self, name: str, text: str, labels: Labels, *, bounds: Sequence[float]) -> None:
        super().__init__(name, text, labels)
        self._bounds = bounds

    def zero(self) -> HistogramChild:
        return HistogramChild(self._bounds)

    def family(self) -> Metric:
        family = HistogramMetricFamily(self.name, self.text, labels=[*self.labels])
        for key, distribution in self.copy().items():
            buckets, total = distribution.cumulated()
            family.add_metric(_texts(key), buckets, total)
            if self._bounds[0] < 0:
                # For negative bounds the library omits the sum, and with it the count.
                labels = dict(zip(self.labels, _texts(key), strict=True))
                family.add_sample(f"{self.name}_count", labels, buckets[-1][1])
        return family


class Registry(Collector):
    """All metrics of one relay, and those of the process and of Python."""

    def __init__(self) -> None:
        self._all: list[Series[Any]] = []
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)

    def counter(self, name: str, text: str, labels: Labels = _NO_LABELS) -> Counter:
        return self._add(Counter(name, text, labels))

    def gauge(self, name: str, text: str, labels: Labels = _NO_LABELS) -> Gauge:
        return self._add(Gauge(name, text, labels))

    def histogram(
        self, name: str, text: str, bounds: Sequence[float], labels: Labels = _NO_LABELS
    ) -> Histogram:
        return self._add(Histogram(name, text, labels, bounds=bounds))

    def add(self, label: str, name: str) -> None:
        """Create every series of one source or sink; existing ones keep their values."""
        for series in self._all:
            if label in series.labels:
                series.create(**{label: name})

    def drop(self, label: str, name: str) -> None:
        """Remove every series of one source or sink."""
        for series in self._all:
            if label in series.labels:
                series.drop(name)

    def collect(self) -> Iterator[Metric]:
        return (series.family() for series in self._all)

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """Render in the format of the Accept header, by default plain text."""
        try:
            encode, content_type = choose_encoder(accept)
        except TypeError:
            # prometheus-client fails on a version that is not numeric.
            encode, content_type = choose_encoder("")
        return encode(self._registry), content_type

    def _add(self, series: S) -> S:
        self._all.append(series)
        series.create()
        return series


def _texts(key: object) -> list[str]:
    return [str(value) for value in (key if isinstance(key, tuple) else (key,))]
