"""Take the documents' pictures of the demo page.

    python loadtest/screenshots.py

Needs chromium on the path, and starts its own server.
"""

import io
import shutil
import sys
from typing import Any

from harness import ROOT, running_server
from PIL import Image
from playwright.sync_api import sync_playwright

MOST_BYTES = 200_000
"""Maximum size of a picture in the repository."""
SECONDS = 120
SETTLE_MILLISECONDS = 800
"""Time from an answer to its picture on the screen."""
BLUE = "label:has(> input[value='#438edb'])"


DESKTOP: dict[str, Any] = {"viewport": {"width": 1360, "height": 860}, "locale": "en-US"}
VIEWS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "demo-light": (DESKTOP, ()),
    "demo-dark-zh": (
        DESKTOP | {"locale": "zh-CN", "color_scheme": "dark"},
        (BLUE, "#sentences .chip:last-child"),
    ),
}
"""Browser options and pressed elements, by the picture's name."""


def main() -> None:
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        sys.exit("screenshots need chromium on the path; there is none")
    with running_server() as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu"]
        )
        for name, (options, pressed) in VIEWS.items():
            page = browser.new_context(**options, reduced_motion="reduce").new_page()
            page.set_default_timeout(1000 * SECONDS)
            page.goto(f"http://127.0.0.1:{server.port}/")
            for selector in pressed:
                page.wait_for_selector("#segment-result:not([hidden])")
                page.click(selector)
            page.wait_for_selector("#viewer[aria-busy=false] #canvas.over")
            page.wait_for_selector("#sentiment-result:not([hidden])")
            page.mouse.move(0, 0)
            page.wait_for_timeout(SETTLE_MILLISECONDS)
            file = ROOT / "docs" / "images" / f"{name}.png"
            file.write_bytes(small(page.screenshot()))
            print(f"{file}: {file.stat().st_size} bytes")
        browser.close()


def small(png: bytes) -> bytes:
    """Reduce it to 256 colours. Raises ValueError if it is still too large."""
    file = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(256).save(file, "PNG", optimize=True)
    if file.tell() > MOST_BYTES:
        raise ValueError(f"a picture of {file.tell()} bytes; the limit is {MOST_BYTES}")
    return file.getvalue()


if __name__ == "__main__":
    main()
