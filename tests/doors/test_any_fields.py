"""Whatever stands in a door's fields, it works or is refused in the door's form: never a 5xx."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.doors.removebg_fields import document
from tests.doors.fakes import IN_BASE64, PICTURE, Doors

DOORS = Doors()
"""Shared by all examples: nothing of a request is kept but what the fake remembers."""

KNOWN = """
true false 1 0 yes maybe auto none drop preview hd jpg png zip alpha rgba car red fff 81d4fa77 10%
30px 50% original center 50%,50% 0%,0%,100%,100% 10 240 255 256 -1 1e9 u2net a@1 @ a@b
http://x.example 10,20,30,40 1,2,3 latest {} [] null left softmax semantic
"""
"""Words that some field knows, and some that none does."""
WORDS = st.one_of(
    st.sampled_from(KNOWN.split()),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=2),
    max_leaves=4,
)
REMBG = ("model", "a", "af", "ab", "ae", "om", "ppm", "dc", "vm", "extras", "x")
REMOVEBG = tuple(document()["content"]["application/json"]["schema"]["properties"])


def fields_of(names: Any, values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(list(names)), values, max_size=4)


def answered(response: Any, refusals: set[int], key: str) -> None:
    """200, or a refusal in the door's form; one that reached nobody says why."""
    assert response.status_code in {200, *refusals}, response.text
    if response.status_code != 200:
        assert response.json()[key], response.text


@given(fields=fields_of(REMBG, WORDS), query=fields_of(("bgc", "extras", "url", "model"), WORDS))
def test_rembg(fields: Mapping[str, str], query: Mapping[str, str]) -> None:
    files = [("file", ("a", PICTURE)), *((name, (None, text)) for name, text in fields.items())]
    answered(DOORS.post("/api/remove", files=files, params=query), {422}, "detail")
    answered(DOORS.client.get("/api/remove", params=query), {422}, "detail")


@given(fields=fields_of([*REMOVEBG, "x"], WORDS), background=st.booleans())
def test_removebg_as_a_form(fields: Mapping[str, str], background: bool) -> None:
    files: list[Any] = [("image_file", ("a", PICTURE))]
    files += [("bg_image_file", ("b", b"b"))] if background else []
    files += [(name, (None, text)) for name, text in fields.items()]
    answered(DOORS.post("/v1.0/removebg", files=files), {400}, "errors")
    answered(DOORS.post("/v1.0/removebg", data=fields), {400}, "errors")


@given(fields=fields_of([*REMOVEBG, "x"], VALUES))
def test_removebg_as_json(fields: Mapping[str, Any]) -> None:
    body = json.dumps({"image_file_b64": IN_BASE64} | dict(fields))
    kind = {"content-type": "application/json"}
    answered(DOORS.post("/v1.0/removebg", content=body, headers=kind), {400}, "errors")


@given(
    inputs=st.one_of(
        VALUES, WORDS, st.lists(WORDS, max_size=3), st.lists(st.lists(WORDS, max_size=3))
    ),
    fields=fields_of(("truncate", "truncation_direction", "raw_scores", "x"), VALUES),
)
def test_tei(inputs: Any, fields: Mapping[str, Any]) -> None:
    body = json.dumps({"inputs": inputs} | dict(fields))
    kind = {"content-type": "application/json"}
    response = DOORS.post("/predict", content=body, headers=kind)
    answered(response, {400, 413, 422}, "error_type")


@given(
    inputs=VALUES,
    parameters=VALUES | fields_of(("top_k", "function_to_apply", "x"), VALUES),
)
def test_hugging_face_texts(inputs: Any, parameters: Any) -> None:
    body = json.dumps({"inputs": inputs, "parameters": parameters})
    kind = {"content-type": "application/json"}
    answered(DOORS.post("/hf/sentiment", content=body, headers=kind), {422}, "error")


@given(
    inputs=VALUES | st.just(IN_BASE64),
    parameters=VALUES
    | fields_of(
        ("threshold", "mask_threshold", "overlap_mask_area_threshold", "subtask", "x"), VALUES
    ),
)
def test_hugging_face_pictures(inputs: Any, parameters: Any) -> None:
    body = json.dumps({"inputs": inputs, "parameters": parameters})
    kind = {"content-type": "application/json"}
    answered(DOORS.post("/hf/segment", content=body, headers=kind), {422}, "error")


@given(
    image=VALUES | st.just(IN_BASE64),
    fields=fields_of(("targetSize", "visualize", "logId"), VALUES),
)
def test_paddlex(image: Any, fields: Mapping[str, Any]) -> None:
    body = json.dumps({"image": image} | dict(fields))
    answered(DOORS.post("/semantic-segmentation", content=body), {422}, "errorMsg")


@given(
    path=st.sampled_from(
        [
            ("/api/remove", "detail"),
            ("/v1.0/removebg", "errors"),
            ("/predict", "error"),
            ("/hf/sentiment", "error"),
            ("/hf/segment", "error"),
            ("/semantic-segmentation", "errorMsg"),
        ]
    ),
    body=st.binary(max_size=60),
    kind=st.sampled_from(
        [
            "application/json",
            "application/x-www-form-urlencoded",
            "multipart/form-data",
            "multipart/form-data; boundary=a",
            "multipart/form-data; boundary=a; charset=hex",
            "text/plain",
        ]
    ),
)
def test_any_body(path: tuple[str, str], body: bytes, kind: str) -> None:
    """Bytes of no format."""
    response = DOORS.post(path[0], content=body, headers={"content-type": kind})
    answered(response, {400, 413, 415, 422}, path[1])
