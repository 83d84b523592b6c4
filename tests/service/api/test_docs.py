"""The API's own documentation: local, complete, and true to the routes."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from paddlepool.application import COMPATIBLE_APIS
from paddlepool.service.api.errors import ANY_STATUSES, TASK_STATUSES, error_codes
from paddlepool.service.api.pages import STATIC
from tests.ran import ROOT
from tests.service.api.fakes import Client, product_client


@pytest.fixture(scope="module")
def product() -> Client:
    """The product with all compatible APIs enabled."""
    return product_client(compatible_apis=COMPATIBLE_APIS)


@pytest.fixture(scope="module")
def schema(product: Client) -> dict[str, Any]:
    return dict(product.get("/openapi.json").json())


def operations(schema: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (method, path, operation)
        for path, methods in schema["paths"].items()
        for method, operation in methods.items()
    ]


def test_an_operation_id_can_name_a_function(schema: dict[str, Any]) -> None:
    ids = [operation["operationId"] for _, _, operation in operations(schema)]
    assert len(ids) == len(set(ids))
    assert all(re.fullmatch("[a-z][A-Za-z]+", name) for name in ids), ids


def test_text_reading_is_described_in_both_forms(schema: dict[str, Any]) -> None:
    """A generated client must be able to read what PaddleX's request gets."""
    replies = schema["paths"]["/ocr"]["post"]["responses"]
    kinds = replies["200"]["content"]["application/json"]["schema"]["anyOf"]
    assert {kind["$ref"].rpartition("/")[2] for kind in kinds} == {"OcrReply", "PaddleXReply"}
    assert replies["422"]["content"].keys() == {"application/problem+json", "application/json"}


def test_every_reference_has_its_schema(schema: dict[str, Any]) -> None:
    named = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(schema)))
    assert named <= schema["components"]["schemas"].keys()


def texts_of(part: Any, *, in_reply: bool = False) -> Iterator[str]:
    """The summaries and descriptions that the page shows of an opened operation. The schema of a
    reply is behind a tab, and all errors share one row with a text of its own."""
    if isinstance(part, list):
        for item in part:
            yield from texts_of(item, in_reply=in_reply)
    if not isinstance(part, dict):
        return
    for key, value in part.items():
        if key in ("summary", "description") and isinstance(value, str):
            yield value
        elif key == "responses":
            for status, reply in value.items():
                if status < "400":
                    yield from texts_of(reply, in_reply=True)
        elif not (in_reply and key == "schema"):
            yield from texts_of(value, in_reply=in_reply)


def test_what_the_page_shows_of_an_operation_has_a_translation(schema: dict[str, Any]) -> None:
    """So have all errors. None is left whose English text has changed."""
    chinese = json.loads((STATIC / "chinese.json").read_text("utf-8"))
    assert set(chinese["errors"]) == {row.code for row in error_codes()}
    texts = {schema["info"]["description"], *texts_of(schema["paths"])}
    assert set(chinese["api"]) == texts


def test_every_error_has_a_chinese_sentence_on_the_pages() -> None:
    """It tells a person what to do: it ends as a sentence and names no header or parameter."""
    text = (STATIC / "console" / "chinese.js").read_text("utf-8")
    advice = dict(re.findall(r'^  (\w+): "(.+)",$', text, re.MULTILINE))
    assert set(advice) == {row.code for row in error_codes()}
    assert [code for code, sentence in advice.items() if not sentence.endswith("。")] == []
    technical = re.compile("`|[a-z]+_[a-z]+|[A-Z]+_[A-Z]+")
    assert [code for code, sentence in advice.items() if technical.search(sentence)] == []


OTHER_FORMS = {
    "/v2": "ProtocolError",
    "/api/remove": "RembgError",
    "/v1.0": "RemoveBgError",
    "/predict": "TeiError",
    "/hf": "HubError",
    "/semantic-segmentation": "PaddleXError",
    "/image-classification": "PaddleXError",
}
"""The models of errors other than Problem, by the prefix of a path."""
OURS = ("Problem", "ProtocolError")


def test_every_error_status_is_documented_with_its_model(schema: dict[str, Any]) -> None:
    """H7: a status that is not in the document is a broken promise."""
    for _, path, operation in operations(schema):
        of_path = (form for start, form in OTHER_FORMS.items() if path.startswith(start))
        model = next(of_path, "Problem")
        errors = {int(status) for status in operation["responses"] if status[0] in "45"}
        expected = {*ANY_STATUSES, *(TASK_STATUSES if path in ("/segment", "/sentiment") else ())}
        if operation["tags"] == ["compatible"]:
            expected = {429, 503} if model == "RemoveBgError" else {401, 429, 503}
            assert expected == errors & {401, 429, 503}, path
        assert expected <= errors, path
        assert (operation["tags"] == ["compatible"]) == (model not in OURS), path
        for status in errors:
            contents = dict(operation["responses"][str(status)]["content"])
            if path == "/ocr":  # also answers in PaddleX's form
                other = contents.pop("application/json")["schema"]["$ref"]
                assert other == "#/components/schemas/PaddleXError"
            [[media_type, content]] = contents.items()
            assert content["schema"]["$ref"] == f"#/components/schemas/{model}", (path, status)
            assert model in schema["components"]["schemas"]
            kind = "application/problem+json" if model == "Problem" else "application/json"
            assert media_type == kind


def test_docs_load_nothing_from_elsewhere(product: Client) -> None:
    """Every address in the page is ours, answers, and the policy forbids any other."""
    page = product.get("/docs")
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    assert "unsafe-eval" not in page.headers["content-security-policy"]
    addresses = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(addresses) >= 3
    for address in addresses:
        assert re.match(r"/(?!/)", address), address
        response = product.get(address)
        assert response.status_code == 200
        assert response.content
    assert "http" not in (STATIC / "docs.js").read_text()
    assert product.get("/docs/nothing.js").status_code == 404
    assert product.get("/docs/..%2Fdocs.html").status_code == 404


def test_the_page_of_errors_has_every_type(product: Client) -> None:
    problem = product.get("/nothing").json()
    path, _, anchor = problem["type"].partition("#")
    assert f'id="{anchor}"' in product.get(path).text


def test_no_parameter_is_offered_twice(schema: dict[str, Any]) -> None:
    def fields(node: Any) -> set[str]:
        if isinstance(node, list):
            return set().union(*map(fields, node))
        if not isinstance(node, dict):
            return set()
        if "$ref" in node:
            return fields(schema["components"]["schemas"][node["$ref"].rpartition("/")[2]])
        return set(node.get("properties", {})).union(*map(fields, node.values()))

    for _, path, operation in operations(schema):
        if operation["tags"] == ["compatible"]:
            continue  # rembg has some twice
        query = [item["name"] for item in operation.get("parameters", ())]
        assert len(query) == len(set(query)), path
        assert not set(query) & fields(operation.get("requestBody", {})), path


def test_generators_of_clients_can_read_it(schema: dict[str, Any]) -> None:
    """They skip a body with a range of types, and make one name of words that differ in case."""

    def enums(node: Any) -> Iterator[list[str]]:
        if isinstance(node, dict):
            yield from [node["enum"]] if "enum" in node else ()
            node = list(node.values())
        if isinstance(node, list):
            yield from (item for child in node for item in enums(child))

    assert all(len({str(word).lower() for word in item}) == len(item) for item in enums(schema))
    for _, path, operation in operations(schema):
        assert "*" not in "".join(operation.get("requestBody", {}).get("content", {})), path


def test_inference_and_texts_are_typed(schema: dict[str, Any]) -> None:
    """A generated client has a class for a tensor, and knows that a text is not empty."""
    models = schema["components"]["schemas"]
    for path in ("/v2/models/{model}/infer", "/v2/models/{model}/versions/{version}/infer"):
        operation = schema["paths"][path]["post"]
        assert "Inference-Header-Content-Length" in [p["name"] for p in operation["parameters"]]
        body = operation["requestBody"]["content"]["application/json"]["schema"]
        assert body == {"$ref": "#/components/schemas/InferRequest"}
        reply = operation["responses"]["200"]["content"]
        assert reply["application/json"]["schema"] == {"$ref": "#/components/schemas/InferReply"}
        assert list(reply) == ["application/json", "application/octet-stream"]
    tensor = models["InferInput"]
    assert (tensor["required"], tensor["properties"]["shape"]["items"]) == (
        ["name", "datatype", "shape"],
        {"type": "integer"},
    )
    assert "FP32" in tensor["properties"]["datatype"]["enum"]
    for model in ("SentimentRequest", "TextsRequest", "PredictRequest"):
        inputs = models[model]["properties"]["inputs"]
        text = {"type": "string", "minLength": 1}
        assert text in (inputs.get("anyOf") or inputs["oneOf"])


def test_what_needs_another_parameter_has_no_default_to_send(schema: dict[str, Any]) -> None:
    """A page would send it without that other, and be refused."""
    of_segment = schema["paths"]["/segment"]["post"]["parameters"]
    sent = {item["name"] for item in of_segment if {"default", "example"} & item["schema"].keys()}
    assert sent == {"output", "size", "crop", "colours", "scale", "shadow"}


def test_the_page_of_the_protocol_names_every_endpoint(schema: dict[str, Any]) -> None:
    """The table names what /openapi.json has, and nothing else under /v2 but what is refused."""
    page = (ROOT / "docs" / "protocol.md").read_text("utf-8")
    served = {p.replace("{model}", "{m}").replace("{version}", "{v}") for p in schema["paths"]}
    rows = re.findall(r"^\| `(?:GET|POST) (.*?) \| ", page, re.M)
    named: set[str] = set()
    for row in rows:
        for path in re.findall(r"[/…][^`, ]*", row):
            if path.startswith("…"):
                named.add("/v2/repository/models/{m}" + path[1:])
                continue
            named |= {
                path.replace("[/versions/{v}]", ""),
                path.replace("[/versions/{v}]", "/versions/{v}"),
            }
    refused = {path for path in named if "sharedmemory" in path}
    assert len(refused) == 2
    assert named - refused == {path for path in served if path == "/v2" or path.startswith("/v2/")}
