"""Write dashboards/paddlepool.json, the Grafana dashboard, panel by panel."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from panels import (
    Json,
    data_source,
    increases,
    lines,
    means,
    number,
    panel,
    placed,
    quantiles,
    rates,
    variable,
)

TARGET = Path(__file__).resolve().parent / "dashboards" / "paddlepool.json"

NAMESPACE = 'namespace=~"$namespace"'
RELEASE = NAMESPACE + ', job=~"$job"'
SERVER = RELEASE + ', instance=~"$instance"'
MODEL = SERVER + ', model=~"$model"'
GROUP = MODEL + ', predictor=~"$predictor"'
RECORDED = RELEASE + ', model=~"$model", predictor=~"$predictor"'
REPLICAS = 'proxy="replicas"'
INFER = "job_model_predictor:paddlepool_predictor_infer_seconds"
REQUESTS = "paddlepool_request_duration_seconds"
GOOD_AT_ONE = [(None, "red"), (1, "green")]
GOOD_AT_ZERO = [(None, "green"), (1, "red")]


def service() -> list[Json]:
    rate = f"{REQUESTS}_count{{{SERVER}}}[$__rate_interval]"
    failed = f'{REQUESTS}_count{{{SERVER}, status=~"5..", status!="503"}}[$__rate_interval]'
    return [
        number(
            "Model ready",
            (
                f"max by (namespace, instance, model) (paddlepool_model_ready{{{MODEL}}})",
                "{{model}}",
            ),
            width=8,
            text="1: a version of the model answers. 0: none does; the log says why.",
            thresholds=GOOD_AT_ONE,
        ),
        number(
            "Restarts in the last hour",
            (
                "sum by (namespace) "
                f"(increase(paddlepool_predictor_restarts_total{{{MODEL}}}[1h]))",
                "restarts",
            ),
            width=4,
            text="Predictor processes replaced, for whatever reason.",
            thresholds=GOOD_AT_ZERO,
        ),
        number(
            "Codec processes",
            (f"sum by (namespace) (paddlepool_codec_processes{{{SERVER}}})", "alive"),
            width=4,
            text="Processes that open and write pictures. 0: /segment cannot answer.",
            thresholds=GOOD_AT_ONE,
        ),
        number(
            "Build",
            (f"paddlepool_build_info{{{SERVER}}}", "{{version}} on Paddle {{paddle}}"),
            width=8,
            text="Paddlepool's version and Paddle's.",
            text_mode="name",
        ),
        lines(
            "Request rate",
            (f"sum by (namespace, route) (rate({rate})) > 0", "{{route}}"),
            width=8,
            unit="reqps",
            text="Requests a second by route, refusals included.",
        ),
        lines(
            "Replies by status",
            (f"sum by (namespace, status) (rate({rate})) > 0", "{{status}}"),
            width=8,
            unit="reqps",
            stacked=True,
            text="503 is load shed on purpose, 422 an input the server cannot use.",
        ),
        lines(
            "Error share",
            (
                f"(sum by (namespace, route) (rate({failed})) "
                f"or 0 * sum by (namespace, route) (rate({rate}))) "
                f"/ (sum by (namespace, route) (rate({rate})) > 0)",
                "{{route}}",
            ),
            width=8,
            unit="percentunit",
            text="Server errors without 503, as a share of the requests of the route.",
        ),
        lines(
            "Duration of answered requests",
            *quantiles(REQUESTS, f'{SERVER}, route=~"/segment|/sentiment", status="200"', "route"),
            width=12,
            unit="s",
            text="Headers in to last byte out, refusals left out.",
        ),
        lines(
            "Mean time per stage",
            means("paddlepool_stage_duration_seconds", GROUP, "model, stage"),
            width=12,
            unit="s",
            stacked=True,
            text="Where the time of an answered request goes.",
        ),
    ]


def predictors() -> list[Json]:
    side_by_side = [
        lines(
            f"Predictor run, {quantile}",
            (f"{INFER}:{quantile}{{{RECORDED}}}", "{{model}} {{predictor}}"),
            width=8,
            unit="s",
            text="One run of a predictor, one line for each instance group: the comparison itself.",
        )
        for quantile in ("p50", "p95", "p99")
    ]
    ratios = [
        lines(
            f"Ratio to the default group, {quantile}",
            (f"{INFER}:{quantile}_ratio_to_default{{{RECORDED}}}", "{{model}} {{predictor}}"),
            width=8,
            text="Above 1: slower than the instance group that answers when a request names none.",
        )
        for quantile in ("p50", "p95", "p99")
    ]
    return [
        *side_by_side,
        *ratios,
        panel(
            "heatmap",
            "Predictor runs: $predictor",
            (
                "sum by (le) (increase(paddlepool_predictor_infer_seconds_bucket"
                f"{{{GROUP}}}[$__rate_interval]))",
                "{{le}}",
            ),
            width=12,
            text="How many runs took how long, for one group in each panel.",
            repeat="predictor",
            options={
                "calculate": False,
                "yAxis": {"unit": "s", "axisPlacement": "left"},
                "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64},
                "cellGap": 1,
                "tooltip": {"mode": "single", "yHistogram": True},
            },
        ),
        lines(
            "Runs a second",
            (f"{INFER}:rate2m{{{RECORDED}}}", "{{model}} {{predictor}}"),
            width=8,
            unit="ops",
            text="Batches, not requests.",
        ),
        lines(
            "Mean batch",
            means("paddlepool_batch_rows", GROUP, "model, predictor"),
            width=8,
            text="Rows in one run: 1 means that batching found nothing to join.",
        ),
        lines(
            "Padding",
            rates("paddlepool_padding_tokens_total", GROUP, "model, predictor"),
            width=8,
            text="Tokens a second that were added only to fill a length bucket.",
        ),
        number(
            "Effective",
            (
                f"min by (namespace, model, predictor) (paddlepool_predictor_effective{{{GROUP}}})",
                "{{model}} {{predictor}}",
            ),
            width=8,
            text="0: this configuration was measured and changes nothing against its base group.",
            thresholds=GOOD_AT_ONE,
        ),
        lines(
            "Drift from the default group, p99",
            quantiles("paddlepool_predictor_output_drift", GROUP, "model, predictor")[2],
            width=8,
            height=5,
            text="Largest absolute difference of a shadowed request's output.",
        ),
        lines(
            "Agreement with the default group",
            means("paddlepool_predictor_output_agreement", GROUP, "model, predictor"),
            width=8,
            height=5,
            text="Mean of the task's own measure: mask IoU, or the share of equal labels.",
        ),
    ]


def objectives() -> list[Json]:
    burn = "job_route_objective:paddlepool_budget_burn"
    return [
        number(
            "Budget left of 30 days",
            (f"1 - {burn}:rate30d{{{RELEASE}}}", "{{route}} {{objective}}"),
            width=12,
            unit="percentunit",
            text="What an endpoint may still miss of its objective; below 0 it has missed it.",
            thresholds=[(None, "red"), (0, "orange"), (0.25, "green")],
        ),
        lines(
            "Budget burn rate, 1 h",
            (f"{burn}:rate1h{{{RELEASE}}}", "{{route}} {{objective}}"),
            width=12,
            text="1: the budget of 30 days lasts 30 days. An alert fires at 14.4 for an hour.",
        ),
    ]


def balancer() -> list[Json]:
    warnings = f"warnings_total{{{REPLICAS}}}[$__rate_interval]))"
    retries = f"sum by (namespace) (rate(haproxy_backend_retry_{warnings}"
    redispatches = f"sum by (namespace) (rate(haproxy_backend_redispatch_{warnings}"
    return [
        number(
            "Replicas in use",
            (f"haproxy_backend_active_servers{{{REPLICAS}}}", "{{instance}}"),
            width=4,
            text="Replicas that HAProxy sends requests to.",
            thresholds=GOOD_AT_ONE,
        ),
        lines(
            "Replies of the balancer",
            rates("haproxy_backend_http_responses_total", REPLICAS, "code"),
            width=10,
            unit="reqps",
            stacked=True,
            text="By status, those of the replicas and its own.",
        ),
        lines(
            "Sent again, and waiting",
            (retries, "retries a second"),
            (redispatches, "to another replica"),
            (f"haproxy_backend_current_queue{{{REPLICAS}}}", "waiting"),
            width=10,
            text="Requests that another replica got, and requests without a place.",
        ),
    ]


def load() -> list[Json]:
    return [
        lines(
            "Queue depth",
            (f"paddlepool_queue_depth{{{GROUP}}}", "{{model}} {{predictor}}"),
            (f"paddlepool_queue_limit{{{GROUP}}}", "{{model}} {{predictor}} limit"),
            width=8,
            text="Jobs waiting, and how many may wait before the next is refused.",
        ),
        lines(
            "In a predictor",
            (f"paddlepool_inflight_requests{{{GROUP}}}", "{{model}} {{predictor}}"),
            width=8,
            text="Jobs inside a run at the moment of the scrape.",
        ),
        lines(
            "Rejections",
            rates("paddlepool_requests_rejected_total", MODEL, "model, reason"),
            width=8,
            unit="reqps",
            text="Jobs that never ran, by reason.",
        ),
        lines(
            "Memory of the predictors",
            (f"paddlepool_predictor_resident_bytes{{{GROUP}}}", "{{model}} {{predictor}}"),
            width=8,
            unit="bytes",
            stacked=True,
            text="Resident memory of each group's processes together.",
        ),
        lines(
            "Memory of the server",
            (f"process_resident_memory_bytes{{{SERVER}}}", "resident {{instance}}"),
            width=8,
            unit="bytes",
            text="The HTTP process alone, without predictors and decoders.",
        ),
        lines(
            "Event loop lag, p99",
            (
                quantiles("paddlepool_event_loop_lag_seconds", SERVER, "instance")[2][0],
                "{{instance}}",
            ),
            width=8,
            unit="s",
            text="How late the server's event loop wakes. Every step of a request waits that long.",
        ),
        lines(
            "Restarts",
            increases("paddlepool_predictor_restarts_total", GROUP, "model, predictor, reason"),
            increases("paddlepool_codec_restarts_total", SERVER, "reason", prefix="codec "),
            width=8,
            text="Predictor and codec processes replaced in each step, by reason.",
        ),
    ]


def dashboard() -> Json:
    sections = [
        ("Service", service()),
        ("Objectives", objectives()),
        ("Instance groups", predictors()),
        ("Load", load()),
        ("Balancer (where there is one)", balancer()),
    ]
    return {
        "uid": "paddlepool",
        "title": "Paddlepool",
        "description": "Requests, instance groups side by side, queues, memory and restarts.",
        "tags": ["paddlepool"],
        "schemaVersion": 41,
        "editable": False,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "browser",
        "templating": {
            "list": [
                data_source(),
                variable("namespace", "label_values(paddlepool_build_info, namespace)"),
                variable("job", f"label_values(paddlepool_build_info{{{NAMESPACE}}}, job)"),
                variable("instance", f"label_values(paddlepool_build_info{{{RELEASE}}}, instance)"),
                variable("model", f"label_values(paddlepool_model_ready{{{SERVER}}}, model)"),
                variable(
                    "predictor",
                    'label_values(paddlepool_queue_depth{model=~"$model"}, predictor)',
                ),
            ]
        },
        "annotations": {"list": []},
        "links": [],
        "panels": placed(sections),
    }


def text() -> str:
    return json.dumps(dashboard(), indent=2) + "\n"


if __name__ == "__main__":
    TARGET.write_text(text())
    sys.exit(0)
