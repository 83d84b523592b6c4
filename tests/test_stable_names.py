"""The names that users write into their programs, dashboards and files, as they are today.

Each list is literal: a name that was renamed or removed fails here. A name that is here stays
valid; what it means in prose may be said better (docs/glossary.md).
"""

from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from paddlepool.application import ACCEPTED, COMPATIBLE_APIS
from paddlepool.models.repository.config import (
    DynamicBatching,
    InstanceGroup,
    ModelConfig,
    VersionPolicy,
    Warmup,
)
from paddlepool.service.api.routes import ROUTING
from paddlepool.service.api.uploads import FILE_FIELDS
from paddlepool.service.api.v2.documents import PARAMETERS as INFER_PARAMETERS
from paddlepool.tasks import PIPELINES
from paddlepool.tasks.segment.request import OPTIONS
from paddlepool.tasks.segment.router import SegmentReply
from paddlepool.tasks.sentiment.router import SentimentParameters, SentimentRequest
from paddlepool.tasks.task import load_tasks, settings_class
from tests.observability.test_metrics import with_every_family
from tests.service.api.fakes import Client, make_settings, product_client

PATHS = """
POST /segment
POST /sentiment
GET /compare/data
GET /info
GET /metrics
GET /v2
GET /v2/health/live
GET /v2/health/ready
GET /v2/models/stats
GET /v2/models/{model}
GET /v2/models/{model}/config
GET /v2/models/{model}/ready
GET /v2/models/{model}/sample
GET /v2/models/{model}/stats
GET /v2/models/{model}/versions/{version}
GET /v2/models/{model}/versions/{version}/config
GET /v2/models/{model}/versions/{version}/ready
GET /v2/models/{model}/versions/{version}/sample
GET /v2/models/{model}/versions/{version}/stats
POST /v2/models/{model}/infer
POST /v2/models/{model}/versions/{version}/infer
POST /v2/repository/index
POST /v2/repository/models/{model}/load
POST /v2/repository/models/{model}/unload
"""
APIS = """
POST /api/remove
GET /api/remove
POST /v1.0/removebg
GET /v1.0/account
POST /predict
POST /hf/sentiment
POST /hf/segment
POST /semantic-segmentation
"""
PAGES = ("/", "/compare", "/demo/demo.js", "/docs", "/docs/errors", "/openapi.json")
SEGMENT = (
    "bg_blur bg_color bg_fit crop crop_margin format instance_group model output position "
    "predictor refine scale shadow shadow_opacity size threshold timeout_ms"
)
SENTIMENT = "instance_group model predictor timeout_ms"
SENTIMENT_BODY = "inputs parameters text"
SENTIMENT_PARAMETERS = "instance_group model predictor timeout_ms tokens top_k truncated"
SEGMENT_REPLY = (  # as JSON
    "confidence foreground_box format height image instance_group model predictor timings width"
)
V2_PARAMETERS = "binary_data_output instance_group predictor priority timeout"
REPLY_HEADERS = """
X-Request-ID X-Model X-Instance-Group X-Predictor Server-Timing Retry-After
Inference-Header-Content-Length X-Width X-Height X-Foreground-Top X-Foreground-Left
X-Foreground-Width X-Foreground-Height X-Truncated Content-Disposition
"""
REQUEST_HEADERS = (
    "Authorization Content-Type X-Api-Key X-Request-ID Inference-Header-Content-Length"
)
METRICS = """
paddlepool_batch_rows instance_group model predictor
paddlepool_build_info cpu_flags onednn paddle version
paddlepool_codec_processes
paddlepool_codec_restarts_total reason
paddlepool_default_group_info chosen_by instance_group model predictor version
paddlepool_event_loop_lag_seconds
paddlepool_inflight_requests instance_group model predictor
paddlepool_memory_limit_bytes
paddlepool_model_ready model version
paddlepool_padding_tokens_total instance_group model predictor
paddlepool_predictor_default instance_group model predictor
paddlepool_predictor_effective instance_group model predictor
paddlepool_predictor_infer_seconds batch_size instance_group model predictor version
paddlepool_predictor_output_agreement instance_group model predictor
paddlepool_predictor_output_drift instance_group model predictor
paddlepool_predictor_resident_bytes instance_group model predictor version
paddlepool_predictor_restarts_total instance_group model predictor reason
paddlepool_queue_depth instance_group model predictor
paddlepool_queue_limit instance_group model predictor
paddlepool_request_duration_seconds method route status
paddlepool_requests_rejected_total model reason
paddlepool_shadow_requests_total model outcome
paddlepool_stage_duration_seconds instance_group model predictor stage"""
SETTINGS = """
admin_key api_keys api_keys_file backlog body_max_bytes codec_memory_bytes codec_processes
codec_queue_size codec_timeout_seconds cors_origins default_models drain_delay_seconds
compatible_apis drain_timeout_seconds form_max_fields header_max_bytes header_timeout_seconds
health_needs_key host
image_max_pixels image_max_side infer_json_max_bytes infer_max_bytes jpeg_max_scans
keep_alive_seconds log_level max_connections metrics_needs_key model_repository on_demand_groups
picture_memory_bytes png_max_pixels port precision predictor_memory_bytes prove_groups
receive_timeout_seconds repository_poll_seconds segment_max_bytes send_stall_seconds
sentiment_max_bytes shadow_fraction shadow_groups shadow_max_predictors state_file
text_max_characters text_max_inputs text_threads timeout_default_ms timeout_max_ms
"""
CONFIG = {
    ModelConfig: "default default_group dynamic_batching instance_group parameters pipeline"
    " version_policy warmup",
    VersionPolicy: "count kind versions",
    DynamicBatching: "max_batch_size max_queue_delay_ms max_queue_size",
    InstanceGroup: "backend base budget candidate count name options start threads tolerance",
    Warmup: "shapes",
}
INFO = """
default_models
limits.body_max_bytes limits.form_max_fields limits.header_max_bytes limits.header_timeout_seconds
limits.image_max_pixels limits.image_max_side limits.infer_json_max_bytes limits.infer_max_bytes
limits.jpeg_max_scans limits.keep_alive_seconds limits.png_max_pixels limits.receive_timeout_seconds
limits.segment_max_bytes limits.send_stall_seconds limits.sentiment_max_bytes
limits.text_max_characters limits.text_max_inputs limits.timeout_default_ms limits.timeout_max_ms
models.choice.by models.choice.candidates.agreement models.choice.candidates.fit
models.choice.candidates.gain models.choice.candidates.gain_high models.choice.candidates.gain_low
models.choice.candidates.group models.choice.candidates.largest_difference
models.choice.candidates.mean_difference models.choice.candidates.reason
models.choice.candidates.resident_bytes models.choice.group models.choice.reason
models.files models.labels models.labels_zh models.name models.predictors.backend
models.predictors.count models.predictors.default models.predictors.effective models.predictors.live
models.predictors.name models.predictors.proof models.predictors.queue_limit models.predictors.ready
models.predictors.reason models.predictors.started models.predictors.threads models.reason
models.sha256 models.state models.task models.version models.weights
name processor.instruction_sets processor.missing processor.name processor.remark
ready thread_budget.cores thread_budget.threads thread_budget.warning version
"""
MAPS = ("default_models", "models.files", "models.weights")
"""Their keys are data."""


@pytest.fixture(scope="module")
def product() -> Client:
    """The real endpoints over fakes."""
    return product_client(compatible_apis=COMPATIBLE_APIS)


@pytest.fixture(scope="module")
def paths(product: Client) -> dict[str, Any]:
    return dict(product.get("/openapi.json").json()["paths"])


def parameters(operation: dict[str, Any]) -> list[str]:
    return sorted(each["name"] for each in operation["parameters"] if each["in"] == "query")


def members(value: Any, above: str = "") -> Iterator[str]:
    """The dotted name of every member, lists looked into."""
    if isinstance(value, dict) and value and above not in MAPS:
        for name, inner in value.items():
            yield from members(inner, f"{above}.{name}".lstrip("."))
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        yield from members(value[0], above)
    else:
        yield above


def test_paths(product: Client, paths: dict[str, Any]) -> None:
    found = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    wanted = {*PATHS.strip().splitlines(), *APIS.strip().splitlines()}
    # Refused with its reason: it fetches pictures. A form for it in OpenAPI would lead nowhere.
    assert wanted - found == {"GET /api/remove"}
    assert product.get("/api/remove").status_code not in (404, 405)
    assert [product.get(page).status_code for page in PAGES] == [200] * len(PAGES)


def test_parameters(paths: dict[str, Any]) -> None:
    segment, sentiment = paths["/segment"]["post"], paths["/sentiment"]["post"]
    assert set(SEGMENT.split()) <= set(parameters(segment)) == {*OPTIONS, *ROUTING}
    assert set(SENTIMENT.split()) <= set(parameters(sentiment))
    assert set(SENTIMENT_BODY.split()) <= set(SentimentRequest.model_fields)
    assert set(SENTIMENT_PARAMETERS.split()) <= set(SentimentParameters.model_fields)
    reply = segment["responses"]["200"]["content"]["application/json"]["schema"]
    assert reply == {"$ref": "#/components/schemas/SegmentReply"}
    assert set(SEGMENT_REPLY.split()) <= set(SegmentReply.model_fields)
    assert set(V2_PARAMETERS.split()) <= set(INFER_PARAMETERS)
    assert {"file", "image_file"} <= set(FILE_FIELDS)


def test_headers() -> None:
    settings = make_settings(cors_origins=("https://a.example",))
    reply = product_client(settings).get("/info", headers={"Origin": "https://a.example"})
    exposed = reply.headers["access-control-expose-headers"].split(", ")
    assert set(REPLY_HEADERS.split()) <= set(exposed)
    assert set(REQUEST_HEADERS.split()) <= set(ACCEPTED)


def test_metrics() -> None:
    found = set()
    for family in text_string_to_metric_families(with_every_family().render()[0].decode()):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        found.add(" ".join([name, *sorted(labels)]))
    ours = {line for line in found if line.startswith("paddlepool_")}
    assert set(METRICS.strip().splitlines()) <= ours


def test_settings() -> None:
    """Each is a variable: PADDLEPOOL_ and the name in capitals."""
    kind = settings_class(load_tasks(PIPELINES).values())
    assert set(SETTINGS.split()) <= set(kind.model_fields)
    assert kind.model_config["env_prefix"] == "PADDLEPOOL_"


@pytest.mark.parametrize("table", CONFIG, ids=lambda table: table.__name__)
def test_config_toml(table: Any) -> None:
    assert set(CONFIG[table].split()) <= set(table.model_fields)


def test_info(product: Client) -> None:
    assert set(INFO.split()) <= set(members(product.get("/info").json()))
