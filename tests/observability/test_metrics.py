"""Metric families: complete in the documentation, right to 15 %, and closed against clients."""

import math
import random
import re
import tomllib
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, disable_created_metrics, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from paddlepool.contracts.ports import EngineObserver
from paddlepool.contracts.reasons import CODEC_RESTARTS, Rejection, Restart, ShadowOutcome
from paddlepool.contracts.status import CanaryStatus, Effect
from paddlepool.observability.history import DRIFT, RUN_SECONDS, SECONDS
from paddlepool.observability.metrics import (
    COARSE_SECONDS,
    METHODS,
    ROWS,
    UNKNOWN,
    HistogramFamily,
    Metrics,
    ModelGauges,
)
from tests.engine.fakes import request_output
from tests.ran import ROOT
from tests.service.api.fakes import GROUP

PAGE = ROOT / "docs" / "metrics.md"
GROUPS = ("onednn", "native")


@pytest.fixture
def metrics() -> Metrics:
    metrics = Metrics(
        build={"version": "1", "paddle": "2", "onednn": "3", "cpu_flags": "avx2"},
        memory_limit=6 << 30,
    )
    metrics.expect_route("/segment")
    metrics.expect_model("u2netp", GROUPS)
    return metrics


def samples(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics.render()[0].decode())
        for sample in family.samples
    }


def gauges(*names: str, model: str = "u2netp", version: int = 1, **of_groups: Any) -> ModelGauges:
    """A ready version whose groups have these names; the first is the default."""
    groups = tuple(replace(GROUP, name=name, **of_groups) for name in names)
    return ModelGauges(
        model=model,
        version=version,
        ready=True,
        default_group=names[0],
        chosen_by="kept",
        groups=groups,
    )


def value(metrics: Metrics, name: str, **labels: str) -> float:
    """A series with `predictor` has `instance_group`, too."""
    if "predictor" in labels:
        labels["instance_group"] = labels["predictor"]
    return samples(metrics)[name, frozenset(labels.items())]


def series_of(metrics: Metrics, name: str) -> dict[tuple[str, ...], float]:
    """Return a family's values by their labels, without those of unknown models."""
    order = ("model", "predictor", "outcome", "reason")
    return {
        tuple(dict(labels)[label] for label in order if label in dict(labels)): number
        for (family, labels), number in samples(metrics).items()
        if family == name and not {("reason", UNKNOWN), ("outcome", UNKNOWN)} & labels
    }


CANARY = CanaryStatus(
    model="m",
    serving=1,
    previous=None,
    version=2,
    state="testing",
    agreement=0.98,
    agreement_low=0.95,
    ratio=1.02,
)


def with_every_family() -> Metrics:
    """One event of every kind."""
    metrics = Metrics(build={"version": "1", "paddle": "2", "onednn": "3", "cpu_flags": "4"})
    metrics.expect_route("/segment")
    metrics.expect_model("m", ["g"])
    metrics.request_done(route="/segment", method="POST", status=200, seconds=0.1)
    metrics.stages_done(request_output({"infer": 0.1}), [])
    metrics.batch_done(model="m", version=1, group="g", rows=1, seconds=0.1)
    metrics.drifted(model="m", group="g", drift=0.0, agreement=1.0)
    metrics.padded(model="m", group="g", tokens=1)
    metrics.connection_refused(431)
    read = gauges("g", model="m", effect=Effect(True, "other outputs"))
    metrics.gauges.read = lambda: [read]
    metrics.gauges.canaries = lambda: [CANARY]
    return metrics


def test_every_family_is_documented_with_its_labels() -> None:
    """docs/metrics.md names each family, its type and its labels, and no other."""
    rows = re.findall(r"^\| `(paddlepool_\w+)` \| (\w+) \| ([\w, ]*) \|", PAGE.read_text(), re.M)
    found = set()
    for family in text_string_to_metric_families(with_every_family().render()[0].decode()):
        if family.name.startswith("paddlepool_"):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            labels = {label for s in family.samples for label in s.labels} - {"le"}
            found.add((name, family.type, frozenset(labels)))
    documented = set()
    for name, kind, row in rows:
        labels = set(row.split(", ")) - {"none"}
        if "predictor" in labels:
            labels.add("instance_group")
        documented.add((name, kind, frozenset(labels)))
    assert documented == found


@pytest.mark.parametrize(
    ("bounds", "first", "least", "most"),
    [
        (SECONDS, 0.001, 1.25, 1.35),
        (RUN_SECONDS, 1.778e-5, 1.25, 1.35),
        (DRIFT[1:], 1e-8, 2, 2.3),
    ],
    ids=["seconds", "runs", "drift"],
)
def test_steps_of_buckets(
    bounds: tuple[float, ...], first: float, least: float, most: float
) -> None:
    """The middle of a step is off by half of it: a time is right to 15 %, a drift by order of
    magnitude."""
    assert (bounds[0], bounds[-1]) == (first, 10)
    for low, high in pairwise(bounds):
        assert least <= high / low <= most
    assert set(SECONDS) < set(RUN_SECONDS)
    assert (COARSE_SECONDS[0], COARSE_SECONDS[-1], DRIFT[0]) == (SECONDS[0], SECONDS[-1], 0)


def test_the_engine_may_report_to_it(metrics: Metrics) -> None:
    observer: EngineObserver = metrics
    observer.batch_done(model="u2netp", version=3, group="onednn", rows=2, seconds=0.2)
    observer.restarted(model="u2netp", group="onednn", reason=Restart.CRASHED)
    observer.rejected(model="u2netp", reason=Rejection.QUEUE_FULL)
    where = {"model": "u2netp", "predictor": "onednn"}
    infer = "paddlepool_predictor_infer_seconds"
    assert value(metrics, f"{infer}_count", version="3", batch_size="2", **where) == 1
    assert value(metrics, f"{infer}_sum", version="3", batch_size="2", **where) == 0.2
    assert value(metrics, "paddlepool_batch_rows_sum", **where) == 2
    restarts = "paddlepool_predictor_restarts_total"
    assert value(metrics, restarts, reason="crashed", **where) == 1
    rejected = "paddlepool_requests_rejected_total"
    assert value(metrics, rejected, model="u2netp", reason="queue_full") == 1


def test_stages_and_padding_are_counted_by_predictor(metrics: Metrics) -> None:
    """The data plane's observer: one observation a stage."""
    stages = {"queue": 0.5, "infer": 1.5}
    metrics.stages_done(request_output(stages, model="u2netp", group="native"), [])
    metrics.padded(model="u2netp", group="native", tokens=7)
    where = {"model": "u2netp", "predictor": "native"}
    name = "paddlepool_stage_duration_seconds_sum"
    assert value(metrics, name, stage="queue", **where) == 0.5
    assert value(metrics, name, stage="infer", **where) == 1.5
    assert value(metrics, "paddlepool_padding_tokens_total", **where) == 7


def test_counters_of_alerts_exist_before_their_first_event(metrics: Metrics) -> None:
    """So that a rate is zero and not absent; other families have no series yet."""
    restarts = {("u2netp", group, reason): 0.0 for group in GROUPS for reason in Restart}
    assert series_of(metrics, "paddlepool_predictor_restarts_total") == restarts
    rejected = {(model, reason): 0.0 for model in ("u2netp", UNKNOWN) for reason in Rejection}
    assert series_of(metrics, "paddlepool_requests_rejected_total") == rejected
    shadowed = {("u2netp", outcome): 0.0 for outcome in ShadowOutcome}
    assert series_of(metrics, "paddlepool_shadow_requests_total") == shadowed
    codecs = {(reason,): 0.0 for reason in CODEC_RESTARTS}
    assert series_of(metrics, "paddlepool_codec_restarts_total") == codecs
    others = {name for name, _ in samples(metrics) if name.endswith(("_bucket", "_total"))}
    assert others == {
        "paddlepool_predictor_restarts_total",
        "paddlepool_requests_rejected_total",
        "paddlepool_shadow_requests_total",
        "paddlepool_codec_restarts_total",
        "paddlepool_event_loop_lag_seconds_bucket",
        "process_cpu_seconds_total",
    }


def test_an_idle_scrape_is_small() -> None:
    metrics = Metrics(build={"version": "1", "paddle": "2", "onednn": "3", "cpu_flags": "avx2"})
    models = []
    for path in (ROOT / "model_repo").glob("*/config.toml"):
        config = tomllib.loads(path.read_text())
        if "instance_group" not in config:
            continue  # a composed model, which `make ocr` downloads
        names = [group["name"] for group in config["instance_group"]]
        metrics.expect_model(path.parent.name, names)
        models.append(gauges(*names, model=path.parent.name))
    metrics.gauges.read = lambda: models
    text, _ = metrics.render()
    assert len(models) >= 2
    assert len(samples(metrics)) <= 1_500
    assert len(text) <= 150_000


def test_a_scrape_is_negotiated(metrics: Metrics) -> None:
    """OpenMetrics ends with its mark; `names` selects series, those of gauges too."""
    text, content_type = metrics.render("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert text.endswith(b"# EOF\n")
    names = ("paddlepool_memory_limit_bytes", "paddlepool_codec_restarts_total", "nobody")
    text, content_type = metrics.render(names=names)
    assert content_type == "text/plain; version=0.0.4; charset=utf-8"
    families = text_string_to_metric_families(text.decode())
    assert {sample.name for family in families for sample in family.samples} == set(names[:2])


def test_gauges_are_read_when_prometheus_asks(metrics: Metrics) -> None:
    """Two versions of a model share the series of their queue."""
    counted: dict[str, Any] = {
        "queue_depth": 2,
        "queue_limit": 16,
        "inflight": 1,
        "resident_bytes": 10,
    }
    new, old = (gauges("onednn", version=version, **counted) for version in (2, 1))
    metrics.gauges.read = lambda: [new, replace(old, ready=False)]
    where = {"model": "u2netp", "predictor": "onednn"}
    named = {"version": "2", "chosen_by": "kept"} | where
    assert value(metrics, "paddlepool_default_group_info", **named) == 1
    assert value(metrics, "paddlepool_memory_limit_bytes") == 6 << 30
    assert value(metrics, "paddlepool_queue_depth", **where) == 4
    assert value(metrics, "paddlepool_queue_limit", **where) == 32
    assert value(metrics, "paddlepool_predictor_default", **where) == 1
    assert value(metrics, "paddlepool_inflight_requests", **where) == 2
    assert value(metrics, "paddlepool_predictor_resident_bytes", version="1", **where) == 10
    assert value(metrics, "paddlepool_model_ready", model="u2netp", version="1") == 0
    assert value(metrics, "paddlepool_model_ready", model="u2netp", version="2") == 1


def test_the_default_is_the_newest_versions(metrics: Metrics) -> None:
    """One group of a model has 1, also where the versions have other groups and other defaults."""
    versions = [
        gauges("native", "onednn", version=2),
        gauges("onednn", "native", version=1),
        gauges("gone", "onednn", "native", version=0),
    ]
    metrics.gauges.read = lambda: versions
    found = series_of(metrics, "paddlepool_predictor_default")
    assert found == {("u2netp", "native"): 1, ("u2netp", "onednn"): 0, ("u2netp", "gone"): 0}


def test_replays_are_counted_by_group(metrics: Metrics) -> None:
    """Equal bits have a bucket of their own; an infinite difference is counted and leaves the sum
    as it was; the task's measure is there only where it has one."""
    metrics.drifted(model="u2netp", group="native", drift=0.0, agreement=0.997)
    metrics.drifted(model="u2netp", group="native", drift=2e-6, agreement=None)
    metrics.drifted(model="u2netp", group="native", drift=math.inf, agreement=None)
    metrics.shadowed(model="u2netp", outcome=ShadowOutcome.REPLAYED)
    where = {"model": "u2netp", "predictor": "native"}
    drift = "paddlepool_predictor_output_drift"
    assert value(metrics, f"{drift}_bucket", le="0.0", **where) == 1
    assert value(metrics, f"{drift}_bucket", le="10.0", **where) == 2
    assert value(metrics, f"{drift}_count", **where) == 3
    assert value(metrics, f"{drift}_sum", **where) == 2e-6
    agreement = "paddlepool_predictor_output_agreement"
    assert value(metrics, f"{agreement}_bucket", le="0.995", **where) == 0
    assert value(metrics, f"{agreement}_bucket", le="0.999", **where) == 1
    assert value(metrics, f"{agreement}_count", **where) == 1
    for outcome, count in zip(ShadowOutcome, (1, 0, 0), strict=True):
        name = "paddlepool_shadow_requests_total"
        assert value(metrics, name, model="u2netp", outcome=outcome) == count


def test_an_effect_is_shown_once_it_is_known(metrics: Metrics) -> None:
    """1 or 0; absent while nothing has been found out."""
    effects = {"onednn": True, "onednn_t2": False, "native": None}
    groups = tuple(
        replace(GROUP, name=name, effect=Effect(effect, "measured"))
        for name, effect in effects.items()
    )
    metrics.gauges.read = lambda: [
        ModelGauges(model="u2netp", version=1, ready=True, groups=groups)
    ]
    family = "paddlepool_predictor_effective"
    assert value(metrics, family, model="u2netp", predictor="onednn") == 1
    assert value(metrics, family, model="u2netp", predictor="onednn_t2") == 0
    shown = {dict(labels)["predictor"] for name, labels in samples(metrics) if name == family}
    assert shown == {"onednn", "onednn_t2"}


def test_no_request_adds_a_series(metrics: Metrics) -> None:
    """2,000 random routes, methods and models are counted; the last half add no label."""
    before = set[object]()
    generator = random.Random(1)
    for number in range(2_000):
        if number == 1_000:
            before = set(samples(metrics))
        word = f"{generator.getrandbits(64):x}"
        method = generator.choice([*METHODS, word.upper()])
        metrics.request_done(route=None, method=method, status=404, seconds=0.001)
        metrics.request_done(route=word, method=word, status=404, seconds=0.001)
        metrics.request_done(route="/segment", method=method, status=405, seconds=0.001)
        metrics.rejected(model=word, reason=Rejection.NOT_READY)
    assert set(samples(metrics)) == before
    rejected = "paddlepool_requests_rejected_total"
    assert value(metrics, rejected, model="unknown", reason="not_ready") == 2_000


@given(st.data())
def test_a_histogram_is_exposed_as_the_librarys_own(data: st.DataObject) -> None:
    """Byte for byte, with values on a bound and above all of them."""
    bounds = data.draw(st.sampled_from((SECONDS, DRIFT, ROWS)))
    value = st.sampled_from(bounds) | st.floats(min_value=0, allow_nan=False)
    values = data.draw(st.lists(st.tuples(value, st.sampled_from("ab"))))
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry, expected = CollectorRegistry(), CollectorRegistry()
    own = HistogramFamily(registry, "seconds", "Help.", ("name",), bounds)
    library = Histogram("seconds", "Help.", ("name",), buckets=bounds, registry=expected)
    for observed, name in values:
        own.observe(observed, name)
        library.labels(name).observe(observed)
    assert generate_latest(registry) == generate_latest(expected)
