"""Names that the server answers to, and pages of other sites."""

import re

import pytest
from pydantic import ValidationError

from paddlepool.settings.server import Settings
from tests.service.api.fakes import Client, assert_problem, make_app

JSON = {"text": "x"}


def status(client: Client, host: str | None, path: str = "/info") -> int:
    headers = {} if host is None else {"Host": host}
    return client.get(path, headers=headers).status_code


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:8000",
        "localhost.",
        "127.0.0.1",
        "127.0.0.1:80",
        "[::1]",
        "[::1]:8000",
    ],
)
def test_a_server_on_loopback_answers_to_loopback_names(client: Client, host: str) -> None:
    """With a port or without, in any case, as IPv6, too."""
    assert status(client, host) == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example",
     "evil-localhost", "10.0.0.1", "[::2]", ":8000", "[", "a@localhost", "\xff",
     "", "localhost:evil", "[::1]evil", "[::1]:x", "localhost:80:80", "::1"],
)  # fmt: skip
def test_and_to_no_other(client: Client, host: str) -> None:
    """Else a page could have its own name lead here and read what the server says."""
    raw = {"Host": host.encode("latin-1")}
    problem = assert_problem(client.get("/info", headers=raw), 400, "host_not_allowed")
    assert "evil" not in problem["detail"]
    assert_problem(client.post("/sentiment", json=JSON, headers=raw), 400, "host_not_allowed")


def test_probes_may_use_any_name(client: Client) -> None:
    assert status(client, "10.1.2.3:8000", "/v2/health/live") == 200
    assert status(client, "10.1.2.3:8000", "/v2/health/ready") == 200
    assert status(client, "10.1.2.3:8000", "/v2/models/m1/ready") == 200


def test_what_is_refused_for_its_name_is_counted_without_its_path(client: Client) -> None:
    elsewhere = {"Host": "evil.example"}
    for method in ("GET", "PUT", "DELETE", "PROPFIND"):
        assert client.send(method, "/v2/models/m1", headers=elsewhere).status_code == 400
        page = {"Sec-Fetch-Site": "cross-site"}
        assert client.send(method, "/info", headers=page).status_code in (200, 403)
    text = client.services.metrics.render()[0].decode()
    assert set(re.findall(r'route="([^"]*)"', text)) == {"unmatched", "/info"}


def test_a_server_that_others_reach_answers_to_every_name_unless_set() -> None:
    """It cannot know what they call it."""
    assert status(Client(make_app(settings=Settings(host="192.0.2.1"))), "any.example") == 200
    listed = Settings(host="192.0.2.1", allowed_hosts=("api.example", "*.other.example", "[::2]"))
    client = Client(make_app(settings=listed))
    for host in (
        "api.example",
        "api.example:1",
        "a.other.example",
        "A.B.other.example",
        "[::2]:80",
    ):
        assert status(client, host) == 200, host
    for host in ("other.example", "localhost", "xapi.example", "aother.example"):
        assert status(client, host) == 400, host
    loopback = Client(make_app(settings=Settings(host="127.0.0.2")))
    assert [status(loopback, host) for host in ("127.0.0.2:8000", "evil.example")] == [200, 400]


@pytest.mark.parametrize("name", ["http://a.example", "a.example:80", "a/b", "*x", "a.*", ""])
def test_what_is_no_name_is_not_a_setting(name: str) -> None:
    """Nor would it ever match."""
    with pytest.raises(ValidationError):
        Settings(allowed_hosts=(name,))


@pytest.mark.parametrize("site", ["cross-site", "same-site", "made-up"])
def test_a_post_of_another_sites_page_is_403(client: Client, site: str) -> None:
    """A form or a text needs no permission of ours to be sent."""
    headers = {"Sec-Fetch-Site": site, "Origin": "https://evil.example"}
    for path in ("/sentiment", "/segment", "/v2/models/m1/infer", "/v2/repository/index"):
        response = client.post(
            path, content=b"{}", headers=headers | {"Content-Type": "text/plain"}
        )
        assert response.status_code == 403, path
    assert_problem(client.post("/sentiment", json=JSON, headers=headers), 403, "cross_site")
    assert client.get("/info", headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        ("http://localhost", 200),
        ("http://LOCALHOST", 200),
        ("http://localhost:1234", 403),
        ("http://evil.example", 403),
        ("http://evil.example/localhost", 403),
        ("null", 403),
    ],
)
def test_without_a_word_of_the_site_the_origin_counts(
    client: Client, origin: str, expected: int
) -> None:
    """Browsers send no Sec-Fetch-Site to plain HTTP beyond loopback."""
    headers = {"Host": "localhost", "Origin": origin}
    assert client.post("/sentiment", json=JSON, headers=headers).status_code == expected


def test_pages_of_its_own_and_of_listed_origins_may_post() -> None:
    client = Client(make_app(settings=Settings(cors_origins=("https://a.example",))))
    for site in ("same-origin", "none"):
        own = client.post("/sentiment", json=JSON, headers={"Sec-Fetch-Site": site})
        assert own.status_code == 200
    headers = {"Sec-Fetch-Site": "cross-site", "Origin": "https://a.example"}
    assert client.post("/sentiment", json=JSON, headers=headers).status_code == 200
    other = headers | {"Origin": "https://b.example"}
    assert_problem(client.post("/sentiment", json=JSON, headers=other), 403, "cross_site")
