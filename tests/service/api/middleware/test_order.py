"""The order in which a request is rejected, which ARCHITECTURE.md gives."""

from typing import Any

from tests.service.api.fakes import Client, make_app, make_settings

LARGE = b"0" * 20_000_000


def code(client: Client, path: str, content: bytes, **headers: str) -> Any:
    kind = {"Content-Type": "application/json"}
    return client.post(path, content=content, headers=kind | headers).json()["code"]


def test_the_first_of_several_faults_is_reported() -> None:
    """Host, key, quota, declared length, path and method, content."""
    strict = make_settings(
        allowed_hosts=("localhost",), api_keys=("one", "two"), quota_requests_per_minute=1
    )
    client = Client(make_app(settings=strict))
    assert code(client, "/info", LARGE, Host="other.example") == "host_not_allowed"
    assert code(client, "/info", LARGE) == "unauthorized"
    one = {"X-Api-Key": "one"}
    assert code(client, "/info", LARGE, **one) == "file_too_large"
    assert code(client, "/info", LARGE, **one) == "quota_exceeded"
    assert code(client, "/nowhere", b"{", **{"X-Api-Key": "two"}) == "not_found"
    open_client = Client(make_app())
    assert code(open_client, "/info", b"{") == "method_not_allowed"
    assert code(open_client, "/sentiment", b"{") == "invalid_json"
