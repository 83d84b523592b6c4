"""Documents stay short, and their links lead somewhere."""

import re
import tomllib
from pathlib import Path

import pytest

from tests.ran import ROOT, ran

PAGES = [ROOT / name for name in ran(["git", "ls-files", "*.md"]).stdout.splitlines()]
PACKAGE = ROOT / "app" / "paddlepool"
DOCS = sorted((ROOT / "docs").rglob("*.md"))
MOST_LINES = 250


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives a page's headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.M | re.S)
    titles = re.findall(r"^#+ (.+)$", text, re.M)
    made = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
    return made | set(re.findall(r'<a (?:id|name)="([^"]+)"', text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```|`[^`\n]*`", "", page.read_text("utf-8"), flags=re.M | re.S)
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (
            anchor and target.suffix == ".md" and anchor not in anchors(target)
        ):
            broken.append(link)
    assert broken == []


def test_links_to_the_repository_itself_lead_somewhere() -> None:
    """Pages that are read outside the checkout have absolute ones."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    own = re.escape(project["urls"]["Source"]) + r"/(?:blob|raw|tree)/main/([^)#\s\"]+)"
    files = [*PAGES, ROOT / "pyproject.toml", ROOT / "clients" / "python" / "pyproject.toml"]
    named = {path for file in files for path in re.findall(own, file.read_text("utf-8"))}
    assert {"CHANGELOG.md", "clients/python"} <= named
    assert {path for path in named if not (ROOT / path).exists()} == set()


def test_no_page_is_long() -> None:
    lengths = {page.name: page.read_text("utf-8").count("\n") for page in DOCS}
    assert len(lengths) > 10
    assert {name: count for name, count in lengths.items() if count > MOST_LINES} == {}


def test_the_manual_names_every_page() -> None:
    for folder in (ROOT / "docs", ROOT / "docs" / "decisions"):
        index = (folder / "README.md").read_text("utf-8")
        names = {page.name for page in folder.glob("*.md")} - {"README.md"}
        assert names
        assert {name for name in names if f"({name})" not in index} == set()


@pytest.mark.parametrize("page", [page for page in PAGES if page.name.endswith(".zh.md")], ids=str)
def test_commands_of_a_chinese_page_are_those_of_the_english_one(page: Path) -> None:
    """Block by block; only comments are translated."""

    def commands(page: Path) -> list[str]:
        blocks = re.findall(r"^```(.*?)^```$", page.read_text("utf-8"), re.M | re.S)
        return [re.sub(r" *# .*$", "", block, flags=re.M) for block in blocks]

    assert commands(page) == commands(page.with_name(page.name.replace(".zh", "")))


def test_the_code_that_a_page_names_is_there() -> None:
    """The changelog and decisions may name what is gone."""
    pages = [p for p in PAGES if p.name != "CHANGELOG.md" and p.parent.name != "decisions"]
    texts = "\n".join(page.read_text("utf-8") for page in pages)
    roots = dict.fromkeys(("app", "deploy", "loadtest", "tests", "training"), ROOT)
    roots |= {path.parent.name: PACKAGE for path in PACKAGE.glob("*/__init__.py")}
    named = [
        (folder, roots[folder] / (folder + rest))
        for folder, rest in set(re.findall(r"`([a-z]+)(/[\w./-]+)`", texts))
        if folder in roots
    ]
    assert {"deploy", "loadtest", "tests", "training", "engine"} <= {folder for folder, _ in named}
    missing = [path for _, path in named if not path.exists()]
    assert missing == [ROOT / "deploy/haproxy/tls.pem"]  # the operator writes it
