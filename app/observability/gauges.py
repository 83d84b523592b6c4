"""The Prometheus gauges: what is true now rather than counted, read when Prometheus asks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupGauges:
    """One instance group at the moment of a scrape."""

    predictor: str
    default: bool
    queue_depth: int
    queue_limit: int
    inflight: int
    resident_bytes: int
    effective: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelGauges:
    """One model version at the moment of a scrape."""

    model: str
    version: int
    ready: bool
    groups: tuple[GroupGauges, ...] = ()


class Gauges:
    """A Prometheus collector: `read` and `codec_processes` are asked at each scrape."""

    def __init__(self, build: Mapping[str, str]) -> None:
        self.read: Callable[[], Iterable[ModelGauges]] = tuple
        self.codec_processes: Callable[[], int] = lambda: 0
        self._build = build

    def collect(self) -> Iterator[Metric]:
        build = InfoMetricFamily("paddlepool_build", "What this server is built from.")
        build.add_metric((), dict(self._build))
        yield build
        yield GaugeMetricFamily(
            "paddlepool_codec_processes", "Codec processes alive.", self.codec_processes()
        )
        queue = GaugeMetricFamily(
            "paddlepool_queue_depth", "Jobs waiting.", labels=("model", "predictor")
        )
        inflight = GaugeMetricFamily(
            "paddlepool_inflight_requests",
            "Jobs inside a predictor.",
            labels=("model", "predictor"),
        )
        limit = GaugeMetricFamily(
            "paddlepool_queue_limit", "Most jobs that may wait.", labels=("model", "predictor")
        )
        default = GaugeMetricFamily(
            "paddlepool_predictor_default",
            "1 for the group that answers requests which name none: ratios are taken to it.",
            labels=("model", "predictor"),
        )
        effective = GaugeMetricFamily(
            "paddlepool_predictor_effective",
            "1 where the configuration was found to change outputs or times, 0 where it was not.",
            labels=("model", "predictor"),
        )
        ready = GaugeMetricFamily(
            "paddlepool_model_ready",
            "1 when the model version answers requests.",
            labels=("model", "version"),
        )
        resident = GaugeMetricFamily(
            "paddlepool_predictor_resident_bytes",
            "Resident memory of the group's predictor processes.",
            labels=("model", "version", "predictor"),
        )
        # Two versions of a model have one series here: which one waits does not matter.
        waiting: Counter[tuple[str, str]] = Counter()
        running: Counter[tuple[str, str]] = Counter()
        room: Counter[tuple[str, str]] = Counter()
        defaults: dict[tuple[str, str], bool] = {}
        effects: dict[tuple[str, str], bool] = {}
        for model in self.read():
            version = str(model.version)
            ready.add_metric((model.model, version), float(model.ready))
            for group in model.groups:
                waiting[model.model, group.predictor] += group.queue_depth
                running[model.model, group.predictor] += group.inflight
                room[model.model, group.predictor] += group.queue_limit
                defaults[model.model, group.predictor] = group.default
                if group.effective is not None:
                    effects.setdefault((model.model, group.predictor), group.effective)
                resident.add_metric((model.model, version, group.predictor), group.resident_bytes)
        for family, values in (
            (queue, waiting),
            (inflight, running),
            (limit, room),
            (default, defaults),
            (effective, effects),
        ):
            for labels, value in values.items():
                family.add_metric(labels, value)
        yield from (queue, inflight, limit, default, effective, ready, resident)

    def describe(self) -> Iterable[Metric]:
        return ()
