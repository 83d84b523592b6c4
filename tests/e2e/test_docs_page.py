"""/docs in a real browser: every choice it offers on the two tasks, sent as it stands."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.e2e.browser import PHONE, opened, violations
from tests.e2e.conftest import KEY
from tests.e2e.process import ROOT, Server
from tests.tasks.codecs import pictures

pytestmark = [pytest.mark.e2e, pytest.mark.paddle]

PHOTO = ROOT / "docs" / "images" / "astronaut.jpg"
SEGMENT, SENTIMENT = "#operations-segment-segmentImage", "#operations-sentiment-classifySentiment"


@pytest.fixture
def page(browser: Browser, full_server: Server, complaints: list[str]) -> Iterator[Page]:
    with opened(browser, complaints) as page:
        page.goto(f"{full_server.url}/docs")
        yield page


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "photo.jpg"
    path.write_bytes(pictures.encoded(pictures.photo(), "JPEG"))
    return path


def ready(page: Page, name: str) -> Locator:
    """The operation, ready to be sent: nothing has to be pressed before."""
    page.locator(f"{name} .opblock-summary-control").click()
    operation = page.locator(name)
    operation.locator("button.execute").wait_for()
    return operation


def executed(page: Page, operation: Locator) -> int:
    """The status that Execute brings."""
    with page.expect_response(lambda response: response.request.method == "POST") as reply:
        operation.locator("button.execute").click()
    return reply.value.status


def options(select: Locator) -> list[str]:
    return [str(value) for value in select.evaluate("e => [...e.options].map(o => o.value)")]


def test_a_picture_is_picked_sent_and_seen(page: Page, complaints: list[str]) -> None:
    """Three steps: no parameter is touched, and the reply is shown as the picture it is."""
    operation = ready(page, SEGMENT)
    operation.locator("input[type=file]").first.set_input_files(PHOTO)
    assert executed(page, operation) == 200
    shown = operation.locator(".live-responses-table img")
    shown.wait_for()
    shown.evaluate("e => e.decode()")
    assert shown.evaluate("e => [e.naturalWidth, e.naturalHeight]") == [512, 512]
    assert complaints == []


@pytest.mark.nightly
def test_every_form_of_a_picture_and_of_its_reply_is_200(page: Page, small: Path) -> None:
    operation = ready(page, SEGMENT)
    sent = operation.locator("select[aria-label='Request content type']")
    reply = operation.locator("tr.response[data-code='200'] select.content-type")
    forms, types = options(sent), options(reply)
    assert forms == ["multipart/form-data", "application/octet-stream"]
    assert types == ["image/png", "image/webp", "image/jpeg", "application/json"]
    for form, kind in [*((form, types[0]) for form in forms), *((forms[0], k) for k in types[1:])]:
        sent.select_option(form)
        operation.locator("input[type=file]").first.set_input_files(small)
        reply.select_option(kind)
        assert executed(page, operation) == 200, (form, kind)


@pytest.mark.nightly
def test_every_example_of_a_text_is_200(page: Page, complaints: list[str]) -> None:
    operation = ready(page, SENTIMENT)
    examples = operation.locator(".opblock-section-request-body .examples-select select")
    names = options(examples)
    assert len(names) == 3
    for name in names:
        examples.select_option(name)
        assert '"string"' not in operation.locator("textarea").first.input_value()
        assert executed(page, operation) == 200, name
    assert complaints == []


@pytest.mark.nightly
def test_what_stands_there_is_200(page: Page, small: Path) -> None:
    """In every operation that needs no admin key; the names of models are the repository's."""
    names = page.locator(".opblock:not([id^=operations-model_control])")
    names.first.wait_for()
    statuses = {}
    for name in names.evaluate_all("all => all.map(each => each.id)"):
        operation = ready(page, f"#{name}")
        if (file := operation.locator("input[type=file]").first).is_visible():
            file.set_input_files(small)
        with page.expect_response(lambda response: "/docs" not in response.url) as reply:
            operation.locator("button.execute").click()
        statuses[name] = reply.value.status
    assert statuses.pop("operations-ocr-readText") in (200, 404)  # its models may be absent
    assert set(statuses.values()) == {200}, statuses
    assert len(statuses) > 20


def test_errors_are_one_row_with_a_way_to_their_table(page: Page, full_server: Server) -> None:
    operation = ready(page, SENTIMENT)
    rows = operation.locator("tr.response[data-code]")
    assert [row.get_attribute("data-code") for row in rows.all()] == ["200", "default"]
    assert rows.last.locator("a[href='/docs/errors']").count() == 1
    page.goto(f"{full_server.url}/docs/errors#text_empty")
    row = page.locator("tr:target")
    assert "There is no text, or a text has no visible character" in row.inner_text()
    assert row.evaluate("e => getComputedStyle(e).backgroundColor") != "rgba(0, 0, 0, 0)"


def test_the_pages_follow_the_browser(browser: Browser, full_server: Server) -> None:
    """Dark where it is, and on a phone nothing of the table has to be scrolled for."""
    with opened(browser, [], color_scheme="dark", viewport=PHONE) as page:
        page.goto(f"{full_server.url}/docs")
        page.wait_for_selector("html.dark-mode .swagger-ui .info")
        page.goto(f"{full_server.url}/docs/errors")
        assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
        table = "(e => e.scrollWidth <= e.clientWidth)(document.querySelector('.scroll'))"
        assert page.evaluate(table)
        assert violations(page) == []


def test_both_pages_speak_chinese(browser: Browser, full_server: Server) -> None:
    """Where the browser does, until the other language is chosen, which the next page keeps."""
    with opened(browser, [], locale="zh-CN", viewport=PHONE) as page:
        page.goto(f"{full_server.url}/docs/errors#text_empty")
        row = page.locator("tr:target")
        row.get_by_text("文本为空").wait_for()
        assert "没有文本，或某条文本没有可见字符。" in row.inner_text()
        assert page.locator("main p:visible").count() == 1
        assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
        assert violations(page) == []
        page.goto(f"{full_server.url}/docs")
        page.get_by_text("从图片中抠出前景").wait_for()
        operation = ready(page, SENTIMENT)
        expect(operation.locator("button.execute")).to_have_text("执行")
        assert executed(page, operation) == 200
        operation.get_by_role("heading", name="响应体").wait_for()
        page.get_by_role("button", name="English").click()
        page.get_by_text("Cut the foreground out of a picture").wait_for()
        expect(operation.locator("button.execute")).to_have_text("Execute")
        page.goto(f"{full_server.url}/docs/errors#text_empty")
        assert "There is no text" in row.inner_text()


def test_a_key_is_given_once(browser: Browser, keyed_server: Server) -> None:
    with opened(browser, []) as page:
        page.goto(f"{keyed_server.url}/docs")
        page.locator("button.authorize").first.click()
        page.locator(".auth-container input").fill(KEY)
        page.locator(".auth-container button.authorize").click()
        page.locator(".auth-container button.btn-done").click()
        assert executed(page, ready(page, SENTIMENT)) == 200
