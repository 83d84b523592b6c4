"""The demo page's cards for labels of pictures and for text in pictures, in a real browser.

The replies are made up, because the weights of such models are not in the repository.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Position, Route, expect

from tests.e2e.browser import PHONE, opened, small_targets, violations
from tests.e2e.process import Server
from tests.e2e.test_demo_page import DROP, at, completed, file_of

pytestmark = [pytest.mark.e2e, pytest.mark.paddle]

GROUP = {"name": "onednn", "default": True, "ready": True, "reason": ""}
ORIGIN = {
    "X-Model": "its@1",
    "X-Predictor": "onednn",
    "Server-Timing": "infer;dur=20, a-infer;dur=9",
}
LINES = [
    {"text": "合计 <b>9.00</b>", "score": 0.984, "box": [[10, 10], [90, 10], [90, 30], [10, 30]]},
    {"text": "RM", "score": 0.5, "box": [[10, 50], [90, 50], [90, 70], [10, 70]]},
    {"text": "Thank you", "score": 1.0, "box": [[10, 75], [90, 75], [90, 95], [10, 95]]},
]
PAGE = {"width": 100, "height": 100, "angle": 0, "lines": LINES}
LABELS = [
    {"label": "tabby, tabby cat", "class_id": 281, "score": 0.75},
    {"label": "虎", "class_id": 292, "score": 0.25},
]
DIGITS = [*"0123456789"]
PERMISSIONS = ["clipboard-read", "clipboard-write"]


def model(task: str, labels: list[str] | None = None) -> dict[str, Any]:
    state = {"name": f"its-{task}", "version": 1, "state": "READY", "reason": None}
    return {**state, "task": task, "labels": labels, "predictors": [GROUP]}


def answering(reply: Any, status: int = 200) -> Callable[[Route], None]:
    """What answers a request of the page with this JSON."""
    return lambda route: route.fulfill(json=reply, status=status, headers=ORIGIN)


@contextmanager
def served(
    browser: Browser,
    server: Server,
    complaints: list[str],
    *models: dict[str, Any],
    alone: bool = False,
    **options: Any,
) -> Iterator[Page]:
    """The page of a server with these models: `alone`, or besides those for cut-outs and texts."""

    def info(route: Route) -> None:
        document = route.fetch().json()
        others = [m for m in document["models"] if m["task"] in ("segment", "sentiment")]
        document["models"] = [*([] if alone else others), *models]
        document["default_models"] |= {m["task"]: m["name"] for m in models}
        document["default_models"] = {
            task: name
            for task, name in document["default_models"].items()
            if name in [m["name"] for m in document["models"]]
        }
        route.fulfill(json=document)

    def metadata(route: Route) -> None:
        route.fulfill(json={"name": "its", "inputs": [], "outputs": []})

    with opened(browser, complaints, permissions=PERMISSIONS, **options) as page:
        page.route(at("/info"), info)
        page.route("**/v2/models/its-*/**", metadata)
        replies = {"/ocr": {"pages": [PAGE]}, "/classify": {"labels": LABELS}}
        for path, reply in replies.items():
            page.route(at(path), answering(reply))
        page.goto(f"{server.url}/")
        page.wait_for_selector("#models:not([hidden])")
        yield page


def test_a_card_is_shown_where_its_task_is_served(
    browser: Browser, full_server: Server, complaints: list[str]
) -> None:
    with served(browser, full_server, complaints) as page:
        assert page.is_hidden("#ocr")
        assert page.is_hidden("#classify")
    with served(browser, full_server, complaints, model("ocr")) as page:
        assert page.is_visible("#ocr")
        assert page.is_hidden("#classify")
        link = page.locator("#model-cards a[href='#ocr']")
        expect(link).to_have_text("Its task is above: text in a picture.")
    with served(browser, full_server, complaints, model("ocr"), alone=True) as page:
        assert page.is_hidden("#pictures")
        file = [list(file_of("a.png")["buffer"])]
        page.evaluate(DROP, ["a.png", "image/png", *file, "#models"])  # nothing else takes it
        expect(page.locator("#ocr-facts")).to_have_text("3 lines")
    assert complaints == []


def test_the_lines_of_a_picture_are_chosen_on_both_sides(
    browser: Browser, full_server: Server, complaints: list[str]
) -> None:
    """By the pointer and by keys; nothing above or beside them moves when the reply comes."""
    with served(browser, full_server, complaints, model("ocr")) as page:
        below = "card => card.querySelector('.more').offsetTop - card.offsetTop"
        before = page.eval_on_selector("#ocr", below)
        with page.expect_request(lambda request: at("/ocr")(request.url)) as caught:
            page.click("#ocr-samples button")
        assert b'name="file"; filename="notice.jpg"' in (caught.value.post_data_buffer or b"")
        options, boxes = page.locator("#ocr-text [role=option]"), page.locator("#ocr-lines polygon")
        expect(options).to_have_count(3)
        assert page.eval_on_selector("#ocr", below) == before
        expect(options.first).to_have_text("合计 <b>9.00</b>98%")
        expect(page.locator("#ocr-lines")).to_have_attribute("viewBox", "0 0 100 100")
        expect(boxes.nth(1)).to_have_attribute("points", "10,50 90,50 90,70 10,70")
        expect(page.locator("#ocr-timing .keys")).not_to_contain_text("a-infer")  # a part of infer
        boxes.nth(1).hover()
        expect(page.locator("#ocr-text [aria-selected=true]")).to_have_text("RM50%")
        options.nth(2).hover()
        expect(page.locator("#ocr-lines .active")).to_have_attribute("data-at", "2")
        page.mouse.move(0, 0)
        expect(page.locator("#ocr-lines .active")).to_have_count(0)
        page.focus("#ocr-text")
        for key, place in (("End", 2), ("ArrowUp", 1), ("Home", 0), ("ArrowUp", 0)):
            page.keyboard.press(key)
            expect(page.locator("#ocr-lines .active")).to_have_attribute("data-at", str(place))
            expect(page.locator("#ocr-text")).to_have_attribute(
                "aria-activedescendant", f"ocr-line-{place}"
            )
        page.click("#ocr-copy")
        expect(page.locator("#ocr-copy")).to_have_text("Copied")
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied == "合计 <b>9.00</b>\nRM\nThank you"
        page.click("#language")
        expect(page.locator("#ocr-facts")).to_have_text("3 行")
        expect(page.locator("#ocr-copy")).to_have_text("复制文字")
        page.click("#ocr-code summary")
        expect(page.locator("#ocr-code pre")).to_contain_text("-F 'file=@notice.jpg'")
    assert complaints == []


def test_labels_are_bars_best_first(
    browser: Browser, full_server: Server, complaints: list[str]
) -> None:
    """Dropped on this card a picture is classified, and not cut out."""
    with served(browser, full_server, complaints, model("classify", ["cat", "虎"])) as page:
        assert page.is_hidden("#classify-draw")
        file = list(file_of("a.png")["buffer"])
        page.evaluate(DROP, ["a.png", "image/png", file, "#classify-title"])
        bars = page.locator("#classify-scores li")
        expect(bars).to_have_text(["tabby, tabby cat75.0%", "虎25.0%"])
        expect(page.locator("#classify-spoken")).to_have_text("tabby, tabby cat, 75.0%")
        expect(page.locator("#classify-picture")).to_have_attribute("alt", "a.png")
        assert page.is_hidden("#strip")
        page.unroute(at("/classify"))
        refusal = {"code": "file_too_large", "detail": "the file has 9 bytes", "limit": 8}
        page.route(at("/classify"), answering(refusal, 413))
        page.click("#classify-samples button >> nth=1")
        expect(page.locator("#classify-refusal strong")).to_have_text("The file is too large")
        expect(bars).to_have_count(0)
        assert violations(page) == []
        page.unroute(at("/classify"))
        page.route(at("/classify"), answering({"labels": LABELS}))
        page.click("#classify-refusal button")
        expect(bars).to_have_count(2)
        assert page.is_hidden("#classify-refusal")


def test_a_digit_is_drawn_for_a_model_of_digits(
    browser: Browser, full_server: Server, complaints: list[str]
) -> None:
    with served(browser, full_server, complaints, model("classify", DIGITS)) as page:
        completed(page)  # the results above the pad move it
        pad = page.locator("#classify-frame .pad")
        assert page.is_hidden("#classify-samples")
        box = pad.bounding_box()
        assert box is not None
        top: Position = {"x": box["width"] / 2, "y": 20}
        bottom: Position = {"x": box["width"] / 2, "y": box["height"] - 20}
        with page.expect_request(lambda request: at("/classify")(request.url)) as caught:
            pad.drag_to(pad, source_position=top, target_position=bottom)
        sent = caught.value.post_data_buffer or b""
        assert b'filename="drawing.png"' in sent
        assert b"\x89PNG" in sent
        bars = page.locator("#classify-scores li")
        expect(bars).to_have_count(2)
        assert pad.is_visible()
        page.set_input_files("#classify-file", [file_of("a.png")])
        expect(pad).to_be_hidden()
        page.click("#classify-draw")
        expect(pad).to_be_visible()
        expect(bars).to_have_count(0)
    assert complaints == []


@pytest.mark.parametrize(("locale", "scheme"), [("en-US", "light"), ("zh-CN", "dark")])
def test_a_phone_shows_both_cards(
    browser: Browser, full_server: Server, complaints: list[str], locale: str, scheme: str
) -> None:
    options: dict[str, Any] = {"viewport": PHONE, "has_touch": True}
    options |= {"color_scheme": scheme, "locale": locale}
    models = (model("ocr"), model("classify", ["cat", "虎"]))
    with served(browser, full_server, complaints, *models, **options) as page:
        page.tap("#ocr-samples button")
        page.tap("#classify-samples button >> nth=3")
        expect(page.locator("#ocr-text [role=option]")).to_have_count(3)
        expect(page.locator("#classify-scores li")).to_have_count(2)
        page.locator("#ocr-lines polygon").nth(2).tap()
        selected = page.locator("#ocr-text [aria-selected=true]")
        expect(selected).to_contain_text("Thank you")
        assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
        assert small_targets(page) == []
        assert violations(page) == []
    assert complaints == []
