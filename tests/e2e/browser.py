"""Chromium for the tests of pages: one for a module, a fresh context for each test."""

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, ViewportSize, expect, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ALONE = (
    "--no-sandbox",  # the tests may run as root, in a container
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--use-fake-device-for-media-stream",  # a camera that shows a moving test picture
    "--use-fake-ui-for-media-stream",
)
DESKTOP: ViewportSize = {"width": 1360, "height": 900}
PHONE: ViewportSize = {"width": 390, "height": 844}
TARGET = 24
"""Pixels: nothing that can be pressed is smaller (WCAG 2.2, 2.5.8)."""


@contextlib.contextmanager
def chromium(what: str) -> Iterator[Browser]:
    """The browser, or a skipped test that names what was not tested for want of it."""
    if CHROMIUM is None:
        pytest.skip(f"NOT TESTED: {what}, for want of chromium on this machine")
    with sync_playwright() as playwright:
        expect.set_options(timeout=60_000)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ALONE))
        yield browser
        browser.close()


@contextlib.contextmanager
def opened(browser: Browser, complaints: list[str], **options: Any) -> Iterator[Page]:
    """An empty page in a context of its own; what its console and network had to say against it
    goes to `complaints`. Requests that the page itself gave up are none."""
    context = browser.new_context(**{"viewport": DESKTOP, "locale": "en-US", **options})
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "requestfailed",
        lambda request: (
            None if request.failure == "net::ERR_ABORTED" else complaints.append(request.url)
        ),
    )
    yield page
    if not page.is_closed():
        # A request that the page makes just now would end in an error of the next test.
        page.unroute_all(behavior="ignoreErrors")
    context.close()


def violations(page: Page) -> list[str]:
    """What axe-core finds: rule and element."""
    rules = {"target-size": {"enabled": True}}
    result = Axe().run(page, options={"resultTypes": ["violations"], "rules": rules})
    return [
        f"{violation['id']}: {node['html'][:120]}"
        for violation in result.response["violations"]
        for node in violation["nodes"]
    ]


SMALL = """
least => [...document.querySelectorAll(
  'a[href], button, input:not([type=file]), select, textarea, summary, label:has(input)'
)].filter(each => each.checkVisibility({visibilityProperty: true}))
  .filter(each => !each.closest('.unseen, .skip'))
  .map(each => [each, (each.closest('label') ?? each).getBoundingClientRect()])
  .filter(([each, box]) => getComputedStyle(each).display !== 'inline'
    && box.width > 0 && Math.min(box.width, box.height) < least)
  .map(([each, box]) => `${each.outerHTML.slice(0, 80)} ${box.width} x ${box.height}`)
"""


def small_targets(page: Page) -> list[str]:
    """What can be pressed and is smaller than TARGET; links within a sentence may be."""
    return list(page.evaluate(SMALL, TARGET))
