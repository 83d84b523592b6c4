"""The pages and their files: local, packed, asked for anew and sent again only where changed."""

import gzip
import io
import re

import pytest
from PIL import Image

from paddlepool.service.api.pages import FOLDERS, MEDIA_TYPES, PAGES, POLICY, STATIC
from tests.service.api.fakes import Client, assert_problem


@pytest.mark.parametrize("address", PAGES.values())
def test_a_page_has_the_header_and_the_strict_policy(client: Client, address: str) -> None:
    """The one header of all pages stands in it, and nothing may come from elsewhere."""
    response = client.get(address)
    assert response.headers["Content-Security-Policy"] == POLICY
    assert "unsafe" not in POLICY
    assert 'id="language"' in response.text
    assert "<!-- header -->" not in response.text
    assert not re.findall(r"(?:src|href)=\"(?!/|#)", response.text)
    assert not re.findall(r"<script(?![^>]*\bsrc=)|\bon\w+=|\bstyle=", response.text)


def test_every_file_is_served_as_what_it_is(client: Client) -> None:
    """With its type; packed for who can unpack it, and as it is for who cannot."""
    for folder in FOLDERS:
        files = [file for file in (STATIC / folder).iterdir() if file.suffix in MEDIA_TYPES]
        served = [file for file in files if file.name != "index.html"]
        assert served, folder
        for file in served:
            address = f"/{folder}/{file.name}"
            response = client.get(address, headers={"Accept-Encoding": "identity"})
            assert response.headers["Content-Type"].startswith(MEDIA_TYPES[file.suffix]), address
            assert response.content == file.read_bytes(), address
    response = client.get("/comparison/uplot.iife.min.js", headers={"Accept-Encoding": "identity"})
    packed = (STATIC / "comparison" / "uplot.iife.min.js.gz").read_bytes()
    assert response.content == gzip.decompress(packed)
    assert response.headers["Content-Type"].startswith("text/javascript")
    response = client.get("/console/console.css")
    assert response.headers["Content-Encoding"] == "gzip"
    assert response.content == (STATIC / "console" / "console.css").read_bytes()


def test_a_browser_finds_the_icon_where_it_looks_for_one(client: Client) -> None:
    """Three sizes, for tabs and bookmarks of addresses that are no page."""
    response = client.get("/favicon.ico")
    assert response.headers["Content-Type"] == "image/x-icon"
    with Image.open(io.BytesIO(response.content)) as icon:
        assert icon.info["sizes"] == {(16, 16), (32, 32), (48, 48)}


def test_a_file_that_has_not_changed_is_not_sent_again(client: Client) -> None:
    """304 without a body for its tag, the file for another."""
    first = client.get("/demo/demo.js")
    assert first.headers["Cache-Control"] == "no-cache"
    again = client.get("/demo/demo.js", headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status_code, again.content) == (304, b"")
    other = client.get("/demo/demo.js", headers={"If-None-Match": 'W/"other"'})
    assert (other.status_code, other.content) == (200, first.content)


@pytest.mark.parametrize(
    "path", ["/demo/index.html", "/samples/SOURCES.md", "/console/..%2fdocs.js"]
)
def test_nothing_else_is_served(client: Client, path: str) -> None:
    assert_problem(client.get(path), 404, "not_found")
