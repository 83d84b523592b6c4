"""Take the documents' pictures of the demo page and of /compare.

    python loadtest/screenshots.py

Needs chromium on the path, and starts its own servers. The one for /compare measures the instance
groups of `emotion` first, which takes a minute or more.
"""

import io
import shutil
import sys
from typing import Any

import httpx
from harness import HOST, ROOT, running_server, wait_until
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

MOST_BYTES = 200_000
"""Maximum size of a picture in the repository."""
SECONDS = 120
RENDER_MILLISECONDS = 800
"""Time from a reply to its picture on the screen."""
BLUE = "label:has(> input[value='#438edb'])"


DESKTOP: dict[str, Any] = {"viewport": {"width": 1360, "height": 860}, "locale": "en-US"}
VIEWS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "demo-light": (DESKTOP, ()),
    "demo-dark-zh": (
        DESKTOP | {"locale": "zh-CN", "color_scheme": "dark"},
        (BLUE, "#sentences .chip:last-child"),
    ),
}
"""Pictures of the demo page: browser options and pressed elements, by the picture's name."""
COMPARED = "emotion"
MEASURING_SECONDS = 600.0


def main() -> None:
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        sys.exit("screenshots need chromium on the path; there is none")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu"]
        )
        with running_server() as server:
            for name, (options, pressed) in VIEWS.items():
                page = opened(browser, f"http://{HOST}:{server.port}/", options)
                for selector in pressed:
                    page.wait_for_selector("#segment-result:not([hidden])")
                    page.click(selector)
                page.wait_for_selector("#viewer[aria-busy=false] #canvas.over")
                page.wait_for_selector("#sentiment-result:not([hidden])")
                save(page, name)
        with running_server(environment={"PADDLEPOOL_PROVE_GROUPS": "started"}) as server:
            address = f"http://{HOST}:{server.port}"
            wait_for_choice(address)
            page = opened(browser, f"{address}/compare?model={COMPARED}", DESKTOP)
            page.wait_for_selector("#cards .answer li")
            save(page, "compare")
        browser.close()


def opened(browser: Browser, url: str, options: dict[str, Any]) -> Page:
    page = browser.new_context(**options, reduced_motion="reduce").new_page()
    page.set_default_timeout(1000 * SECONDS)
    page.goto(url)
    return page


def wait_for_choice(address: str) -> None:
    """Wait until the default group of COMPARED is measured. Raises RuntimeError."""

    def measured() -> bool:
        models = httpx.get(f"{address}/info", timeout=SECONDS).json()["models"]
        choices = [model["choice"] for model in models if model["name"] == COMPARED]
        return any(choice["by"] == "measured" for choice in choices)

    wait_until(measured, f"{COMPARED} was not measured", timeout=MEASURING_SECONDS, every=1.0)


def save(page: Page, name: str) -> None:
    page.mouse.move(0, 0)
    page.evaluate("scrollTo(0, 0)")  # a press may have scrolled the page
    page.wait_for_timeout(RENDER_MILLISECONDS)
    file = ROOT / "docs" / "images" / f"{name}.png"
    file.write_bytes(small(page.screenshot()))
    print(f"{file}: {file.stat().st_size} bytes")


def small(png: bytes) -> bytes:
    """Reduce a picture to 256 colours if it is too large. Raises ValueError if it still is."""
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    for form in (picture, picture.quantize(256)):
        file = io.BytesIO()
        form.save(file, "PNG", optimize=True)
        if file.tell() <= MOST_BYTES:
            return file.getvalue()
    raise ValueError(f"a picture of {file.tell()} bytes; the limit is {MOST_BYTES}")


if __name__ == "__main__":
    main()
