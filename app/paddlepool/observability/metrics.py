"""The Prometheus metric families of the server: one object, built once and passed in."""

import collections
import math
import threading
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, ProcessCollector, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from paddlepool.contracts.ports import InferResult, RequestOutput
from paddlepool.contracts.reasons import CODEC_RESTARTS, Rejection, Restart, ShadowOutcome
from paddlepool.contracts.status import CanaryStatus, GroupStatus
from paddlepool.observability.history import AGREEMENT, DRIFT, RUN_SECONDS, SECONDS, History, Series

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
UNMATCHED, UNKNOWN, OTHER = "unmatched", "unknown", "OTHER"

COARSE_SECONDS = SECONDS[::2]  # factor 1.78, for the family with the most series per model
LAG = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
ROWS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)


class HistogramFamily(Collector):
    """All series of one histogram; a series with labels appears with its first observation.

    It may be used in any thread. prometheus_client's own Histogram tests its buckets one by one and
    takes two locks for each value.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        name: str,
        text: str,
        labels: Sequence[str],
        bounds: Sequence[float] = SECONDS,
    ) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._bounds = bounds
        self._lock = threading.Lock()
        self._le = [
            floatToGoString(bound)  # type: ignore[no-untyped-call]  # the library has no type here
            for bound in (*bounds, math.inf)
        ]
        # The count of each bucket, then the sum of all values.
        self._series: dict[tuple[str, ...], list[float]] = {}
        self._empty = [0.0] * (len(self._le) + 1)
        if not labels:
            self._series[()] = self._empty[:]
        registry.register(self)

    def observe(self, value: float, *labels: str) -> None:
        bucket = bisect_left(self._bounds, value)
        with self._lock:
            series = self._series.get(labels)
            if series is None:
                series = self._series[labels] = self._empty[:]
            series[bucket] += 1
            series[-1] += value

    def observe_infinite(self, *labels: str) -> None:
        """Count a value above every bound, and leave the sum finite."""
        with self._lock:
            self._series.setdefault(labels, self._empty[:])[-2] += 1

    def keep(self, wanted: Callable[[Sequence[str]], bool]) -> None:
        """Drop the series for whose label values `wanted` returns False."""
        with self._lock:
            series = self._series.items()
            self._series = {labels: counts for labels, counts in series if wanted(labels)}

    def collect(self) -> Iterator[Metric]:
        metric = Metric(self._name, self._text, "histogram")
        for values, (*buckets, total) in list(self._series.items()):
            labels = dict(zip(self._labels, values, strict=True))
            counts = list(accumulate(buckets))
            for bound, count in zip(self._le, counts, strict=True):
                metric.add_sample(f"{self._name}_bucket", labels | {"le": bound}, count)
            metric.add_sample(f"{self._name}_count", labels, counts[-1])
            metric.add_sample(f"{self._name}_sum", labels, total)
        yield metric


PER_GROUP = {
    "paddlepool_queue_depth": "Jobs waiting.",
    "paddlepool_inflight_requests": "Jobs inside a predictor.",
    "paddlepool_queue_limit": "Maximum number of waiting jobs.",
    "paddlepool_predictor_default": "1 for the default instance group, to which ratios refer.",
    "paddlepool_predictor_effective": "1 if the configuration was measured to change outputs or "
    "times, 0 if not.",
}
"""Families whose labels are the model and the instance group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelGauges:
    """State of one model version at the moment of a scrape."""

    model: str
    version: int
    ready: bool
    default_group: str = ""
    chosen_by: str = ""
    groups: tuple[GroupStatus, ...] = ()


class Gauges:
    """A Prometheus collector that calls `read`, `codec_processes` and `canaries` at each scrape.

    `read` returns a model's newest version first.
    """

    def __init__(self, build: Mapping[str, str], *, memory_limit: int) -> None:
        self.read: Callable[[], Iterable[ModelGauges]] = tuple
        self.codec_processes: Callable[[], int] = lambda: 0
        self.canaries: Callable[[], Iterable[CanaryStatus]] = tuple
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
        values: dict[str, collections.Counter[tuple[str, str]]] = {
            name: collections.Counter() for name in PER_GROUP
        }
        newest_default: dict[str, str] = {}
        for model in self.read():
            version = str(model.version)
            default_group = newest_default.setdefault(model.model, model.default_group)
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
                values["paddlepool_predictor_default"][series] = group.name == default_group
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
        yield from _canary_families(self.canaries())


CANARY = {
    "paddlepool_canary_requests": "Requests on which the new version was compared.",
    "paddlepool_canary_errors": "Requests on which the new version failed.",
    "paddlepool_canary_agreement": "Mean agreement of the new version with the current one, 0 to "
    "1.",
    "paddlepool_canary_agreement_low": "Lower end of its 99 % interval.",
    "paddlepool_canary_time_ratio": "Run time of the new version divided by the current one's.",
}
"""Families about the latest new version of a model; a series exists once its value is known."""


def _canary_families(canaries: Iterable[CanaryStatus]) -> Iterator[Metric]:
    state = GaugeMetricFamily(
        "paddlepool_canary_state",
        "1 for the state of the latest new version: testing, passed, promoted or rejected.",
        labels=("model", "version", "state"),
    )
    families = {
        name: GaugeMetricFamily(name, text, labels=("model", "version"))
        for name, text in CANARY.items()
    }
    for canary in canaries:
        labels = (canary.model, str(canary.version))
        state.add_metric((*labels, str(canary.state)), 1.0)
        figures = (
            canary.compared,
            canary.errors,
            canary.agreement,
            canary.agreement_low,
            canary.ratio,
        )
        for family, value in zip(families.values(), figures, strict=True):
            if value is not None:
                family.add_metric(labels, value)
    yield from (state, *families.values())


@dataclass(frozen=True, slots=True)
class WithInstanceGroup(Collector):
    """Copies the label `predictor` of each series that has it to a label `instance_group`."""

    inner: Collector

    def collect(self) -> Iterator[Metric]:
        for metric in self.inner.collect():
            for sample in metric.samples:  # new objects at each scrape
                if (group := sample.labels.get("predictor")) is not None:
                    sample.labels["instance_group"] = group
            yield metric


class Metrics:
    """Observer of the engine, the data plane and the HTTP layer; thread-safe.

    The labels `predictor` and `instance_group` hold the name of an instance group, or for a
    composed model "part:group,part:group".

    **Invariant**: label values come from closed sets. `expect_route` and `expect_model` declare
    routes and models; reasons are members of enumerations. Any other value is counted as
    `unmatched`, `unknown` or `OTHER`.

    A series of a histogram or counter appears with its first event. Only the lag of the event loop
    and the counters that alerts and dashboards compare with zero exist before: those of rejections
    and codec restarts from the start, those of a model's rejections, restarts and shadowed requests
    once it is known.
    """

    def __init__(self, *, build: Mapping[str, str], memory_limit: int = 0) -> None:
        # The library adds a series `_created` to each counter, which only OpenMetrics readers use.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library has no type here
        self.registry = CollectorRegistry(auto_describe=True)  # else name[] finds no gauge
        histogram = partial(HistogramFamily, self.registry)
        counter = partial(Counter, registry=self.registry)
        self._routes: set[str] = set()
        self._models: set[str] = set()
        self._request = histogram(
            "paddlepool_request_duration_seconds",
            "Time from a request's headers to the end of its reply.",
            ("route", "method", "status"),
        )
        self._stage = histogram(
            "paddlepool_stage_duration_seconds",
            "Time of each stage of an answered request.",
            ("model", "predictor", "stage"),
            COARSE_SECONDS,
        )
        self._infer = histogram(
            "paddlepool_predictor_infer_seconds",
            "Time of one predictor run.",
            ("model", "version", "predictor", "batch_size"),
            RUN_SECONDS,
        )
        self._rows = histogram(
            "paddlepool_batch_rows", "Rows in one predictor run.", ("model", "predictor"), ROWS
        )
        self._drift = histogram(
            "paddlepool_predictor_output_drift",
            "Largest absolute difference of a shadowed request's outputs from the answer's.",
            ("model", "predictor"),
            DRIFT,
        )
        self._agreement = histogram(
            "paddlepool_predictor_output_agreement",
            "Agreement of a shadowed request's outputs with the answer, 0 to 1.",
            ("model", "predictor"),
            AGREEMENT,
        )
        self._shadowed = counter(
            "paddlepool_shadow_requests_total",
            "Sampled requests by the outcome of their replay.",
            ("model", "outcome"),
        )
        self._lag = histogram(
            "paddlepool_event_loop_lag_seconds",
            "Delay of the event loop, measured ten times a second.",
            (),
            LAG,
        )
        padding = counter(
            "paddlepool_padding_tokens_total",
            "Padding tokens that fill the length buckets of texts.",
            ("model", "predictor"),
        )
        self._padding_of = cache(padding.labels)
        self._rejected = counter(
            "paddlepool_requests_rejected_total",
            "Requests rejected or dropped by the engine.",
            ("model", "reason"),
        )
        self._restarts = counter(
            "paddlepool_predictor_restarts_total",
            "Predictor processes that were replaced.",
            ("model", "predictor", "reason"),
        )
        self._codec_restarts = counter(
            "paddlepool_codec_restarts_total", "Codec processes that were replaced.", ("reason",)
        )
        self._refused = counter(
            "paddlepool_refused_connections_total",
            "Connections that the HTTP server ended with an error reply of its own.",
            ("status",),
        )
        self.history = History()
        self.gauges = Gauges(build, memory_limit=memory_limit)
        self.registry.register(self.gauges)
        ProcessCollector(registry=self.registry)
        for reason in Rejection:
            self._rejected.labels(UNKNOWN, reason)
        for restart in CODEC_RESTARTS:
            self._codec_restarts.labels(restart)

    def expect_route(self, route: str) -> None:
        """Declare a route template as a label value."""
        self._routes.add(route)

    def expect_model(self, model: str, groups: Iterable[str]) -> None:
        """Declare a model and its instance groups as label values.

        The counters of its rejections, restarts and shadowed requests start at zero.
        """
        self._models.add(model)
        for reason in Rejection:
            self._rejected.labels(model, reason)
        for outcome in ShadowOutcome:
            self._shadowed.labels(model, outcome)
        for group in groups:
            for restart in Restart:
                self._restarts.labels(model, group, restart)

    def request_done(self, *, route: str | None, method: str, status: int, seconds: float) -> None:
        """Record one HTTP reply; `route` is the template that matched, or None.

        The route counts as unmatched if it was not declared, or the status is 405.
        """
        known = route if route in self._routes and status != 405 else UNMATCHED
        method = method if method in METHODS else OTHER
        self._request.observe(seconds, known, method, str(status))

    def connection_refused(self, status: int) -> None:
        self._refused.labels(str(status)).inc()

    def stages_done(self, output: RequestOutput, _results: Sequence[InferResult]) -> None:
        model = self._model(output.model)
        for stage, seconds in output.stages.items():
            self._stage.observe(seconds, model, output.group, stage)

    def batch_done(
        self, *, model: str, version: int, group: str, rows: int, seconds: float
    ) -> None:
        model = self._model(model)
        self._infer.observe(seconds, model, str(version), group, str(rows))
        self._rows.observe(rows, model, group)
        self.history.record_run(Series(model, version, group), seconds)

    def retired(self, *, model: str, served: Collection[int]) -> None:
        """Drop the run times of those versions of the model that are not in `served`."""
        versions = frozenset(map(str, served))
        self._infer.keep(lambda labels: labels[0] != model or labels[1] in versions)

    def loop_woke(self, late: float) -> None:
        """Record that the event loop was `late` seconds behind its timer."""
        self._lag.observe(late)

    def restarted(self, *, model: str, group: str, reason: Restart) -> None:
        self._restarts.labels(self._model(model), group, reason).inc()

    def codec_restarted(self, reason: Restart) -> None:
        self._codec_restarts.labels(reason).inc()

    def rejected(self, *, model: str, reason: Rejection) -> None:
        self._rejected.labels(self._model(model), reason).inc()

    def drifted(self, *, model: str, group: str, drift: float, agreement: float | None) -> None:
        """Record how far one replay is from the default group's answer, and how well they agree."""
        if math.isinf(drift):
            self._drift.observe_infinite(self._model(model), group)
        else:
            self._drift.observe(drift, self._model(model), group)
        if agreement is not None:
            self._agreement.observe(agreement, self._model(model), group)
        self.history.drifted(self._model(model), group, drift, agreement)

    def shadowed(self, *, model: str, outcome: ShadowOutcome) -> None:
        self._shadowed.labels(self._model(model), outcome).inc()

    def shadow_outcomes(self, model: str) -> dict[str, int]:
        """Return the number of a model's sampled requests since the start, by outcome."""
        samples = next(iter(self._shadowed.collect())).samples
        return {
            sample.labels["outcome"]: int(sample.value)
            for sample in samples
            if sample.labels["model"] == model
        }

    def padded(self, *, model: str, group: str, tokens: int) -> None:
        """Count the padding tokens that filled a request's texts up to the length of a bucket."""
        self._padding_of(self._model(model), group).inc(tokens)

    def _model(self, model: str) -> str:
        return model if model in self._models else UNKNOWN

    def render(self, accept: str = "", names: Iterable[str] = ()) -> tuple[bytes, str]:
        """Return the exposition and its content type.

        The Accept header `accept` selects OpenMetrics or Prometheus' text format. `names` limits
        the exposition to the series with these names; empty means all.
        """
        encode, content_type = choose_encoder(accept)
        names = frozenset(names)
        chosen = self.registry.restricted_registry(names) if names else self.registry
        return encode(WithInstanceGroup(chosen)), content_type
