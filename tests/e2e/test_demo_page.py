"""The demo page in a real browser: a picture, a sentence, and nothing from other hosts."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, sync_playwright

from tests.codecs import pictures
from tests.e2e.process import PATIENCE, ROOT, Server, running

pytestmark = [pytest.mark.e2e, pytest.mark.paddle]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ALONE = (
    "--no-sandbox",  # the tests may run as root, in a container
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

KEY = "schlüssel-钥匙"
READY = "#server-state:text-is('no models')"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(ROOT / "model_repo", tmp_path_factory.mktemp("demo")) as server:
        server.wait_loaded()
        yield server


@pytest.fixture
def complaints() -> list[str]:
    """What the browser's console and network had to say against the page."""
    return []


@pytest.fixture
def blank() -> Iterator[Page]:
    """A page that shows nothing yet."""
    if CHROMIUM is None:
        pytest.skip("NOT TESTED: the demo page, for want of chromium on this machine")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ALONE))
        page = browser.new_page()
        page.set_default_timeout(1000 * PATIENCE)
        yield page
        browser.close()


@pytest.fixture
def page(blank: Page, served: Server, complaints: list[str]) -> Page:
    blank.on("console", lambda message: complaints.append(message.text))
    blank.on("pageerror", lambda error: complaints.append(str(error)))
    blank.on("requestfailed", lambda request: complaints.append(request.url))
    blank.goto(f"{served.url}/")
    return blank


def test_a_chosen_picture_is_cut_out(page: Page, complaints: list[str], tmp_path: Path) -> None:
    """The result appears at the picture's own size, with the stage times beside it."""
    photo = tmp_path / "photo.jpg"
    photo.write_bytes(pictures.encoded(pictures.photo(), "JPEG"))
    page.set_input_files("#file", photo)
    page.wait_for_selector("#after:not([hidden])")
    page.wait_for_selector("#segment-timing .key")
    # Not wait_for_function(): that asks again by eval, which the page's own policy forbids.
    page.evaluate(
        "Promise.all(['#before', '#after'].map(id => document.querySelector(id).decode()))"
    )
    sizes = page.evaluate(
        "['#before', '#after'].map(id => {const i = document.querySelector(id);"
        " return [i.naturalWidth, i.naturalHeight]})"
    )
    assert sizes[0] == sizes[1] != [0, 0]
    assert "infer" in page.inner_text("#segment-timing")
    assert complaints == []


def test_a_sentence_gets_six_bars(page: Page, complaints: list[str]) -> None:
    """Best first, in percent, and the model that said so; nobody asks for a key."""
    assert page.is_hidden("#key-form")
    page.fill("#text", "今天收到了录取通知书，太开心了！")
    page.click("#sentiment button")
    page.wait_for_selector("#scores li")
    page.wait_for_selector("#sentiment-timing .key")
    shares = [
        float(text.removesuffix(" %")) for text in page.locator("#scores b").all_inner_texts()
    ]
    assert len(shares) == 6
    assert shares == sorted(shares, reverse=True)
    assert "emotion@" in page.inner_text("#sentiment-timing")
    assert complaints == []


def test_an_error_is_shown_in_the_servers_words(page: Page, tmp_path: Path) -> None:
    """A file that is no picture: the page says what the server said, and shows no result."""
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"\x89PNG\r\n\x1a\nnot a picture")
    page.set_input_files("#file", broken)
    page.wait_for_selector("#segment-error:not(:empty)")
    assert page.is_hidden("#after")


def test_a_text_is_never_read_as_markup(page: Page) -> None:
    """What a person types cannot become part of the page."""
    page.fill("#text", "<img src=x onerror=document.title='pwned'>")
    page.click("#sentiment button")
    page.wait_for_selector("#scores li")
    assert page.title() == "Paddlepool"


def test_a_key_is_asked_for_where_the_server_wants_one(blank: Page, tmp_path: Path) -> None:
    """Again when it is wrong, and no more once it is right, also after the page is loaded anew."""
    empty = tmp_path / "models"
    empty.mkdir()
    with running(empty, tmp_path, settings={"api_keys": KEY}) as server:
        server.wait_loaded()
        blank.goto(f"{server.url}/")
        for offered in ("wrong", KEY):
            blank.wait_for_selector("#key-form:not([hidden])")
            blank.fill("#key", offered)
            blank.press("#key", "Enter")
        blank.wait_for_selector(READY)
        blank.reload()
        blank.wait_for_selector(READY)
        assert blank.is_hidden("#key-form")
        blank.click("#sentiment button")
        blank.wait_for_selector("#sentiment-error:not(:empty)")
        assert "no model" in blank.inner_text("#sentiment-error")
