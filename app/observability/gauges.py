"""The Prometheus gauges: current values, read when Prometheus scrapes the server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric

from app.contracts.status import GroupStatus

PER_GROUP = {
    "paddlepool_queue_depth": "Jobs waiting.",
    "paddlepool_inflight_requests": "Jobs inside a predictor.",
    "paddlepool_queue_limit": "Maximum number of waiting jobs.",
    "paddlepool_predictor_default": "1 for the default instance group, to which ratios refer.",
    "paddlepool_predictor_effective": "1 if the configuration was measured to change outputs or "
    "times, 0 if not.",
}
"""Families whose labels are the model and, as `predictor`, the instance group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelGauges:
    """One model version at the moment of a scrape."""

    model: str
    version: int
    ready: bool
    default_group: str = ""
    chosen_by: str = ""
    groups: tuple[GroupStatus, ...] = ()


class Gauges:
    """A Prometheus collector that calls `read` and `codec_processes` at each scrape.

    `read` returns a model's newest version first.
    """

    def __init__(self, build: Mapping[str, str], *, memory_limit: int) -> None:
        self.read: Callable[[], Iterable[ModelGauges]] = tuple
        self.codec_processes: Callable[[], int] = lambda: 0
        self._build = build
        self._memory_limit = memory_limit

    def collect(self) -> Iterator[Metric]:
        build = InfoMetricFamily("paddlepool_build", "Versions of this server and its components.")
        build.add_metric((), dict(self._build))
        yield build
        yield GaugeMetricFamily(
            "paddlepool_memory_limit_bytes",
            "Memory that this server's processes may use together: that of the machine, or the "
            "limit of their control group.",
            self._memory_limit,
        )
        yield GaugeMetricFamily(
            "paddlepool_codec_processes", "Codec processes alive.", self.codec_processes()
        )
        ready = GaugeMetricFamily(
            "paddlepool_model_ready",
            "1 when the model version answers requests.",
            labels=("model", "version"),
        )
        resident = GaugeMetricFamily(
            "paddlepool_predictor_resident_bytes",
            "Resident memory of the instance group's predictor processes.",
            labels=("model", "version", "predictor"),
        )
        default = InfoMetricFamily(
            "paddlepool_default_group",
            "The default instance group, and how it was chosen.",
            labels=("model", "version"),
        )
        values: dict[str, Counter[tuple[str, str]]] = {name: Counter() for name in PER_GROUP}
        newest_default: dict[str, str] = {}
        for model in self.read():
            version = str(model.version)
            answers = newest_default.setdefault(model.model, model.default_group)
            ready.add_metric((model.model, version), float(model.ready))
            if model.default_group:
                default.add_metric(
                    (model.model, version),
                    {"predictor": model.default_group, "chosen_by": model.chosen_by},
                )
            for group in model.groups:
                series = (model.model, group.name)
                resident.add_metric((model.model, version, group.name), group.resident_bytes)
                # Versions of a model share a series.
                values["paddlepool_queue_depth"][series] += group.queue_depth
                values["paddlepool_inflight_requests"][series] += group.inflight
                values["paddlepool_queue_limit"][series] += group.queue_limit
                values["paddlepool_predictor_default"][series] = group.name == answers
                if group.effect.effective is not None:
                    values["paddlepool_predictor_effective"].setdefault(
                        series, group.effect.effective
                    )
        for name, text in PER_GROUP.items():
            family = GaugeMetricFamily(name, text, labels=("model", "predictor"))
            for labels, value in values[name].items():
                family.add_metric(labels, value)
            yield family
        yield from (ready, resident, default)
