"""Tensors on the wire: what is read, what is refused, and that both forms mean the same."""

import base64
import json
import math
import struct
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from paddlepool.contracts.errors import InvalidParameter, InvalidTensor
from paddlepool.contracts.tensors import STRINGS, TensorSpec, strings_of
from paddlepool.engine.dataplane import TensorRequest
from paddlepool.service.api.services import LARGE_BYTES
from paddlepool.service.api.v2.documents import (
    MAX_IGNORED,
    MAX_LISTS,
    PART_NUMBERS,
    Expected,
    ReplyForm,
    parse_request,
    read_document,
    write_reply,
    written_size,
)
from paddlepool.service.api.v2.infer import may_name_group, place_timeout
from paddlepool.service.api.v2.tensors import DATATYPES, classified, read_inputs
from paddlepool.settings.server import Settings

IMAGE = TensorSpec("image", "float32", (-1, 4))
LOGITS = TensorSpec("logits", "float32", (-1, 2))
LOGIT = np.zeros((1, 2), np.float32)


def document(**changes: Any) -> dict[str, Any]:
    entry = {"name": "image", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]} | changes
    return {"inputs": [{key: value for key, value in entry.items() if value is not None}]}


def parse(request: Any, raw: bytes = b"", spec: TensorSpec = IMAGE) -> TensorRequest:
    header = json.dumps(request).encode()
    return read(header + raw, len(header) if raw else None, spec)


def read(body: bytes, header_length: int | None = None, spec: TensorSpec = IMAGE) -> TensorRequest:
    return parse_request(
        body,
        header_length=header_length,
        expected=Expected(inputs=[spec], outputs=[LOGITS]),
        settings=Settings(),
    )


@pytest.mark.parametrize("data", [[1, 2, 3, 4], [[1, 2, 3, 4]]], ids=["flat", "nested"])
def test_flat_and_nested_data_are_the_same_tensor(data: list[Any]) -> None:
    expected = np.array([[1, 2, 3, 4]], np.float32)
    np.testing.assert_array_equal(parse(document(data=data)).inputs["image"], expected)


def wanting(**parameters: Any) -> dict[str, Any]:
    """A request for the logits with these parameters."""
    return document() | {"outputs": [{"name": "logits", "parameters": parameters}]}


REFUSED: dict[str, tuple[Any, bytes]] = {
    "not an object": ([], b""),
    "inputs not a list": ({"inputs": {}}, b""),
    "unknown name": (document(name="picture"), b""),
    "the same input twice": ({"inputs": document()["inputs"] * 2}, b""),
    "wrong datatype": (document(datatype="FP64"), b""),
    "made-up datatype": (document(datatype="X" * 1000), b""),
    "no shape": (document(shape=None), b""),
    "negative size": (document(shape=[-1, 4]), b""),
    "zero rows": (document(shape=[0, 4], data=[]), b""),
    "huge size": (document(shape=[2**62, 4]), b""),
    "sizes of many digits": (document(shape=[10**400]), b""),
    "an integer of many digits": (document(data=[10**400, 1, 1, 1]), b""),
    "too many axes": (document(shape=[1] * 5000), b""),
    "too few numbers": (document(data=[1, 2, 3]), b""),
    "ragged": (document(shape=[2, 4], data=[[1, 2, 3, 4], [5]]), b""),
    "shared memory": (document(data=None, parameters={"shared_memory_region": "r"}), b""),
    "strings": (document(data=["1", "2", "3", "4"]), b""),
    "nulls": (document(data=[None] * 4), b""),
    "booleans": (document(data=[True, False, True, True]), b""),
    "a null among numbers": (document(data=[1, 2, 3, None]), b""),
    "a list among numbers": (document(data=[1, 2, 3, [4]]), b""),
    "an empty list": (document(data=[]), b""),
    "data is an object": (document(data={}), b""),
    "no data": (document(data=None), b""),
    "both forms": (document(parameters={"binary_data_size": 16}), b"\0" * 16),
    "binary size too small": (document(data=None, parameters={"binary_data_size": 12}), b"\0" * 12),
    "binary size huge": (document(data=None, parameters={"binary_data_size": 2**62}), b"\0" * 16),
    "bytes are missing": (document(data=None, parameters={"binary_data_size": 16}), b"\0" * 8),
    "bytes left over": (document(data=None, parameters={"binary_data_size": 16}), b"\0" * 17),
    "bytes without a tensor": (document(), b"\0"),
    "huge declared shape, few bytes": (
        document(data=None, shape=[2**62, 4], parameters={"binary_data_size": 2**62 * 16}),
        b"\0" * 16,
    ),
    "id is a number": (document() | {"id": 7}, b""),
    "id too long": (document() | {"id": "x" * 257}, b""),
    "content_type a number": (document() | {"parameters": {"content_type": 1}}, b""),
    "parameters not an object": (document() | {"parameters": []}, b""),
    "unknown output": (document() | {"outputs": [{"name": "scores"}]}, b""),
    "output twice": (document() | {"outputs": [{"name": "logits"}] * 2}, b""),
    "unknown output parameter": (wanting(sorted=True), b""),
    "classification not a number": (wanting(classification="3"), b""),
    "shared memory for an output": (wanting(shared_memory_region="r"), b""),
    "binary_data not a flag": (wanting(binary_data=1), b""),
}


@pytest.mark.parametrize(("request_", "raw"), REFUSED.values(), ids=REFUSED.keys())
def test_what_does_not_fit_is_refused(request_: Any, raw: bytes) -> None:
    with pytest.raises(InvalidTensor) as refused:
        parse(request_, raw)
    assert len(refused.value.message) < 300


def peak_of_refusal(body: bytes, match: str | None = None) -> int:
    """How much memory it takes to refuse this."""
    tracemalloc.start()
    try:
        with pytest.raises(InvalidTensor, match=match):
            read(body)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "data",
    [
        ["x" * 20_000] + ["y"] * 999,
        [["x" * 20_000] + ["y"] * 3] + [["y"] * 4] * 249,
        [[["x" * 20_000], ["y"], ["y"], ["y"]]] + [[["y"]] * 4] * 249,
    ],
    ids=["flat", "nested", "too deep"],
)
def test_what_is_no_number_makes_no_array(data: list[Any]) -> None:
    """One long string in a list made NumPy keep as much room for each of the others."""
    body = json.dumps(document(shape=[250, 4], data=data)).encode()
    assert peak_of_refusal(body) < 20 * len(body)


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"\xff\xfe", b'{"inputs": [NaN]}', b'{"inputs": 1e400}', b"[" * 100_000],
    ids=["empty", "cut off", "not UTF-8", "NaN", "1e400", "deep"],
)
def test_what_is_not_json_is_refused(body: bytes) -> None:
    """JSON has no NaN and no infinity, and does not nest a hundred thousand deep."""
    with pytest.raises(InvalidTensor):
        read(body)


@pytest.mark.parametrize("brackets", [b"[]", b"{}"], ids=["lists", "objects"])
def test_more_lists_than_the_limit_are_not_read(brackets: bytes) -> None:
    """They would take thirty times the body's memory, and the interpreter for half a second."""
    body = b"[" + b",".join([brackets] * MAX_LISTS) + b"]"
    peak = peak_of_refusal(body, match=f"{MAX_LISTS + 1} lists.* {MAX_LISTS};")
    assert peak < len(body) + 100_000


@pytest.mark.parametrize("length", [-1, 10_000], ids=["negative", "beyond the body"])
def test_a_header_length_outside_the_body_is_refused(length: int) -> None:
    with pytest.raises(InvalidTensor, match="Content-Length"):
        read(b"{}", length)


@pytest.mark.parametrize(
    ("datatype", "data"),
    [("UINT8", [256]), ("UINT8", [-1]), ("INT64", [2**63]), ("INT32", [0.5])],
    ids=["too large", "negative", "beyond 64 bits", "a fraction"],
)
def test_integers_that_do_not_fit_are_refused(datatype: str, data: list[float]) -> None:
    body = {"inputs": [{"name": "x", "datatype": datatype, "shape": [1], "data": data}]}
    spec = TensorSpec("x", DATATYPES[datatype], (-1,))
    with pytest.raises(InvalidTensor):
        parse(body, spec=spec)


def test_a_raw_bool_is_a_byte_of_0_or_1() -> None:
    """Any other byte would be a third truth value."""
    entry = {"name": "x", "datatype": "BOOL", "shape": [2], "parameters": {"binary_data_size": 2}}
    spec = TensorSpec("x", "bool", (-1,))
    assert parse({"inputs": [entry]}, b"\0\1", spec).inputs["x"].tolist() == [False, True]
    with pytest.raises(InvalidTensor, match="0 or 1"):
        parse({"inputs": [entry]}, b"\0\2", spec)


NAMES = TensorSpec("image", STRINGS, (-1,))


def parse_names(entry: dict[str, Any], raw: bytes = b"", **more: Any) -> TensorRequest:
    """The request to a task that takes strings and gives a file, which is no text, and names."""
    expected = Expected(
        inputs=[NAMES],
        outputs=[TensorSpec("file", STRINGS, (1,)), replace(NAMES, name="names")],
        options=("mode",),
        opaque=frozenset({"file"}),
    )
    document = {"inputs": [{"name": "image", "datatype": "BYTES", **entry}], **more}
    return read_document(document, memoryview(raw), expected=expected, settings=Settings())


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\1\0\0",
        struct.pack("<I", 2) + b"a",
        struct.pack("<I", 2**32 - 1) + b"abcd",
        struct.pack("<I", 1) + b"ab",
        struct.pack("<I", 1) + b"a" + struct.pack("<I", 0),
    ],
    ids=["nothing", "half a length", "cut off", "huge length", "left over", "two strings"],
)
def test_a_string_that_is_not_what_came_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidTensor, match="image"):
        parse_names({"shape": [1], "parameters": {"binary_data_size": len(raw)}}, raw)


def test_a_tasks_shape_is_held_before_its_strings_are_read() -> None:
    """Three million empty strings take a second; none of them is looked at where one is wanted."""
    entry = {"name": "image", "datatype": "BYTES", "shape": [3]}
    listed = [entry | {"parameters": {"binary_data_size": 3}}]
    with pytest.raises(InvalidTensor, match=r"must have the shape \[1\].*received \[3\]"):
        read_inputs(listed, memoryview(b"abc"), [replace(NAMES, shape=(1,))], of_task=True)


IN_BASE64 = {"content_type": "base64"}
NULLS = {"id": None, "outputs": None, "parameters": None}


@pytest.mark.parametrize(
    ("entry", "raw", "more"),
    [
        ({"shape": [2, 1], "data": ["a", "\u597d"]}, b"", {}),
        ({"shape": [2, 1], "data": [["a"], ["\u597d"]]}, b"", {}),
        ({"shape": [2], "data": ["a", "\u597d"], "parameters": None}, b"", NULLS),
        ({"shape": [2], "data": [b"a", "\u597d".encode()]}, b"", {}),
        (
            {
                "shape": [2, 1],
                "data": ["a", "\u597d"],
                "parameters": {"content_type": "str", "binary_data_size": None},
            },
            b"",
            {"parameters": {"content_type": "str", "headers": None, "mode": None}},
        ),
        ({"shape": [2, 1], "data": ["YQ==", "5aW9"], "parameters": IN_BASE64}, b"", {}),
        ({"shape": [2], "data": [b"YQ==", b"5aW9"]}, b"", {"parameters": IN_BASE64}),
        (
            {"shape": [2, 1], "data": None, "parameters": {"binary_data_size": 12}},
            b"\1\0\0\0a\3\0\0\0\xe5\xa5\xbd",
            {},
        ),
    ],
    ids=["column", "nested", "nulls", "gRPC", "MLServer", "base64", "request's", "raw column"],
)
def test_strings_in_each_form(entry: dict[str, Any], raw: bytes, more: dict[str, Any]) -> None:
    """As the clients of other servers send them; [n, 1] is [n]."""
    parsed = parse_names(entry, raw, **more)
    state = parsed.state
    assert parsed.inputs["image"].tolist() == [b"a", "\u597d".encode()]
    assert (state.id, state.ignored, state.options) == (None, "", {})


def test_what_is_not_base64_is_refused() -> None:
    with pytest.raises(InvalidTensor, match="'image' is not base64"):
        parse_names({"shape": [1], "data": ["a photo"], "parameters": IN_BASE64})


def test_json_holds_files_as_base64() -> None:
    """Without being asked where an output is no text, and names where asked."""
    form_of = [{"name": "file"}, {"name": "names", "parameters": IN_BASE64}]
    form = parse_names({"shape": [1], "data": ["a"]}, outputs=form_of).state
    large = bytes(range(256)) * 2_000
    outputs = {"file": strings_of([large], (1,)), "names": strings_of([b"a", b"b"], (2,))}
    assert written_size(outputs, form) > LARGE_BYTES
    parsed = json.loads(write_reply(outputs, form, model="m", version=1)[0])["outputs"]
    assert [entry["parameters"] for entry in parsed] == [IN_BASE64] * 2
    assert [base64.b64decode(entry["data"][0]) for entry in parsed] == [large, b"a"]
    form = parse_names({"shape": [1], "data": ["a"]}, parameters={"binary_data_output": True}).state
    assert form.base64 == frozenset()


def test_unknown_parameters_are_named_in_the_reply() -> None:
    """They have no effect; a client can see that from the reply."""
    unknown = {"sequence_id": 5, "colour": {"a": []}, "timeout": 1_000_000, "y": None}
    form = parse(document() | {"parameters": unknown}).state
    reply = json.loads(write_reply({"logits": LOGIT}, form, model="m", version=1)[0])
    assert reply["parameters"] == {"ignored_parameters": "colour, sequence_id"}
    many = {f"{number:02}" + "x" * 10_000: 1 for number in range(100)}
    names = parse(document() | {"parameters": many}).state.ignored.split(", ")
    assert [len(name) for name in names] == [MAX_IGNORED] * MAX_IGNORED


def test_more_strings_than_bytes_are_refused_unmade() -> None:
    """Four bytes say how long each is, so that a shape alone makes no list."""
    with pytest.raises(InvalidTensor, match="more than the 8 received bytes"):
        parse_names({"shape": [2**39], "parameters": {"binary_data_size": 8}}, bytes(8))


@pytest.mark.parametrize(
    ("array", "count", "batched", "expected"),
    [
        (
            np.array([[0.5, 2, 1], [3, -1, 0]], np.float32),
            2,
            True,
            [[b"2.000000:1:b", b"1.000000:2"], [b"3.000000:0:a", b"0.000000:2"]],
        ),
        (np.array([[1, 7]], np.int64), 9, True, [[b"7:1:b", b"1:0:a"]]),
        (np.array([4, 5, 5], np.int32), 2, False, [b"5:1:b", b"5:2"]),
    ],
    ids=["floats", "more than there are", "no batch"],
)
def test_classes_are_the_largest_values(
    array: Any, count: int, batched: bool, expected: list[Any]
) -> None:
    """`value:index:label` as Triton writes them; of equal values the first stays first."""
    assert expected == classified(array, count, ["a", "b"], batched=batched).tolist()


def form_of(*outputs: str, binary: bool = False) -> ReplyForm:
    """These outputs, all raw or none."""
    return ReplyForm(outputs=outputs, binary=frozenset(outputs if binary else ()), id="7")


@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
@pytest.mark.parametrize(("datatype", "dtype"), DATATYPES.items(), ids=DATATYPES.keys())
@settings(max_examples=20)
@given(st.data())
def test_what_is_written_is_read_back(
    datatype: str, dtype: str, binary: bool, data: st.DataObject
) -> None:
    shapes = hnp.array_shapes(min_dims=1, max_dims=3, max_side=4)
    finite = {"allow_nan": False, "allow_infinity": False} if "float" in dtype else None
    if dtype == STRINGS:
        shape = data.draw(shapes)
        items = st.binary(max_size=9) if binary else st.text(max_size=5).map(str.encode)
        count = math.prod(shape)
        array = strings_of(data.draw(st.lists(items, min_size=count, max_size=count)), shape)
    else:
        array = data.draw(hnp.arrays(dtype, shapes, elements=finite))
    spec = TensorSpec("x", dtype, (-1,) * array.ndim)
    body, length = write_reply({"x": array}, form_of("x", binary=binary), model="m", version=1)
    header, raw = (body, b"") if length is None else (body[:length], body[length:])
    written = json.loads(header)
    assert written["id"] == "7"
    [entry] = written["outputs"]
    assert entry["datatype"] == datatype
    if binary:
        entry["parameters"] = {"binary_data_size": entry["parameters"]["binary_data_size"]}
    back = json.dumps({"inputs": [entry]}).encode()
    parsed = read(back + raw, len(back) if raw else None, spec)
    np.testing.assert_array_equal(parsed.inputs["x"], array)


def test_outputs_and_their_form_are_the_clients_choice() -> None:
    assert parse(document()).state.outputs == ("logits",)
    assert parse(document()).state.binary == frozenset()
    assert parse(document() | {"parameters": {"binary_data_output": True}}).state.binary == {
        "logits"
    }
    both = wanting(binary_data=False) | {"parameters": {"binary_data_output": True}}
    assert parse(both).state.binary == frozenset()


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_a_reply_written_in_parts_is_one_list(more: int) -> None:
    numbers = np.arange(2 * PART_NUMBERS + more, dtype=np.int32)
    outputs = {"x": numbers, "y": np.zeros((0, 2), np.float32)}
    body, length = write_reply(outputs, form_of("x", "y"), model="m", version=1)
    assert length is None
    parsed = {entry["name"]: entry for entry in json.loads(body)["outputs"]}
    assert parsed["x"]["data"] == numbers.tolist()
    assert (parsed["y"]["shape"], parsed["y"]["data"]) == ([0, 2], [])


def test_parameters_are_read() -> None:
    """`timeout` in microseconds; 0 is the default."""
    for group in ({"predictor": "fast"}, {"instance_group": "fast"}):
        parameters = group | {"priority": 1, "timeout": 250_000}
        parsed = parse(document() | {"parameters": parameters})
        assert (parsed.group, parsed.priority, parsed.timeout) == ("fast", 1, 0.25)
    with pytest.raises(InvalidParameter, match="different values"):
        parse(document() | {"parameters": {"predictor": "fast", "instance_group": "slow"}})
    parsed = parse(document() | {"parameters": {"timeout": 0}})
    assert (parsed.group, parsed.priority, parsed.timeout) == (None, 0, 10.0)


def test_a_large_body_of_the_default_group_holds_a_place() -> None:
    """For as long as its deadline may be; what stands behind the JSON names no group."""
    header = json.dumps(document()).encode()
    large, other = (
        header + name + bytes(LARGE_BYTES) for name in (b'"predictor"', b'"instance_group"')
    )
    for body, json_bytes, seconds in (
        (large, len(header), 30),
        (large, len(large), None),
        (other, len(header), 30),
        (other, len(other), None),
        (header, len(header), None),
    ):
        assert place_timeout(len(body), may_name_group(body, json_bytes), Settings()) == seconds
