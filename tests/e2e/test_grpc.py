"""Triton's own gRPC clients, unchanged, against a real server: what they ask for over HTTP, and
the same answers."""

import queue
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.process import PATIENCE, Server, running
from tests.tasks.codecs.pictures import encoded, photo

pytest.importorskip("grpc")

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what is imported beside it
    triton = pytest.importorskip("tritonclient.grpc")

pytestmark = [pytest.mark.e2e, pytest.mark.paddle]
KEY = {"x-api-key": "admin"}
IMAGE = np.linspace(-1, 1, 2 * 3 * 8 * 8, dtype=np.float32).reshape(2, 3, 8, 8)
TEXT = "今天收到了大学的录取通知书，太开心了！"
SERVICE = "inference.GRPCInferenceService"


def address(server: Server) -> str:
    return str(server.wait_logged(event="listening for gRPC")["address"])


@pytest.fixture
def client(full_server: Server) -> Iterator[Any]:
    with triton.InferenceServerClient(address(full_server)) as client:
        yield client


def image(array: np.ndarray = IMAGE) -> Any:
    tensor = triton.InferInput("image", list(array.shape), "FP32")
    tensor.set_data_from_numpy(array)
    return tensor


def strings(name: str, *items: bytes) -> Any:
    tensor = triton.InferInput(name, [len(items)], "BYTES")
    tensor.set_data_from_numpy(np.array(items, object))
    return tensor


def test_what_a_client_asks_first(client: Any, full_server: Server) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("tiny", "1")
    assert not client.is_model_ready("tiny", "2")
    assert not client.is_model_ready("nobody")
    with full_server.client() as http:
        assert client.get_server_metadata(as_json=True) == http.get("/v2").json()
        for name in ("tiny", "segment", "sentiment"):
            over_http = http.get(f"/v2/models/{name}").json()
            metadata = client.get_model_metadata(name)
            assert [(t.name, t.datatype, list(t.shape)) for t in metadata.inputs] == [
                (t["name"], t["datatype"], t["shape"]) for t in over_http["inputs"]
            ]
            assert metadata.platform == over_http["platform"]
            config = client.get_model_config(name).config
            over_http = http.get(f"/v2/models/{name}/config").json()
            assert config.max_batch_size == over_http["max_batch_size"]
            assert config.input[0].dims == over_http["input"][0]["dims"]
    before = client.get_inference_statistics("tiny", "1").model_stats[0].inference_count
    client.infer("tiny", [image()])
    assert client.get_inference_statistics("tiny").model_stats[0].inference_count == before + 2
    assert len(client.get_inference_statistics().model_stats) >= 4


def test_infer(client: Any, tiny_model_repository: Path) -> None:
    outputs = [triton.InferRequestedOutput(name) for name in ("mean", "scores")]
    result = client.infer(
        "tiny",
        [image()],
        model_version="1",
        outputs=outputs,
        request_id="7",
        timeout=5_000_000,
        priority=1,
        client_timeout=PATIENCE,
    )
    assert result.get_response().id == "7"
    assert [output.name for output in result.get_response().outputs] == ["mean", "scores"]
    with np.load(tiny_model_repository / "tiny" / "1" / "selftest.npz") as archive:
        for name in ("mean", "scores"):
            np.testing.assert_allclose(result.as_numpy(name), archive[f"output.{name}"], atol=1e-4)
    best = triton.InferRequestedOutput("scores", class_count=1)
    assert client.infer("tiny", [image()], outputs=[best]).as_numpy("scores").shape == (2, 1)


def test_whole_tasks(client: Any, full_server: Server) -> None:
    picture = encoded(photo(), "PNG")
    result = client.infer("segment", [strings("image", picture)], parameters={"output": "mask"})
    with full_server.client() as http:
        mask = http.post(
            "/segment?output=mask", content=picture, headers={"Content-Type": "image/png"}
        )
        labels = http.post("/sentiment", json={"text": TEXT}).json()
    assert result.as_numpy("image").tolist() == [mask.content]
    result = client.infer("sentiment", [strings("text", TEXT.encode())], parameters={"top_k": 1})
    assert result.as_numpy("labels").tolist() == [[labels[0]["label"].encode()]]
    with grpc.insecure_channel(address(full_server)) as channel:  # strings that are not raw
        stub = triton.service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for model, name, content, shape in (
            ("segment", "image", picture, [1]),
            ("sentiment", "text", TEXT.encode(), [1, 1]),
        ):
            request = triton.service_pb2.ModelInferRequest(model_name=model)
            tensor = request.inputs.add(name=name, datatype="BYTES", shape=shape)
            tensor.contents.bytes_contents.append(content)
            request.parameters["output" if model == "segment" else "shape"].string_param = "mask"
            reply = stub.ModelInfer(request)
            expected = mask.content if model == "segment" else labels[0]["label"].encode()
            length = len(expected).to_bytes(4, "little")
            assert reply.raw_output_contents[0].startswith(length + expected)
    with pytest.raises(triton.InferenceServerException, match="33 texts") as caught:
        client.infer("sentiment", [strings("text", *[b"a"] * 33)])
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
    with pytest.raises(triton.InferenceServerException, match="limit for 'sentiment'") as caught:
        client.infer("sentiment", [strings("text", b"a" * 300_000)])
    assert caught.value.status() == "StatusCode.RESOURCE_EXHAUSTED"


def test_asynchronous_requests_and_streams(client: Any) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    for _ in range(16):
        client.async_infer("tiny", [image()], lambda result, error: answers.put((result, error)))
    assert {answers.get(timeout=PATIENCE)[1] for _ in range(16)} == {None}
    client.start_stream(lambda result, error: answers.put((result, error)))
    client.async_stream_infer("tiny", [image()], request_id="a")
    client.async_stream_infer("nobody", [image()])
    client.async_stream_infer("tiny", [image()], enable_empty_final_response=True)
    first, refused, last = (answers.get(timeout=PATIENCE) for _ in range(3))
    client.stop_stream()
    assert first[0].get_response().id == "a"
    assert "no model" in str(refused[1])
    assert last[0].get_response().parameters["triton_final_response"].bool_param


@pytest.mark.parametrize(
    ("ask", "status", "words"),
    [
        (
            lambda c: c.infer("tiny", [image()], compression_algorithm="gzip"),
            "UNIMPLEMENTED",
            "gzip",
        ),
        (lambda c: c.get_system_shared_memory_status(), "UNIMPLEMENTED", "shared memory"),
        (lambda c: c.load_model("nobody", headers=KEY), "NOT_FOUND", "model"),
    ],
    ids=["gzip", "memory", "nobody"],
)
def test_errors_reach_the_caller(client: Any, ask: Any, status: str, words: str) -> None:
    with pytest.raises(triton.InferenceServerException, match=words) as caught:
        ask(client)
    assert caught.value.status() == f"StatusCode.{status}"
    assert client.is_model_ready("tiny")


def test_model_control(client: Any) -> None:
    def states() -> set[str]:
        index = client.get_model_repository_index(headers=KEY).models
        return {entry.state for entry in index if entry.name == "tiny"}

    assert states() == {"READY"}
    client.unload_model("tiny", headers=KEY)
    assert states() == {"UNAVAILABLE"}
    client.load_model("tiny", headers=KEY)
    assert states() == {"READY"}


def test_health_and_reflection(full_server: Server) -> None:
    with grpc.insecure_channel(address(full_server)) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", SERVICE, "tiny", "segment"):
            reply = health.Check(health_pb2.HealthCheckRequest(service=name), timeout=PATIENCE)
            assert reply.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError) as caught:
            health.Check(health_pb2.HealthCheckRequest(service="nobody"), timeout=PATIENCE)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        described = ProtoReflectionDescriptorDatabase(channel)
        assert {SERVICE, "grpc.health.v1.Health"} <= set(described.get_services())
        file = described.FindFileContainingSymbol(SERVICE)
        assert "ModelInfer" in [method.name for method in file.service[0].method]
    logged = full_server.wait_logged(route="/grpc.health.v1.Health/Check")
    assert logged["method"] == "POST"


def test_who_watches_may_check_the_connection(full_server: Server) -> None:
    """With pings, also while nothing changes: gRPC alone would end the connection after three."""
    pings = {"grpc.keepalive_time_ms": 1_200, "grpc.http2.max_pings_without_data": 0}
    with grpc.insecure_channel(address(full_server), options=list(pings.items())) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        watched = stub.Watch(health_pb2.HealthCheckRequest(), timeout=8.0)
        assert next(watched).status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError) as ended:
            next(watched)
        assert ended.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def test_a_draining_server_says_so_and_serves_on(
    tiny_model_repository: Path, tmp_path: Path
) -> None:
    """Readiness is gone at once and who watches is told; a second signal ends the delay."""
    settings = {"grpc_port": 0, "drain_delay_seconds": 600}
    with running(tiny_model_repository, tmp_path, settings=settings) as server:
        with grpc.insecure_channel(address(server)) as channel:
            watched = health_pb2_grpc.HealthStub(channel).Watch(
                health_pb2.HealthCheckRequest(), timeout=PATIENCE
            )
            assert next(watched).status == health_pb2.HealthCheckResponse.SERVING
            with triton.InferenceServerClient(address(server)) as client:
                server.process.send_signal(signal.SIGTERM)
                assert next(watched).status == health_pb2.HealthCheckResponse.NOT_SERVING
                assert not client.is_server_ready()
                assert client.infer("tiny", [image()]).as_numpy("scores").shape == (2, 2)
        assert server.stop() == 1
