"""Body caps to the byte, the memory of all bodies, compressed bodies, keys and origins."""

import asyncio
import gzip
import tracemalloc
from collections.abc import AsyncIterator

import pytest
from fastapi import APIRouter, Request, Response

from paddlepool.service.api.middleware.compression import PIECE
from paddlepool.service.api.v2.tensors import BINARY_HEADER
from paddlepool.settings.server import Settings
from tests.service.api.fakes import Client, assert_problem, make_app, make_settings, product_client

JSON = {"Content-Type": "application/json"}
PACKED = gzip.compress(b"text")
BIG = 4_000_000


def reading_router() -> APIRouter:
    """Answers with the size of the body; /own declares its own cap."""
    router = APIRouter()

    async def size(request: Request) -> int:
        return len(await request.body())

    router.add_api_route("/other", size, methods=["POST"])
    router.add_api_route("/own", size, methods=["POST"], max_body_size=100)
    router.add_api_route("/big", size, methods=["POST"], max_body_size=BIG)
    return router


async def streamed(size: int) -> AsyncIterator[bytes]:
    """A body without a length."""
    for start in range(0, size, 60_000):
        yield b"x" * min(60_000, size - start)


CAPS = {"/other": 16 * 1024, "/own": 100}


@pytest.mark.parametrize("path", CAPS)
@pytest.mark.parametrize("announced", [True, False], ids=["length", "chunked"])
def test_a_body_may_have_exactly_its_cap(path: str, announced: bool) -> None:
    client, cap = Client(make_app(reading_router())), CAPS[path]
    for size in (cap - 1, cap):
        body = b"x" * size if announced else streamed(size)
        response = client.post(path, content=body)
        assert (response.status_code, response.json()) == (200, size)
    body = b"x" * (cap + 1) if announced else streamed(cap + 1)
    problem = assert_problem(client.post(path, content=body), 413, "file_too_large")
    assert problem["limit"] == cap
    assert problem["received"] == (cap + 1 if announced else f"more than {cap}")


def test_caps_are_settings() -> None:
    settings = make_settings(segment_max_bytes=1_000, sentiment_max_bytes=10)
    client = product_client(settings)
    assert_problem(client.post("/segment", content=b"x" * 1_001), 413, "file_too_large")
    assert_problem(client.post("/segment", files={"file": b"x" * 1_000}), 413, "file_too_large")
    assert_problem(client.post("/sentiment", json={"text": "12345"}), 413, "file_too_large")


@pytest.mark.parametrize(
    "codings", [("br",), ("gzip, identity",), ("gzip", "gzip"), ("x",), ("identity", "gzip")]
)
def test_an_encoding_that_is_not_known_is_415(client: Client, codings: tuple[str, ...]) -> None:
    """Nothing is inflated, whatever it may hold; two headers are one list."""
    headers = [*JSON.items(), *(("Content-Encoding", coding) for coding in codings)]
    response = client.post("/sentiment", content=b"\x1f\x8b", headers=headers)
    assert_problem(response, 415, "unsupported_encoding")
    plain = {"Content-Encoding": "identity"}
    assert client.post("/sentiment", json={"text": "x"}, headers=plain).status_code == 200


def test_the_cap_of_a_body_in_gzip_is_for_what_it_unpacks_to() -> None:
    """A bomb ends at the cap, and memory never holds more than a piece beyond it."""
    client, cap = Client(make_app(reading_router())), CAPS["/other"]
    headers = {"Content-Encoding": "GZIP"}
    for path, size in (("/other", 0), ("/other", cap), ("/big", 3 * PIECE)):
        response = client.post(path, content=gzip.compress(bytes(size)), headers=headers)
        assert (response.status_code, response.json()) == (200, size)
    bomb = gzip.compress(bytes(100_000_000), 1)
    tracemalloc.start()
    response = client.post("/big", content=bomb, headers=headers)
    assert tracemalloc.get_traced_memory()[1] < 3 * BIG
    tracemalloc.stop()
    problem = assert_problem(response, 413, "file_too_large")
    assert problem["received"] == f"more than {BIG}"


@pytest.mark.parametrize(
    "body",
    [b"", b"x", PACKED[:-1], PACKED + b"x", PACKED + PACKED],
    ids=["empty", "other", "cut off", "longer", "two"],
)
def test_a_body_that_is_not_one_gzip_stream_is_415(body: bytes) -> None:
    client = Client(make_app(reading_router()))
    response = client.post("/other", content=body, headers={"Content-Encoding": "gzip"})
    assert "gzip" in assert_problem(response, 415, "unsupported_encoding")["detail"]


@pytest.fixture(scope="module")
def packing() -> Client:
    """One application, because its document takes a second to make."""
    router = APIRouter()
    picture = Response(bytes(9_999), media_type="image/png")
    router.add_api_route("/picture", lambda: picture, response_class=Response)
    return Client(make_app(router))


@pytest.mark.parametrize(
    ("path", "accepted", "packed"),
    [
        ("/openapi.json", "br, gzip", True),
        ("/openapi.json", "identity", False),
        ("/openapi.json", "br, gzip; q=0.0", False),
        ("/openapi.json", "GZIP;q=0.5, br;q=0", True),
        ("/metrics", "gzip", True),
        ("/v2", "gzip", False),
        ("/picture", "gzip", False),
    ],
)
def test_a_reply_is_compressed_where_it_is_worth_it(
    packing: Client, path: str, accepted: str, packed: bool
) -> None:
    response = packing.get(path, headers={"Accept-Encoding": accepted})
    assert response.status_code == 200
    assert response.headers.get("content-encoding") == ("gzip" if packed else None)
    length = int(response.headers["content-length"])
    assert length < len(response.content) / 2 if packed else length == len(response.content)


KEYED = Settings(api_keys=("first", "secönd"), admin_key="admin")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer first"},
        {"Authorization": "bearer first"},
        {"X-Api-Key": "first"},
        {"X-Api-Key": "secönd".encode()},
    ],
    ids=["bearer", "lower-case", "x-api-key", "second"],
)
def test_either_key_opens_in_either_header(headers: dict[str, str]) -> None:
    """So that a key can be replaced without a gap."""
    client = Client(make_app(settings=KEYED))
    assert client.get("/info", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer firs"},
        {"Authorization": "Bearer firstt"},
        {"Authorization": "Basic first"},
        {"Authorization": "first"},
        {"X-Api-Key": ""},
        {"X-Api-Key": "admin"},
        {"X-Api-Key": b"\xff"},
    ],
)
def test_nothing_else_opens(headers: dict[str, str]) -> None:
    client = Client(make_app(settings=KEYED))
    for path in ("/info", "/nothing"):
        response = client.get(path, headers=headers)
        assert_problem(response, 401, "unauthorized")
        assert response.headers["www-authenticate"].startswith("Bearer")
        assert "firs" not in response.text
    assert client.get("/v2", headers=headers).status_code == 401


def test_health_and_metrics_are_open_unless_set() -> None:
    """A probe has no key; what is the same everywhere needs none."""
    client = Client(make_app(settings=KEYED))
    always = ["/", "/demo/demo.js", "/demo/demo.css", "/console/icon.svg"]
    always += ["/docs", "/docs/docs.js", "/openapi.json"]
    health = ["/v2/health/live", "/v2/health/ready", "/v2/models/m1/ready"]
    for path in (*always, *health, "/metrics"):
        assert client.get(path).status_code == 200, path
    assert client.get("/v2/models/ready").status_code == 401  # a model's description
    closed = KEYED.model_copy(update={"health_needs_key": True, "metrics_needs_key": True})
    client = Client(make_app(settings=closed))
    for path in (*health, "/metrics"):
        assert client.get(path).status_code == 401, path
    for path in always:
        assert client.get(path).status_code == 200, path


def test_wrong_admin_keys_have_a_quota_of_their_own() -> None:
    client = Client(make_app(settings=KEYED))
    path, wrong = "/v2/repository/index", {"X-Api-Key": "first"}
    assert {client.post(path).status_code for _ in range(12)} == {401}  # they guess nothing
    statuses = [client.post(path, headers=wrong).status_code for _ in range(12)]
    assert statuses == [401] * 10 + [429] * 2
    refused = client.post(path, headers={"X-Api-Key": "admin"})
    assert refused.status_code == 429
    assert 1 <= int(refused.headers["retry-after"]) <= 6
    assert client.get("/info", headers=wrong).status_code == 200
    others = Client(client.app, peer="192.0.2.1")
    assert others.post(path).status_code == 401
    assert others.post(path, headers={"X-Api-Key": "admin"}).status_code not in (401, 429)


def test_listed_origins_are_allowed_and_no_other() -> None:
    """Also on errors, so that a page can read why."""
    client = Client(make_app(settings=Settings(cors_origins=("https://a.example",))))
    allowed, other = {"Origin": "https://a.example"}, {"Origin": "https://b.example"}
    for path in ("/info", "/nothing"):
        response = client.get(path, headers=allowed)
        assert response.headers["access-control-allow-origin"] == "https://a.example"
        assert "access-control-allow-credentials" not in response.headers
        assert "access-control-allow-origin" not in client.get(path, headers=other).headers
    default = Client(make_app()).get("/info", headers=other)
    assert "access-control-allow-origin" not in default.headers
    accepted = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": f"x-api-key, {BINARY_HEADER.lower()}",
    }
    assert client.send("OPTIONS", "/sentiment", headers=allowed | accepted).status_code == 200
    assert client.send("OPTIONS", "/sentiment", headers=other | accepted).status_code == 400


async def test_a_body_that_finds_no_room_gets_503() -> None:
    app = make_app(reading_router(), settings=make_settings(body_memory_bytes=1_000))
    held, rest = asyncio.Event(), asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield b"x" * 600
        held.set()
        await rest.wait()
        yield b"x" * 400

    async def in_parts() -> AsyncIterator[bytes]:
        for _ in range(5):
            yield b"x" * 100

    async with Client(app).session() as client:
        waiting = asyncio.create_task(client.post("/big", content=slow()))
        await held.wait()
        refused = await client.post("/big", content=in_parts())
        assert (await client.post("/big", content=b"x" * 400)).json() == 400
        rest.set()
        assert (await asyncio.wait_for(waiting, 20)).json() == 1_000
    assert_problem(refused, 503, "overloaded")
    assert refused.headers["retry-after"] == "1"


def test_a_body_larger_than_the_budget_is_413() -> None:
    """It could never be taken; 503 would have it sent again and again."""
    client = Client(make_app(reading_router(), settings=make_settings(body_memory_bytes=1_000)))
    response = client.post("/big", content=b"x" * 1_001)
    assert assert_problem(response, 413, "file_too_large")["limit"] == 1_000
