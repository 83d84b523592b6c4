"""Sound bytes, with which a fuzzer begins."""

import json
import struct
from pathlib import Path
from typing import Any

from tests.tasks.codecs import heic_samples
from tests.tasks.codecs import pictures as drawn

ROOT = Path(__file__).parents[2]
HOST = b"Host: localhost\r\n"


def requests() -> list[bytes]:
    live = b"GET /v2/health/live HTTP/1.1\r\n" + HOST
    upload = b"POST /upload?size=1 HTTP/1.1\r\n" + HOST
    echo = b'{"text": "a", "top_k": 2}'
    form = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nx\r\n--b--\r\n'
    typed = b"Content-Type: multipart/form-data; boundary=b\r\n"
    infer = json.dumps(
        {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}]}
    ).encode()
    return [
        live + b"\r\n",
        live + b"\r\n" + live + b"Connection: close\r\n\r\n",
        live.replace(b"GET", b"HEAD") + b"X-Request-ID: abc\r\n\r\n",
        live.replace(b"1.1", b"1.0") + b"\r\n",
        live + b"Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        b"POST /sentiment HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\n"
        + b"Content-Length: %d\r\n\r\n" % len(echo) + echo,
        upload + typed + b"Content-Length: %d\r\n\r\n" % len(form) + form,
        upload + typed + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (
            len(form),
            form,
        ),
        upload + b"Content-Type: image/png\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc",
        upload + b"Content-Encoding: gzip\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"POST /v2/models/m1/infer HTTP/1.1\r\n" + HOST
        + b"Inference-Header-Content-Length: 3\r\nContent-Length: %d\r\n\r\n" % len(infer) + infer,
        b"OPTIONS * HTTP/1.1\r\n" + HOST
        + b"Origin: http://a\r\nSec-Fetch-Site: cross-site\r\n\r\n",
        b"GET http://localhost/info?a=%41#b HTTP/1.1\r\n" + HOST
        + b"Authorization: Bearer x\r\n\r\n",
    ]  # fmt: skip


def forms() -> list[bytes]:
    file = b'Content-Disposition: form-data; name="file"; filename="a.png"\r\n'
    field = b'--b\r\nContent-Disposition: form-data; name="size"\r\n\r\n8\r\n'
    end = b"\r\n--b--\r\n"
    return [
        b"boundary=b\n--b\r\n" + file + b"Content-Type: image/png\r\n\r\nabc" + end,
        b'boundary="b"; charset=latin-1\n' + field + b"--b\r\n" + file + b"\r\nabc" + end,
        b"boundary=b\n--b\r\n" + file.replace(b'"file"', b'"bg_image"') + b"\r\n\r\n" + field + end,
        b"boundary=b; charset=punycode\n" + field + end,
        b"boundary=b\n--b\r\nContent-Disposition: form-data; name*=utf-8''f%C3%A9\r\n\r\n1" + end,
    ]


def tensor_requests() -> list[bytes]:
    def tensor(dtype: str, name: str, **more: Any) -> dict[str, Any]:
        return {"name": name, "datatype": dtype, "shape": [1, 2], **more}

    raw = {"binary_data_size": 8}
    documents: list[tuple[dict[str, Any], bytes]] = [
        ({"inputs": [tensor("FP32", "float32", data=[[1.5, -2]])], "id": "a"}, b""),
        ({"inputs": [tensor("FP16", "float16", data=[1, 1e9])]}, b""),
        ({"inputs": [tensor("INT8", "int8", data=[1, 300]), tensor("BOOL", "bool", data=[])]}, b""),
        ({"inputs": [tensor("BYTES", "object", data=["a", "\ud83d\ude00"])]}, b""),
        ({"inputs": [tensor("FP32", "float32", parameters=raw)]}, bytes(8)),
        ({"inputs": [tensor("BOOL", "bool", parameters={"binary_data_size": 2})]}, b"\1\0"),
        (
            {"inputs": [tensor("BYTES", "object", parameters={"binary_data_size": 9})]},
            b"\1\0\0\0a\0\0\0\0",
        ),
        (
            {
                "inputs": [tensor("UINT8", "uint8", data=[1, 2])],
                "outputs": [
                    {"name": "scores", "parameters": {"classification": 2}},
                    {"name": "halves", "parameters": {"binary_data": True}},
                ],
                "parameters": {"timeout": 5, "priority": 1, "predictor": "one"},
            },
            b"",
        ),
    ]
    return [
        json.dumps(document).encode() + (b"\0" + raw if raw else b"") for document, raw in documents
    ]


def files() -> list[bytes]:
    """A manifest that is served, and what a config.toml can say, in small."""
    return [
        (ROOT / "model_repo" / "mnist" / "1" / "manifest.json").read_bytes(),
        b'pipeline = "segment"\ndefault = true\ndefault_group = "auto"\n'
        b'[[instance_group]]\nname = "a"\nbackend = "b"\ncount = "cores"\nthreads = 2\n'
        b'[[instance_group]]\nname = "c"\nbackend = "b"\nbase = "a"\nstart = "on_demand"\n'
        b"budget = { mean_difference = 0.1, agreement = 1.0 }\n[instance_group.options]\nx = 1\n",
        b"[dynamic_batching]\nmax_batch_size = 8\nmax_queue_delay_ms = 0.5\n"
        b"[[warmup]]\nshapes = { image = [1, 784] }\n[parameters]\nlabels = ['a', \"b\"]\n",
        b'[version_policy]\nkind = "specific"\nversions = [1, 2]\n',
    ]


def answers() -> list[bytes]:
    messages: list[object] = [
        {"meta": {"a": 1}, "arrays": [["x", "<f4", [0, 3], 0]], "seconds": 0.5},
        {"meta": {}, "arrays": [["x", "|u1", [2, 2], 64], ["y", "<i8", [1], 128]], "seconds": 1},
        {"error": {"kind": "ImageUnreadable", "message": "no", "limit": 3, "received": 4}},
        {"error": {"errno": 24}},
    ]
    return [json.dumps(message).encode() for message in messages]


def pictures() -> list[bytes]:
    plain = [drawn.encoded(drawn.corners(), kind) for kind in drawn.FORMATS]
    frames = [drawn.corners(16, 16)] * 2
    return [
        *plain,
        drawn.encoded(frames[0], "AVIF", save_all=True, append_images=frames[1:]),
        drawn.encoded(frames[0].convert("RGBA"), "AVIF"),
        drawn.encoded(drawn.corners(), "TIFF", compression="jpeg", tiffinfo={278: 8}),
        heic_samples.ALPHA,
        drawn.jpeg_of_empty_scans(16, 16, scans=9),
        drawn.jpeg_of_empty_scans(64, 64, scans=5, components=3, factors=0x22),
        drawn.padded_png(drawn.chunk(b"iCCP", b"a\0\0") + drawn.chunk(b"tEXt", b"a\0b")),
        b"RIFF" + struct.pack("<I", 30) + b"WEBPVP8X" + bytes(18),
    ]
