"""/compare in a real browser: every group side by side, links, exports, and nothing but text."""

import csv
import io
import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, Request, Route, expect

from paddlepool.contracts.resources import has_gpu, processor
from paddlepool.contracts.status import CanaryStatus, SliceStatus, TrialPoint
from tests.e2e.browser import DESKTOP, PHONE, opened, small_targets, violations
from tests.e2e.conftest import FOREIGN_KEY, KEY
from tests.e2e.process import ROOT, Server, running
from tests.model_files import add_to_config

pytestmark = [pytest.mark.e2e, pytest.mark.paddle]

BLNS = ROOT.parent / "shared" / "data" / "blns.json"
INJECTIONS = [
    "<script>document.title='pwned'</script>",
    "<img src=x onerror=document.title='pwned'>",
    "\"><svg onload=document.title='pwned'>",
    "javascript:document.title='pwned'",
    '=HYPERLINK("http://x")',
    "{{constructor.constructor('document.title=1')()}}",
]
REMEMBERED = f"sessionStorage.setItem('paddlepool-key', '{KEY}')"


@pytest.fixture
def served(browser: Browser, keyed_server: Server) -> Server:
    """Not started where there is no browser; nobody has started its groups on demand yet."""
    return keyed_server


HEIGHTS = "all => new Set(all.map(e => e.offsetHeight)).size"
CUT = "all => all.filter(e => e.scrollWidth > e.clientWidth).map(e => e.outerHTML)"
TITLES = {"en-US": "Paddlepool: live comparison", "zh-CN": "Paddlepool：实时对比"}
TASK = 'pipeline = "classify"\n'
ONEDNN = """
[[instance_group]]
name = "onednn"
backend = "paddle_inference"
start = "on_demand"
[instance_group.options]
onednn = true
"""


@pytest.fixture(scope="module")
def sealed(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a model without a task, which has two groups."""
    root = tmp_path_factory.mktemp("sealed")
    model = shutil.copytree(ROOT / "model_repo" / "mnist", root / "models" / "mnist")
    config = (model / "config.toml").read_text("utf-8")
    (model / "config.toml").write_text(config.replace(TASK, ""), "utf-8")
    add_to_config(model, ONEDNN)
    settings = {"api_keys": KEY, "prove_groups": "off"}
    with running(root / "models", root, settings=settings) as server:
        yield server


@pytest.fixture
def page(browser: Browser, complaints: list[str]) -> Iterator[Page]:
    """With the key, as if it had been asked for in this tab."""
    with opened(browser, complaints) as page:
        page.add_init_script(REMEMBERED)
        yield page


def change_data(page: Page, change: Callable[[dict[str, Any]], None]) -> None:
    """Have /compare/data reply with what `change` makes of the server's reply."""

    def reply(route: Route) -> None:
        response = route.fetch()
        data = response.json()
        change(data)
        route.fulfill(response=response, json=data)

    page.route("**/compare/data*", reply)


def card(group: str) -> str:
    return f"article[aria-labelledby='group-{group}']"


def test_at_first_sight_a_picture_runs_through_what_runs(
    page: Page, served: Server, complaints: list[str]
) -> None:
    """The default group's cut-out, histogram, figures and badge, without a press; others wait."""
    page.goto(f"{served.url}/compare")
    page.wait_for_selector(f"{card('onednn')} .answer img")
    output_box = page.locator(f"{card('onednn')} .answer")
    assert "X-Predictor: onednn" in output_box.inner_text()
    assert "infer" in str(output_box.locator(".stages").get_attribute("aria-label"))
    page.wait_for_selector(f"{card('onednn')} .plot canvas")
    page.wait_for_selector("#overlay canvas")
    assert "p99" in page.inner_text(f"{card('onednn')} .figures")
    assert page.inner_text(f"{card('onednn')} .badge.accent") == "default"
    assert page.inner_text("#verdict-text strong") == "onednn"
    lacks = "It lacks" in page.inner_text("#verdict-text")
    assert lacks == bool(processor().missing)
    expect(page.locator(".lead")).to_have_text(
        re.compile("We try every runtime on this machine and serve the fastest accurate one. Now: ")
    )
    assert page.inner_text(f"#idle {card('native')} .asking button") == "Start and run"
    assert page.locator(f"#idle {card('native')} .badge").locator("visible=true").count() == 0
    assert page.locator("#idle .answer img").count() == 0
    assert complaints == []


def test_a_classifier_names_a_picture(page: Page, served: Server, complaints: list[str]) -> None:
    page.goto(f"{served.url}/compare?model=mnist")
    answer = page.locator(f"{card('native')} .answer")
    expect(answer.locator(".scores li")).to_have_count(3)
    assert re.match(r"[0-9]\s", answer.inner_text())
    assert "X-Predictor: native" in answer.inner_text()
    assert complaints == []


def test_a_group_is_started_on_a_press_and_compared(
    page: Page, served: Server, complaints: list[str]
) -> None:
    page.goto(f"{served.url}/compare?model=emotion&text={quote('今天真开心')}")
    page.click(f"{card('native')} .asking button")
    page.wait_for_selector(f"#cards {card('native')} .answer li")
    assert "X-Predictor: native" in page.inner_text(f"{card('native')} .answer")
    page.select_option("#rounds", "5")
    page.click("#run")
    page.wait_for_selector("#run-said:text-is('answers: 10')")
    page.click("#views button[data-value=table]")
    row = page.locator("#table tbody tr", has=page.locator("th", has_text="native"))
    expect(row.locator("td", has_text="not comparable")).to_be_visible()
    assert "replays" not in page.inner_text("#table thead")  # there are none
    assert page.evaluate("document.querySelector('#table').scrollWidth") < DESKTOP["width"]
    assert page.locator("#legend button").all_inner_texts() == ["onednn", "native"]
    page.click("#legend button[data-group=native]")
    page.wait_for_selector("#legend button[data-group=native][aria-pressed=false]")
    assert complaints == []


def output(page: Page, group: str) -> dict[str, str]:
    """The figures of a group's only output, by their names."""
    box = page.locator(f"{card(group)} .answer .output")
    names, values = box.locator("dt").all_inner_texts(), box.locator("dd").all_inner_texts()
    return dict(zip(names, values, strict=True))


def test_tensors_run_through_the_groups_of_a_model_without_a_task(
    page: Page, sealed: Server, complaints: list[str]
) -> None:
    """First the sealed sample, raw; then pasted JSON, whose refusals stand in the cards."""
    sent: list[Request] = []
    page.on("request", lambda request: sent.append(request) if "/v2/" in request.url else None)
    page.goto(f"{sealed.url}/compare")
    page.wait_for_selector(f"{card('native')} .answer .output")
    expect(page.locator("#sample-said")).to_have_text("image FP32 2 × 784")
    assert "logits FP32 2 × 10" in page.inner_text(f"{card('native')} .answer")
    assert list(output(page, "native")) == ["smallest", "mean", "largest"]
    assert "infer" in str(page.locator(".answer .stages").get_attribute("aria-label"))
    page.click(f"{card('onednn')} .asking button")
    page.wait_for_selector(f"{card('onednn')} .answer .output")
    assert "X-Predictor: onednn" in page.inner_text(f"{card('onednn')} .answer")
    assert output(page, "onednn")["largest difference from native"]
    first = output(page, "native")
    page.click("#from-pasted")
    assert violations(page) == []
    tensors = json.loads(page.input_value("#pasted"))
    assert [entry["shape"] for entry in tensors["inputs"]] == [[2, 784]]
    page.click("#run")
    page.wait_for_selector(f"{card('onednn')} .answer .output")
    assert output(page, "native") == first  # the same numbers, written out
    tensors["inputs"][0]["data"] = [0] * 1568
    page.fill("#pasted", json.dumps(tensors | {"id": "zeros", "parameters": {"priority": 1}}))
    page.click("#run")
    page.wait_for_selector("#run-said:text-is('answers: 2')")
    assert output(page, "native") != first
    assert '"id": "zeros"' in (sent[-1].post_data or "")
    assert '"parameters":{"priority":1,"predictor":"onednn"' in (sent[-1].post_data or "")
    assert complaints == []
    for pasted, message in (
        ("{", "not valid JSON"),
        ("{}", "must be a list"),
        ("[7]", "JSON object"),
    ):
        page.fill("#pasted", pasted)
        page.click("#run")
        expect(page.locator(f"{card('onednn')} .answer .refusal")).to_contain_text(message)


def test_every_half_is_read_as_it_is(page: Page, served: Server) -> None:
    """All 65536 of them, infinities and NaN included; and integers beyond 32 bits."""
    page.goto(f"{served.url}/compare")
    read = """async ([datatype, octets]) => {
        const {numbersOf} = await import("/comparison/tensors.js");
        return Array.from(numbersOf(datatype, Uint8Array.from(octets).buffer), String);
    }"""
    halves = np.arange(65536, dtype="<u2")
    numbers = page.evaluate(read, ["FP16", list(halves.tobytes())])
    values = [float(number.replace("Infinity", "inf")) for number in numbers]
    np.testing.assert_array_equal(values, halves.view("<f2").astype(float))
    assert page.evaluate(read, ["INT64", list(np.array([-(2**40)], "<i8").tobytes())]) == [
        str(-(2**40))
    ]
    assert page.evaluate(read, ["BOOL", [0, 1]]) == ["0", "1"]


def test_nothing_is_called_measured_where_nothing_was(page: Page, served: Server) -> None:
    def decide(data: dict[str, Any]) -> None:
        for model in data["models"]:
            choice = {"by": "measured", "at": 1.0, "reason": "there is no candidate"}
            model["choice"] |= choice | {"candidates": []}

    change_data(page, decide)
    page.goto(f"{served.url}/compare")
    badge = page.locator("#verdict-text .badge")
    expect(badge).to_have_text("no other group is a candidate")
    assert "there is no candidate" not in page.inner_text("#verdict-text")


def history_point(compared: int, agreement: float, ratio: float | None) -> TrialPoint:
    return TrialPoint(
        compared=compared,
        at=1.0,
        agreement=agreement,
        agreement_low=0.629,
        agreement_high=0.893,
        drift=0.0,
        ratio=ratio,
    )


def test_a_new_version_is_shown_with_the_verdict(page: Page, served: Server) -> None:
    status = CanaryStatus(
        model="emotion",
        serving=3,
        previous=None,
        version=4,
        current=3,
        state="rejected",
        reason="of 14 answers 'surprise', a share of 0.000 agrees, the limit is 0.5",
        requests=400,
        compared=100,
        agreement=0.78,
        agreement_low=0.629,
        agreement_high=0.893,
        slices=(SliceStatus(name="surprise", rows=14, agreement=0.0),),
        agreement_limit=0.85,
        ratio_limit=1.25,
        history=(history_point(50, 0.84, None), history_point(100, 0.78, 1.02)),
    )

    def judge(data: dict[str, Any]) -> None:
        for model in data["models"]:
            assert model["canary"] is None
            if model["name"] == "emotion":
                model["canary"] = asdict(status)

    change_data(page, judge)
    page.goto(f"{served.url}/compare?model=emotion")
    shown = page.locator("#canary")
    expect(shown.locator(".badge")).to_have_text("rejected")
    expect(shown).to_contain_text("version 4 beside version 3")
    expect(shown).to_contain_text("of 14 answers 'surprise', a share of 0.000 agrees")
    expect(shown.locator("dd").nth(0)).to_have_text("100 of 400")
    expect(shown.locator("dd").nth(1)).to_have_text("78% (62.9% – 89.3%)")
    expect(shown.locator("#slices tbody tr")).to_have_text("surprise140%")
    for name, said in (
        ("agreement", "agreement by compared requests: 78% after 100, the limit is 85%"),
        ("ratio", "times the run time by compared requests: 1.02 after 100, the limit is 1.25"),
    ):
        expect(shown.locator(f"#trend-{name} canvas")).to_be_visible()
        expect(shown.locator(f"#trend-{name}")).to_have_attribute("aria-label", said)
    expect(shown.locator("#trend-drift")).to_be_hidden()
    shown.locator("summary").click()
    cells = shown.locator("#points tbody tr").nth(0).locator("th, td")
    expect(cells.nth(0)).to_have_text("50")
    expect(cells.nth(2)).to_have_text("84% (62.9% – 89.3%)")
    expect(cells.nth(3)).to_have_text("–")
    assert violations(page) == []
    too_wide = "rows => rows.filter(row => row.scrollWidth > row.clientWidth).length"
    assert shown.locator(".figures div").evaluate_all(too_wide) == 0
    status = replace(status, parts={"det": 1, "rec": 2}, current_parts={"det": 1, "rec": 1})
    page.reload()
    expect(shown).to_contain_text("version 4, rec 2 beside version 3, rec 1")
    page.goto(f"{served.url}/compare?model=u2netp")
    expect(page.locator("#now")).to_be_visible()
    expect(shown).to_be_hidden()


def trial(
    group: str, gain: float | None = None, low: float | None = None, high: float | None = None
) -> Any:
    """A candidate as in /compare/data."""
    names = ("resident_bytes", "largest_difference", "mean_difference", "agreement")
    measured = {"gain": gain, "gain_low": low, "gain_high": high} | dict.fromkeys(names)
    fit = low is not None and low > 1.1
    return measured | {"group": group, "fit": fit, "reason": "said"}


def test_there_is_one_kind_of_ratio(page: Page, served: Server) -> None:
    """Of runs in turns, with its interval; every other pair of groups is not comparable."""

    def measure(data: dict[str, Any]) -> None:
        [model] = [model for model in data["models"] if model["name"] == "emotion"]
        candidates = [
            trial("onnxruntime", 2.41, 2.1, 2.74),
            trial("openvino", 0.9, 0.8, 1.0),
            trial("mixed", 0.5),
            trial("gpu"),
        ]
        model["choice"] |= {"by": "measured", "at": 1.0, "group": "onnxruntime"}
        model["choice"]["candidates"] = candidates
        for group in model["groups"]:
            group["refused"] = "no CUDA" if group["name"] == "gpu" else None
            group["effective"] = True
        data["models"] = [model]

    change_data(page, measure)
    page.goto(f"{served.url}/compare?model=emotion")
    expect(page.locator("#now")).to_have_text("Now: onnxruntime, 2.4 times as fast as onednn.")
    for group, speed in (("onnxruntime", "2.41 × (2.10 – 2.74)"), ("onednn", "1 × (reference)")):
        expect(page.locator(f"{card(group)} .speed dd")).to_have_text(speed)
    assert "÷" not in page.inner_text("main")
    assert "effective" not in page.inner_text("main")
    expect(page.locator("#candidates tr", has_text="gpu")).to_contain_text("not comparable")
    lines = "all => all.map(e => e.getBoundingClientRect().left)"
    assert len(set(page.eval_on_selector_all("#candidates .one", lines))) == 1
    assert page.locator(f"{card('gpu')} .asking button").is_hidden()
    assert page.locator(f"{card('jit')} .asking button").is_visible()
    for term in page.locator("main .term:visible").all():
        term.click()
        expect(page.locator("#bubble")).to_have_text(re.compile(r"\w.*\."))
        page.keyboard.press("Escape")
        expect(page.locator("#bubble")).to_be_hidden()
    expect(page.locator("#shadow-text")).to_have_text(re.compile(r"SHADOW_GROUPS=\w+,\w+ paddle"))


@pytest.mark.skipif(has_gpu(), reason="NOT TESTED: no GPU to be missing")
def test_a_group_without_its_device_is_not_offered(page: Page, served: Server) -> None:
    page.goto(f"{served.url}/compare?model=emotion")
    page.wait_for_selector(f"{card('gpu')} .words:has-text('no CUDA device')")
    assert page.inner_text(f"{card('gpu')} .badge.warn") == "cannot run here"
    assert page.locator(f"{card('gpu')} .asking button").is_hidden()
    page.click("#views button[data-value=table]")
    row = page.locator("#table tbody tr", has=page.locator("th", has_text=re.compile("^gpu$")))
    expect(row.locator(".words")).to_contain_text("no CUDA device")


@pytest.mark.parametrize("language", ["en-US", "zh-CN"])
def test_a_full_table_fits_a_usual_screen(browser: Browser, served: Server, language: str) -> None:
    """With figures of replays in every column and a reason below a state; so do the candidates."""

    def fill(data: dict[str, Any]) -> None:
        for model in data["models"]:
            for group in model["groups"]:
                replays = {"count": 1234, "same_bits": 3, "p50": 1e-3, "p99": 1.2e-7}
                group["replays"] = replays | {"agreement": 0.993}
                group["times"] = {"p50": 0.0312, "p95": 0.11, "p99": 0.311}
                group |= {"runs": 123_456, "rate": 0.149, "resident_bytes": 236_000_000}
            group["refused"] = group["reason"] = "cannot start: " + 20 * "this and that; "
            model["choice"]["candidates"] = [
                trial(group["name"], 2.41, 2.1, 2.74) | {"largest_difference": 0.0012}
                for group in model["groups"]
            ]

    with opened(browser, [], locale=language, viewport={"width": 1440, "height": 900}) as page:
        page.add_init_script(REMEMBERED)
        change_data(page, fill)
        page.goto(f"{served.url}/compare?model=u2netp&view=table")
        page.wait_for_selector("#table table")
        assert page.eval_on_selector_all(".scroll", CUT) == []
        assert page.title() == TITLES[language]


def test_a_link_restores_what_was_shown(page: Page, served: Server) -> None:
    page.goto(f"{served.url}/compare")
    page.click("#models button[data-value=emotion]")
    page.click("#windows button[data-value='1h']")
    page.click("#views button[data-value=table]")
    page.select_option("#figure", "p99")
    page.fill("#text", "气死我了 & <b>")
    page.goto(page.evaluate("location.href"))  # page.url comes to know of it a moment later
    page.wait_for_selector("#models button[data-value=emotion][aria-pressed=true]")
    page.wait_for_selector("#windows button[data-value='1h'][aria-pressed=true]")
    page.wait_for_selector("#table table")
    assert page.input_value("#figure") == "p99"
    assert page.input_value("#text") == "气死我了 & <b>"
    page.goto(f"{served.url}/compare?model=none&window=2y&view=x&figure=p1&sample=../x&hide=,,")
    page.wait_for_selector("#windows button[data-value='10m'][aria-pressed=true]")
    page.wait_for_selector("#models button[data-value=u2netp][aria-pressed=true]")


def test_exports_hold_what_is_shown(page: Page, served: Server) -> None:
    page.goto(f"{served.url}/compare?model=emotion")
    page.wait_for_selector(f"{card('onednn')} .answer li")
    page.wait_for_selector("#overlay canvas")
    files: dict[str, bytes] = {}
    for kind in ("json", "csv", "history", "png"):
        page.click("#export summary")
        with page.expect_download() as download:
            page.click(f"[data-export={kind}]")
        assert download.value.suggested_filename.startswith("paddlepool-emotion-")
        files[kind] = Path(download.value.path()).read_bytes()
    data = json.loads(files["json"])
    assert [model["name"] for model in data["models"]] == ["emotion"]
    rows = list(csv.DictReader(io.StringIO(files["csv"].decode("utf-8-sig"))))
    assert [row["group"] for row in rows] == [g["name"] for g in data["models"][0]["groups"]]
    assert float(rows[0]["p50_seconds"]) > 0
    assert files["history"].decode("utf-8-sig").startswith("interval_ended,model,version,group,")
    assert files["png"].startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("language", "scheme"),
    [("en-US", "light"), pytest.param("zh-CN", "dark", marks=pytest.mark.nightly)],
)
def test_everybody_can_use_it(
    browser: Browser, served: Server, language: str, scheme: Any, complaints: list[str]
) -> None:
    """axe-core finds nothing, in cards and table, wide and on a phone; nothing is cut off."""
    with opened(browser, complaints, locale=language, color_scheme=scheme) as page:
        page.add_init_script(REMEMBERED)
        page.goto(f"{served.url}/compare?model=emotion")
        page.wait_for_selector("#overlay canvas")
        for size in (PHONE, DESKTOP):
            page.set_viewport_size(size)
            for view in ("table", "cards"):
                page.click(f"#views button[data-value={view}]")
                page.wait_for_selector("#table table" if view == "table" else card("onednn"))
                assert violations(page) == [], (size, view)
                assert small_targets(page) == [], (size, view)
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= size["width"]
            assert page.eval_on_selector_all("pre, .card", CUT) == []
            assert page.eval_on_selector_all("#idle h3", HEIGHTS) == 1, size
        assert page.evaluate("document.documentElement.lang") == language.removesuffix("-US")
    assert complaints == []


def test_the_keyboard_is_enough(page: Page, served: Server) -> None:
    """Every control is reached by Tab and pressed by Enter; focus stays while figures change."""
    page.goto(f"{served.url}/compare?model=emotion")
    page.wait_for_selector(f"{card('onednn')} .answer li")
    wanted = {"emotion", "1 hour", "Table", "Copy link", "Run through the running groups"}
    seen: set[str] = set()
    for _ in range(80):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("document.activeElement.textContent.trim()"))
        if wanted <= seen:
            break
    assert wanted <= seen
    page.focus("#views button[data-value=table]")
    page.keyboard.press("Enter")
    page.wait_for_selector("#table table")
    page.focus("#export summary")
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.parentElement.id") == "export"
    page.focus("#table")
    with page.expect_response("**/compare/data*"):
        pass
    assert page.evaluate("document.activeElement.id") == "table"


def test_whatever_is_written_anywhere_is_text(
    page: Page, served: Server, complaints: list[str]
) -> None:
    """Names, reasons and options of hostile strings, and each of them as the text to classify."""
    known = json.loads(BLNS.read_text("utf-8")) if BLNS.exists() else []
    strings = list(dict.fromkeys(INJECTIONS + known[::3]))

    def rename(data: dict[str, Any]) -> None:
        model = next(model for model in data["models"] if model["name"] == "emotion")
        [pattern, *_] = model["groups"]
        model["groups"] = [
            pattern
            | {"name": text, "proof": text, "reason": text, "refused": text, "default": False}
            | {"options": {text: text}, "backend": text, "ready": False}
            for text in strings
        ]
        candidates = [trial(text) | {"reason": text} for text in strings]
        model["choice"] |= {"group": strings[0], "reason": strings[1], "candidates": candidates}
        data["models"] = [model | {"name": strings[1], "reason": strings[2]}]
        data["history"] = []

    page.on("dialog", lambda dialog: complaints.append(f"dialog {dialog.message}"))
    change_data(page, rename)
    page.goto(f"{served.url}/compare")
    page.wait_for_selector("#cards article")
    reasons = "[...document.querySelectorAll('#candidates td.words')].map(h => h.textContent)"
    assert set(page.evaluate(reasons)) == {"serves now", *strings[1:]}
    shown = page.evaluate("[...document.querySelectorAll('#cards h3')].map(h => h.textContent)")
    assert set(shown) == set(strings)
    page.click("#views button[data-value=table]")
    page.wait_for_selector("#table table")
    page.click("#language")
    page.wait_for_selector("html[lang=zh-CN]")
    inside = "main script, main [onerror], main [onload], main iframe, main svg, main img[src=x]"
    assert page.locator(inside).count() == 0
    assert page.title() == TITLES["zh-CN"]
    assert complaints == []


def test_a_hostile_text_and_file_name_stay_text(page: Page, served: Server) -> None:
    page.goto(f"{served.url}/compare?model=emotion")
    for text in INJECTIONS:
        page.fill("#text", text)
        page.click("#run")
        page.wait_for_selector("#run-said:text-matches('answers: [12]')")
    page.click("#models button[data-value=u2netp]")
    page.wait_for_selector("#samples button")
    name = "<img src=x onerror=document.title='pwned'>.png"
    page.set_input_files("#file", {"name": name, "mimeType": "image/png", "buffer": b"no picture"})
    assert page.inner_text("#file-name") == name
    page.click("#run")
    page.wait_for_selector(f"{card('onednn')} .refusal")
    assert page.title() == TITLES["en-US"]


def test_a_key_is_asked_for_and_an_absent_server_is_said(browser: Browser, tmp_path: Path) -> None:
    empty = tmp_path / "models"
    empty.mkdir()
    with opened(browser, []) as page:
        with running(empty, tmp_path, settings={"api_keys": FOREIGN_KEY}) as server:
            page.goto(f"{server.url}/compare")
            page.wait_for_selector("#key-form:not([hidden])")
            page.wait_for_selector("#feed-refusal:not([hidden])")
            page.fill("#key", FOREIGN_KEY)
            page.press("#key", "Enter")
            page.wait_for_selector("#nothing:text-is('No model is served.')")
            assert page.is_hidden("#feed-refusal")
        page.wait_for_selector("#feed-refusal:not([hidden])")
        assert page.inner_text("#live-text") == "no answer"
