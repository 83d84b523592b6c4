"""The demo page in a real browser: a picture, a sentence, and nothing from other hosts."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, sync_playwright

from tests.codecs import pictures
from tests.e2e.process import ROOT, Server, running

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
def page(served: Server, complaints: list[str]) -> Iterator[Page]:
    if CHROMIUM is None:
        pytest.skip("NOT TESTED: the demo page, for want of chromium on this machine")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ALONE))
        page = browser.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("requestfailed", lambda request: complaints.append(request.url))
        page.goto(f"{served.url}/")
        yield page
        browser.close()


def test_a_chosen_picture_is_cut_out(page: Page, complaints: list[str], tmp_path: Path) -> None:
    """The result appears at the picture's own size, with the stage times beside it."""
    photo = tmp_path / "photo.jpg"
    photo.write_bytes(pictures.encoded(pictures.photo(), "JPEG"))
    page.set_input_files("#file", photo)
    page.wait_for_selector("#after:not([hidden])")
    page.wait_for_selector("#segment-timing .key")
    sizes = page.evaluate(
        "['#before', '#after'].map(id => {const i = document.querySelector(id);"
        " return [i.naturalWidth, i.naturalHeight]})"
    )
    assert sizes[0] == sizes[1] != [0, 0]
    assert "infer" in page.inner_text("#segment-timing")
    assert complaints == []


def test_a_sentence_gets_six_bars(page: Page, complaints: list[str]) -> None:
    """Best first, in percent, and the model that said so."""
    page.fill("#text", "今天收到了录取通知书，太开心了！")
    page.click("button[type=submit]")
    page.wait_for_selector("#scores li")
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
    page.click("button[type=submit]")
    page.wait_for_selector("#scores li")
    assert page.title() == "Paddlepool"
