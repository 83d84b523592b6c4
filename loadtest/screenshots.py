"""Pictures of the demo page for the documents.

    python loadtest/screenshots.py --to docs/images

Needs chromium on the path, and starts a server of its own.
"""

from __future__ import annotations

import argparse
import io
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import ROOT, running_server
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

MOST_BYTES = 200_000
"""Of one picture in the repository."""
SECONDS = 120
SETTLE_MILLISECONDS = 800
"""From an answer to the picture of it on the screen."""
BLUE = "label:has(> input[value='#438edb'])"


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One picture: its file's name, the browser it is taken in, and what is pressed before."""

    name: str
    options: dict[str, Any]
    press: tuple[str, ...] = ()


DESKTOP: dict[str, Any] = {"viewport": {"width": 1360, "height": 860}, "locale": "en-US"}
VIEWS = (
    View(name="demo-light", options=DESKTOP),
    View(
        name="demo-dark-zh",
        options=DESKTOP | {"locale": "zh-CN", "color_scheme": "dark"},
        press=(BLUE, "#sentences .chip:last-child"),
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--to", type=Path, default=ROOT / "docs" / "images", metavar="DIR")
    arguments = parser.parse_args()
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        sys.exit("screenshots need chromium on the path; there is none")
    with running_server() as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu"]
        )
        address = f"http://127.0.0.1:{server.port}/"
        for view in VIEWS:
            with answered(browser, address, view) as page:
                file = arguments.to / f"{view.name}.png"
                file.write_bytes(small(page.screenshot()))
                print(f"{file.relative_to(ROOT)}: {file.stat().st_size} bytes")
        browser.close()


@contextmanager
def answered(browser: Browser, address: str, view: View) -> Iterator[Page]:
    """The page with both answers and without motion, after what the view presses."""
    context = browser.new_context(**view.options, reduced_motion="reduce")
    page = context.new_page()
    page.set_default_timeout(1000 * SECONDS)
    page.goto(address)
    for selector in view.press:
        page.wait_for_selector("#segment-result:not([hidden])")
        page.click(selector)
    page.wait_for_selector("#viewer[aria-busy=false] #canvas.over")
    page.wait_for_selector("#sentiment-result:not([hidden])")
    page.mouse.move(0, 0)
    page.wait_for_timeout(SETTLE_MILLISECONDS)
    yield page
    context.close()


def small(png: bytes) -> bytes:
    """The same in 256 colours; raises ValueError where that is still too large."""
    file = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(256).save(file, "PNG", optimize=True)
    if file.tell() > MOST_BYTES:
        raise ValueError(f"a picture of {file.tell()} bytes; the limit is {MOST_BYTES}")
    return file.getvalue()


if __name__ == "__main__":
    main()
