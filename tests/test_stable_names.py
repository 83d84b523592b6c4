"""The names that users write into their programs, dashboards and files.

The lists are literal, so a name that was renamed or removed fails here. Names may be added, to the
server first and then here.
"""

import argparse
import sys
from collections.abc import Iterator
from importlib import import_module
from inspect import signature
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from paddlepool import codec, plugin
from paddlepool.application import ACCEPTED, COMPATIBLE_APIS
from paddlepool.cli import CLIENT, COMMANDS
from paddlepool.contracts.ports import Pipeline, RequestContext
from paddlepool.engine.backends.paddle_inference import OPTIONS as ENGINE_OPTIONS
from paddlepool.engine.dataplane import DataPlane
from paddlepool.models.repository import config
from paddlepool.service.api.errors import error_codes
from paddlepool.service.api.routes import ROUTING
from paddlepool.service.api.uploads import FILE_FIELDS
from paddlepool.settings.server import OLDER_NAMES
from paddlepool.tasks import PIPELINES
from paddlepool.tasks.classify import model as classify
from paddlepool.tasks.segment import pipeline as segment
from paddlepool.tasks.segment.request import OPTIONS
from paddlepool.tasks.sentiment import pipeline as sentiment
from paddlepool.tasks.task import load_tasks, settings_class
from tests.observability.test_metrics import with_every_family
from tests.ran import ran
from tests.service.api.fakes import Client, make_settings, product_client

STATUSES = "200 400 403 408 429 500 501 503"
"""Those of every operation. OPERATIONS lists the others, after method, path and operation id."""
OPERATIONS = """
POST /classify classifyPicture 401 404 413 415 422 504
POST /segment segmentImage 401 404 413 415 422 504
POST /sentiment classifySentiment 401 404 413 415 422 504
POST /v2/models/{model}/infer modelInfer 401 404 413 415 422 504
POST /v2/models/{model}/versions/{version}/infer modelVersionInfer 401 404 413 415 422 504
POST /api/remove rembgRemove 401 404 413 422 504
POST /v1.0/removebg removebgRemove 404 504
GET /v1.0/account removebgAccount 404 504
POST /predict teiPredict 401 404 413 415 422 424
POST /hf huggingFace 401 404 413 415 422 504
POST /hf/sentiment huggingFaceTextClassification 401 404 413 415 422 504
POST /hf/segment huggingFaceImageSegmentation 401 404 413 415 422 504
POST /semantic-segmentation paddlexSemanticSegmentation 401 404 413 415 422 504
POST /image-classification paddlexImageClassification 401 404 413 415 422 504
GET /info info 401 413 415 422
GET /metrics metrics 401 413 415 422
GET /compare/data compareData 401 413 415 422
GET /v2/health/live serverLive 401 413 415 422
GET /v2/health/ready serverReady 401 413 415 422
GET /v2 serverMetadata 401 413 415 422
GET /v2/models/stats statistics 401 413 415 422
GET /v2/models/{model}/ready modelReady 401 404 413 415 422
GET /v2/models/{model}/versions/{version}/ready modelVersionReady 401 404 413 415 422
GET /v2/models/{model}/stats modelStatistics 401 404 413 415 422
GET /v2/models/{model}/versions/{version}/stats modelVersionStatistics 401 404 413 415 422
GET /v2/models/{model} modelMetadata 401 404 413 415 422
GET /v2/models/{model}/versions/{version} modelVersionMetadata 401 404 413 415 422
GET /v2/models/{model}/config modelConfig 401 404 413 415 422
GET /v2/models/{model}/versions/{version}/config modelVersionConfig 401 404 413 415 422
POST /v2/repository/index repositoryIndex 401 413 415 422
POST /v2/repository/models/{model}/load modelLoad 401 404 409 413 415 422
POST /v2/repository/models/{model}/unload modelUnload 401 404 413 415 422
GET /v2/repository/models/{model}/canary modelCanary 401 404 409 413 415 422
GET /v2/repository/models/{model}/canary/examples modelCanaryExamples 401 404 409 413 415 422
POST /v2/repository/models/{model}/promote modelPromote 401 404 409 413 415 422
POST /v2/repository/models/{model}/reject modelReject 401 404 409 413 415 422
POST /v2/repository/models/{model}/rollback modelRollback 401 404 409 413 415 422
GET /v2/models/{model}/sample modelSample 401 404 413 415 422
GET /v2/models/{model}/versions/{version}/sample modelVersionSample 401 404 413 415 422
"""
PAGES = ("/", "/compare", "/demo/demo.js", "/docs", "/docs/errors", "/openapi.json")
PARAMETERS = {
    "POST /classify": "instance_group model predictor timeout_ms top",
    "POST /segment": "bg_blur bg_color bg_fit colours crop crop_margin format instance_group model"
    " output position predictor refine scale shadow shadow_opacity size threshold timeout_ms",
    "POST /sentiment": "instance_group model predictor timeout_ms",
    "POST /v2/models/{model}/infer": "Inference-Header-Content-Length",
    "POST /v2/models/{model}/versions/{version}/infer": "Inference-Header-Content-Length",
    "GET /metrics": "name[]",
    "GET /compare/data": "after window",
    "POST /api/remove": "bgc extras instance_group model predictor timeout_ms",
    "POST /v1.0/removebg": "instance_group model predictor timeout_ms",
    "POST /predict": "instance_group model predictor timeout_ms",
    "POST /hf": "instance_group model predictor timeout_ms",
    "POST /hf/sentiment": "instance_group model predictor timeout_ms",
    "POST /hf/segment": "instance_group model predictor timeout_ms",
    "POST /semantic-segmentation": "instance_group model predictor timeout_ms",
    "POST /image-classification": "instance_group model predictor timeout_ms",
}
VALUES = {
    "output": "cutout mask composite labels",
    "format": "png webp jpg",
    "size": "full preview medium hd",
    "refine": "none guided matting",
    "colours": "estimated original",
    "bg_fit": "cover contain",
    "shadow": "none drop",
    "window": "1m 10m 1h",
}
"""Of parameters with a list of values."""
FIELDS = {
    "POST /classify": "file image",
    "POST /segment": "file bg_image",
    "POST /api/remove": "file model a af ab ae om ppm dc vm",
    "POST /v1.0/removebg": "image_file image_file_b64 image_url size type type_level format roi"
    " crop crop_margin scale position channels shadow_type shadow_opacity add_shadow"
    " semitransparency bg_color bg_image_url bg_image_file",
    "POST /hf": "inputs parameters",
    "POST /hf/segment": "inputs parameters",
    "POST /semantic-segmentation": "image targetSize visualize",
    "POST /image-classification": "image topk visualize",
}
"""Of bodies that SCHEMAS does not describe."""
SCHEMAS = """
CanaryStatus agreement agreement_high agreement_limit agreement_low at by compared current
    current_parts drift error errors history identical model pairs parts previous previous_parts
    ratio ratio_high ratio_limit ratio_low reason requests serving serving_parts since slices state
    version
TrialPoint agreement agreement_high agreement_low at compared drift ratio
SliceStatus agreement name rows
CandidateInfo agreement fit gain gain_high gain_low group largest_difference mean_difference
    reason resident_bytes seconds
ChoiceInfo at by candidates group reason
ClassLabel class_id label score
ClassifyReply height labels model version width
ComparedGroup backend base buckets candidate count default effective inflight live name options
    program proof queue_depth queue_limit rate ready reason refused replays resident_bytes runs
    start started threads times
ComparedModel canary choice first groups name parts precision reason shadowing state task version
Comparison began bounds history interval interval_seconds models now processor prove_groups
    window_seconds
ForegroundBox height left top width
GroupInfo backend count default effective live name program proof queue_limit ready reason started
    threads
HistorySeries group interval model p50 p95 p99 runs version
HubLabel label score
IndexEntry name reason state version
InferReply id model_name model_version outputs parameters
InferReplyParameters ignored_parameters
InferReplyTensor data datatype name parameters shape
InferReplyTensorParameters binary_data_size content_type
Info confinement default_models limits models name processor ready tasks thread_budget version
LabelScore label label_zh score
ModelInfo choice files name predictors reason sha256 state task version weights
ModelMetadata inputs name outputs platform versions
PredictRequest inputs raw_scores truncate truncation_direction
Prediction label score
ProcessorInfo instruction_sets missing name remark
Replays agreement count p50 p99 same_bits
Segment label mask score
SegmentReply confidence foreground_box format height image instance_group model predictor timings
    width
SentimentParameters tokens top_k truncated
SentimentRequest inputs parameters text
ServerMetadata extensions name version
Shadowing fraction groups outcomes
TensorMetadata datatype name shape
TextParameters function_to_apply top_k
TextResult scores tokens truncated
TextsRequest inputs parameters
ThreadBudgetInfo cores threads warning
Times p50 p95 p99
FieldFault field message
HubError error
InferInput data datatype name parameters shape
InferInputParameters binary_data_size content_type
InferOutputParameters binary_data classification content_type
InferRequest id inputs outputs parameters
InferRequestParameters binary_data_output content_type instance_group predictor priority timeout
InferRequestedOutput name parameters
PaddleXError errorCode errorMsg logId
Problem code detail errors instance limit received request_id status title type
ProtocolError error
RembgError detail
RembgFault loc msg type
RemoveBgError errors
RemoveBgFault code detail title
TeiError error error_type
"""
CODES = {
    400: "host_not_allowed invalid_request invalid_tensor",
    401: "unauthorized",
    403: "cross_site forbidden group_not_running",
    404: "model_not_found not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    409: "canary_conflict model_load_failed",
    413: "file_too_large",
    415: "unsupported_encoding unsupported_media_type",
    422: "file_missing image_unreadable invalid_json invalid_parameter output_too_large"
    " resolution_too_high text_empty text_too_long too_many_inputs too_many_scans",
    429: "quota_exceeded",
    431: "headers_too_large",
    500: "internal_error model_output_invalid worker_crashed",
    501: "not_implemented",
    503: "model_not_ready overloaded shutting_down",
    504: "deadline_exceeded",
    505: "http_version_not_supported",
}
REPLY_HEADERS = """
X-Request-ID X-Trace-ID X-Replica X-Model X-Instance-Group X-Predictor Server-Timing Retry-After
RateLimit-Limit
RateLimit-Remaining RateLimit-Reset Inference-Header-Content-Length X-Width X-Height
X-Foreground-Top X-Foreground-Left X-Foreground-Width X-Foreground-Height X-Truncated
Content-Disposition X-Type X-Credits-Charged
"""
REQUEST_HEADERS = """
Authorization Content-Type X-Api-Key X-Request-ID Traceparent Tracestate
Inference-Header-Content-Length
"""
METRICS = """
paddlepool_batch_rows instance_group model predictor
paddlepool_build_info cpu_flags onednn paddle version
paddlepool_canary_agreement model version
paddlepool_canary_agreement_low model version
paddlepool_canary_errors model version
paddlepool_canary_requests model version
paddlepool_canary_state model state version
paddlepool_canary_time_ratio model version
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
paddlepool_refused_connections_total status
paddlepool_request_duration_seconds method route status
paddlepool_requests_rejected_total model reason
paddlepool_shadow_requests_total model outcome
paddlepool_stage_duration_seconds instance_group model predictor stage"""
SETTINGS = """
admin_key allowed_hosts api_keys api_keys_file backlog body_max_bytes body_memory_bytes
canary_judge classify_max_bytes codec_memory_bytes
codec_processes codec_queue_size codec_timeout_seconds compatible_apis
cors_origins default_models drain_delay_seconds drain_timeout_seconds form_max_fields grpc_port
header_max_bytes header_timeout_seconds health_needs_key host image_max_pixels image_max_side
infer_json_max_bytes infer_max_bytes jpeg_max_scans keep_alive_seconds log_format log_level
max_connections metrics_needs_key model_repository model_source on_demand_groups
on_demand_memory_bytes picture_formats picture_memory_bytes png_max_pixels port precision
predictor_memory_bytes prove_groups quality_data quota_concurrent_requests quota_pixels_per_minute
quota_requests_per_minute quota_texts_per_minute receive_timeout_seconds replica
repository_poll_seconds segment_max_bytes send_stall_seconds sentiment_max_bytes shadow_fraction
shadow_groups shadow_max_predictors start_group_keys state_file tasks text_max_characters
text_max_inputs text_threads timeout_default_ms timeout_max_ms tracing trusted_proxies
"""
CONFIG = {
    config.ModelConfig: "default default_group dynamic_batching equal_axes instance_group outputs"
    " parameters pipeline ragged version_policy warmup",
    config.VersionPolicy: "agreement count errors fraction keep_examples kind quality requests"
    " rollback_seconds slice_agreement slower then versions within",
    config.DynamicBatching: "max_batch_size max_queue_delay_ms max_queue_size",
    config.InstanceGroup: "backend base budget candidate count name options program start threads"
    " tolerance",
    config.Budget: "mean_difference agreement",
    config.Warmup: "shapes",
    classify.Parameters: "channels drawing interpolation labels mean output resize_short scale size"
    " softmax std top",
    config.Ragged: "axis input max step",
    segment.Parameters: "size mean std output",
    sentiment.Parameters: "labels labels_zh buckets max_tokens pad_id",
}
ENGINE_OPTION_NAMES = "onednn onednn_rows cache_capacity bfloat16 device float16"
COMMAND_LINES = """
serve --host --port --model-repository --repository --log-level
ray up --address --host --port --cpus --min-replicas --max-replicas
models list --repository
models verify names --run --quality --data --smoke --limit --group --json --write-cards
    --repository
models describe model --version --repository
models seal directory --input --shape --source --licence
models sync address --end-with-input --repository
models canary model --url --json
models promote model --url --json
models reject model --url --json
models rollback model --url --json
pull model --repository --timeout --cache --if-possible
import model file --repository --origin --source --licence
derive models --repository
quantize model --repository --data --budget --samples
compare model --version --repository --input --requests --groups --alone --json --plot --claims
    --docs
new-task name --directory
tune model --p95 --groups --yes --repository --seconds --dry-run
graph model --version --repository --group --svg --json
export network --weights --repository --name --version --store --origin --source --licence
    --preview
classify pictures -o --output --jobs --top --json --url --api-key --local --model --predictor
    --timeout-ms
ocr pictures -o --output-directory --jobs --format --min-score --limit --orientation --url --api-key
    --local --model --predictor --timeout-ms
segment pictures -o --output-directory --jobs --url --api-key --local --model --predictor
    --timeout-ms --output --format --size --bg-color --crop --refine --threshold --colours
    --bg-image --bg-fit --bg-blur --crop-margin --scale --position --shadow --shadow-opacity
sentiment texts --top-k --json -o --output --column --prefix --encoding --url --api-key --local
    --model --predictor --timeout-ms
"""
PLUGIN = """
CALLER get
CompatibleApi name task path endpoint max_bytes operation summary reply body more errors headers
    agents paths info
ComposedPipeline run close payload_of answer_of check
Codecs read_picture
Codecs.read_picture body function values context
ErrorForm model write
Fault status detail
Options booleans expected limits
PICTURE_BODY
Pipeline run close
RequestContext deadline stages infer stage add_seconds
RequestContext.infer jobs part
RequestOutput value model version group stages
Routing model instance_group predictor timeout_ms options
RoutingDep
STRINGS
ServedModelInfo name version directory inputs outputs max_rows parameters pipeline
    parts
Services settings dataplane
Services.dataplane.run task read model version group timeout
ServicesDep
Settings of
Task build endpoints settings headers card tensors agreement slices warm_ups
TaskRoute
TaskTensors inputs outputs parameters read write max_bytes optional opaque
TensorSpec name dtype shape admits admits_shape
Workers codec text
output_headers output
parse_parameters info kind
ready payload
strings_of items shape
uploaded_picture request
errors ConfigError DeadlineExceeded FileMissing FileTooLarge ImageUnreadable InputError
    InvalidParameter InvalidTensor ModelOutputInvalid Overloaded PaddlepoolError QuotaExceeded
    OutputTooLarge ResolutionTooHigh TextEmpty TextTooLong TooManyInputs UnsupportedMediaType
Array
Tensors
"""
"""The names of paddlepool.plugin with their members and parameters."""
CODEC = "Array Pixels Tensors errors"
"""The names of paddlepool.codec."""
INFO = """
confinement.codecs confinement.predictors limits.body_max_bytes limits.classify_max_bytes
limits.form_max_fields
limits.header_max_bytes limits.header_timeout_seconds limits.image_max_pixels limits.image_max_side
limits.infer_json_max_bytes limits.infer_max_bytes limits.jpeg_max_scans limits.keep_alive_seconds
limits.png_max_pixels limits.quota_concurrent_requests limits.quota_pixels_per_minute
limits.quota_requests_per_minute limits.quota_texts_per_minute limits.receive_timeout_seconds
limits.segment_max_bytes limits.send_stall_seconds limits.sentiment_max_bytes
limits.text_max_characters limits.text_max_inputs limits.timeout_default_ms limits.timeout_max_ms
models.labels models.labels_zh
"""
"""Members of /info that SCHEMAS does not describe."""


@pytest.fixture(scope="module")
def product() -> Client:
    """The real endpoints over fakes."""
    return product_client(compatible_apis=COMPATIBLE_APIS)


@pytest.fixture(scope="module")
def paths(product: Client) -> dict[str, Any]:
    return dict(product.get("/openapi.json").json()["paths"])


def lines(text: str) -> list[list[str]]:
    """The words of each line; an indented line continues the one before."""
    return [line.split() for line in text.replace("\n    ", " ").strip().splitlines()]


def operation(paths: dict[str, Any], name: str) -> dict[str, Any]:
    method, _, path = name.partition(" ")
    return dict(paths[path][method.lower()])


def test_operations(product: Client, paths: dict[str, Any]) -> None:
    for method, path, operation_id, *statuses in lines(OPERATIONS):
        declared = operation(paths, f"{method} {path}")
        assert declared["operationId"] == operation_id
        assert {*STATUSES.split(), *statuses} <= set(declared["responses"]), path
    # Rejected with its reason, because it would fetch pictures. It is not in OpenAPI.
    assert product.get("/api/remove").status_code not in (404, 405)
    assert [product.get(page).status_code for page in PAGES] == [200] * len(PAGES)


def test_parameters(paths: dict[str, Any]) -> None:
    schemas: dict[str, Any] = {}
    for name, listed in PARAMETERS.items():
        current = {item["name"]: item["schema"] for item in operation(paths, name)["parameters"]}
        assert set(listed.split()) <= set(current), name
        schemas |= current
    for parameter, values in VALUES.items():
        assert set(values.split()) <= set(schemas[parameter]["enum"]), parameter
    in_segment = {item["name"] for item in operation(paths, "POST /segment")["parameters"]}
    assert in_segment == {*OPTIONS, *ROUTING}


def test_bodies_and_replies(product: Client, paths: dict[str, Any]) -> None:
    for name, listed in FIELDS.items():
        content = operation(paths, name)["requestBody"]["content"].values()
        fields = {field for form in content for field in form["schema"].get("properties", ())}
        assert set(listed.split()) <= fields, name
    schemas = product.get("/openapi.json").json()["components"]["schemas"]
    for schema, *listed_members in lines(SCHEMAS):
        assert set(listed_members) <= set(schemas[schema].get("properties", ())), schema
    reply = paths["/segment"]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert reply == {"$ref": "#/components/schemas/SegmentReply"}
    assert {"file", "image_file"} <= set(FILE_FIELDS)


def test_error_codes() -> None:
    listed = {(status, code) for status, codes in CODES.items() for code in codes.split()}
    assert listed <= {(row.status, row.code) for row in error_codes()}


def test_headers() -> None:
    settings = make_settings(cors_origins=("https://a.example",))
    client = product_client(settings, compatible_apis=COMPATIBLE_APIS)
    reply = client.get("/info", headers={"Origin": "https://a.example"})
    exposed = reply.headers["access-control-expose-headers"].split(", ")
    assert set(REPLY_HEADERS.split()) <= set(exposed)
    assert set(REQUEST_HEADERS.split()) <= set(ACCEPTED)


def test_metrics() -> None:
    current: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(with_every_family().render()[0].decode()):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        current[name] = {label for sample in family.samples for label in sample.labels}
    for metric, *labels in lines(METRICS):
        assert set(labels) <= current[metric], metric


def test_settings() -> None:
    """Each is a variable: PADDLEPOOL_ and the name in capitals."""
    kind = settings_class(load_tasks(PIPELINES).values())
    assert set(SETTINGS.split()) <= set(kind.model_fields)
    assert kind.model_config["env_prefix"] == "PADDLEPOOL_"
    assert OLDER_NAMES["compatible_apis"] == "PADDLEPOOL_DOORS"


@pytest.mark.parametrize("table", CONFIG, ids=lambda table: f"{table.__module__}.{table.__name__}")
def test_config_toml(table: Any) -> None:
    assert set(CONFIG[table].split()) <= set(table.model_fields)


def test_options_of_paddle_inference() -> None:
    assert set(ENGINE_OPTION_NAMES.split()) <= set(ENGINE_OPTIONS)


def test_info(product: Client) -> None:
    info = product.get("/info").json()
    [model] = info["models"]
    parts = {"confinement": info["confinement"], "limits": info["limits"], "models": model}
    assert set(INFO.split()) <= {f"{part}.{name}" for part in parts for name in parts[part]}


def members(value: Any) -> set[str]:
    try:
        parameters = set(signature(value).parameters)
    except (TypeError, ValueError):  # a constant, or a type that cannot be called
        parameters = set()
    return {*dir(value), *parameters, *getattr(value, "model_fields", ())}


def test_names_for_other_packages() -> None:
    current = {name: getattr(plugin, name) for name in plugin.__all__}
    current |= {
        "RequestContext.infer": RequestContext.infer,
        "Codecs.read_picture": plugin.Codecs.read_picture,
        "Services.dataplane.run": DataPlane.run,
    }
    listed = {name: names for name, *names in lines(PLUGIN)}
    assert set(listed) == set(current)  # each new name is promised, too
    for name, names in listed.items():
        assert set(names) <= members(current[name]), name
    assert set(CODEC.split()) == set(codec.__all__)
    # Other packages implement these, so nothing may be added to them.
    assert RequestContext.__abstractmethods__ == {"infer"}
    assert {name for name in vars(Pipeline) if not name.startswith("_")} == {"run", "close"}


def test_a_codec_process_loads_no_web_framework() -> None:
    program = """
import sys, paddlepool.codec
print(sorted({"asyncio", "cv2", "fastapi", "pydantic"} & set(sys.modules)))
"""
    assert ran([sys.executable, "-c", program]).stdout == "[]\n"


def parsers(name: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, set[str]]]:
    """The arguments and options of a command and of its own commands."""
    names = set[str]()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, inner in action.choices.items():
                yield from parsers(f"{name} {word}", inner)
        else:
            names |= {*action.option_strings} or {action.dest}
    yield name, names


def test_commands() -> None:
    current: dict[str, set[str]] = {}
    for name, (module, _) in COMMANDS.items():
        parser = argparse.ArgumentParser()
        path = f"paddlepool_client.commands.{name}" if module == CLIENT else module
        import_module(path).configure(parser)
        current |= parsers(name, parser)
    for words in lines(COMMAND_LINES):
        command = " ".join(words[:2]) if words[0] in ("models", "ray") else words[0]
        assert set(words[len(command.split()) :]) <= current[command], command
