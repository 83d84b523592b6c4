"""Dependencies point one way: every import statement of `app` is read and held against a table."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "app").rglob("*.py"))

# The rooms of app/, the lowest first: a module imports from its own room and from those that its
# room's row names. First match counts. `{here}` is the task's own package: one task never imports
# another.
ENGINE = (
    "app.awaiting",
    "app.contracts",
    "app.process",
    "app.repository",
    "app.resources",
    "app.engine",
)
PORTS = ("app.contracts", "app.repository.config")
EDGE = (
    "app.api",
    "app.contracts",
    "app.dataplane",
    "app.observability",
    "app.settings",
)
DOORS_SEE = (
    "segment.options",
    "segment.request",
    "segment.router",
    "segment.settings",
    "sentiment.router",
    "sentiment.texts",
)
OFFLINE = (
    "app.backends",
    "app.comparison",
    "app.export",
    "app.pipelines",
    "app.programs",
    "app.quality",
    "app.sources",
)

MAY_IMPORT: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("app.contracts*", ("app.contracts",)),
    ("app.process*", ("app.contracts", "app.process", "app.resources")),
    ("app.repository*", ("app.contracts", "app.repository", "app.resources")),
    ("app.evidence*", ("app.contracts", "app.evidence")),
    (
        "app.observability*",
        ("app.contracts", "app.resources", "app.observability"),
    ),
    ("app.door_settings", ()),
    ("app.resources", ()),
    ("app.settings", ("app.contracts.errors", "app.door_settings")),
    ("app.awaiting", ()),
    ("app.extras", ("app.contracts",)),
    ("app.engine.queue*", ("app.contracts", "app.engine.queue")),
    (
        "app.engine.pool*",
        (
            "app.awaiting",
            "app.contracts",
            "app.process",
            "app.repository",
            "app.resources",
            "app.engine.queue",
            "app.engine.pool",
        ),
    ),
    ("app.engine*", ENGINE),
    (
        "app.codecs*",
        (
            "app.awaiting",
            "app.contracts",
            "app.process",
            "app.engine.queue",
            "app.engine.pool",
            "app.codecs",
        ),
    ),
    ("app.sources*", ("app.contracts", "app.repository", "app.sources")),
    ("app.networks*", ("app.contracts", "app.repository", "app.networks")),
    ("app.export*", (*ENGINE, "app.evidence", "app.export", "app.networks")),
    ("app.backends.paddle_*", ("app.contracts", "app.backends", "app.networks")),
    ("app.backends*", ("app.contracts", "app.process", "app.backends")),
    (
        "app.programs*",
        ("app.contracts", "app.repository", "app.export", "app.backends", "app.programs"),
    ),
    ("app.workers", ("app.codecs",)),
    ("app.dataplane", ("app.awaiting", "app.contracts", "app.engine")),
    ("app.quality*", ("app.contracts", "app.repository", "app.evidence", "app.quality")),
    ("app.live*", (*ENGINE, "app.evidence", "app.live")),
    ("app.comparison*", (*ENGINE, "app.evidence", "app.observability", "app.comparison")),
    ("app.pipelines.*.router", (*EDGE, *PORTS, "app.codecs", "{here}")),
    ("app.pipelines.*.settings", ("app.settings",)),
    ("app.pipelines.*.tensors", (*PORTS, "app.settings", "{here}")),
    ("app.pipelines.*.task", (*PORTS, "app.pipelines.task", "app.quality.ports", "{here}")),
    ("app.pipelines.*.evaluation", (*PORTS, "app.codecs", "app.quality", "{here}")),
    ("app.pipelines.*.*", (*PORTS, "app.awaiting", "app.codecs", "app.settings", "{here}")),
    (
        "app.pipelines.task",
        (
            "app.comparison.tasks",
            "app.contracts",
            "app.quality.ports",
            "app.settings",
            "app.workers",
        ),
    ),
    ("app.pipelines.*", ()),
    ("app.pipelines", ()),
    ("app.api*", (*EDGE, "app.engine", "app.repository", "app.resources")),
    # Each translates to one task: to its request, and to what answers it.
    (
        "app.doors*",
        (*EDGE, "app.doors", *(f"app.pipelines.{module}" for module in DOORS_SEE)),
    ),
    ("app.rpc*", (*EDGE, "app.rpc")),
    ("app.server*", ("app.api", "app.contracts", "app.server", "app.settings")),
    ("app.scale*", ("app.api.errors", "app.api.problems", "app.scale", "app.settings")),
    ("app.commands.serve", ("app",)),
    ("app.commands.ray", ("app.contracts.errors", "app.scale")),
    ("app.commands*", (*ENGINE, *OFFLINE, "app.commands", "app.settings")),
    ("app.cli", ("app.contracts.errors", "app.commands")),
    (
        "app.application",
        (*EDGE, "app.doors.door", "app.engine", "app.resources", "app.pipelines.task"),
    ),
    ("app.main", ("app",)),
    ("app", ()),
)

HTTP = ("fastapi", "starlette", "uvicorn", "httptools", "httpx")
PADDLE = ("paddle",)
FRAMEWORKS = (*PADDLE, "onnxruntime", "openvino", "onnx", "torch")
PICTURES = ("PIL", "cv2")
TEXTS = ("tokenizers",)

MAY_NOT_IMPORT: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("app.contracts*", (*HTTP, *FRAMEWORKS, *PICTURES, *TEXTS, "asyncio", "pydantic")),
    ("app.process*", (*HTTP, *FRAMEWORKS, *PICTURES, *TEXTS, "asyncio", "pydantic")),
    ("app.engine*", (*HTTP, *FRAMEWORKS, *PICTURES, *TEXTS, "prometheus_client")),
    ("app.dataplane", (*HTTP, *FRAMEWORKS, *PICTURES, *TEXTS, "prometheus_client", "pydantic")),
    ("app.observability*", (*HTTP, *FRAMEWORKS, *PICTURES, *TEXTS)),
    ("app.settings", (*HTTP, *FRAMEWORKS, *PICTURES, *TEXTS)),
    ("app.door_settings", (*HTTP, *FRAMEWORKS, *PICTURES, *TEXTS)),
    ("app.api*", (*FRAMEWORKS, *PICTURES, *TEXTS)),
    ("app.doors*", (*FRAMEWORKS, *PICTURES, *TEXTS)),
    # A task's edge: its endpoint, and the reading of its request's body.
    ("app.pipelines.*.router", (*FRAMEWORKS, *PICTURES, *TEXTS)),
    ("app.pipelines.*.form", (*FRAMEWORKS, *PICTURES, *TEXTS)),
    ("app.pipelines*", (*HTTP, *FRAMEWORKS, "prometheus_client")),
    ("app.codecs*", (*HTTP, *FRAMEWORKS, *TEXTS, "prometheus_client")),
    ("app.backends*", (*HTTP, *PICTURES, *TEXTS, "asyncio", "prometheus_client")),
    ("app.comparison*", (*HTTP, *FRAMEWORKS, *PICTURES, *TEXTS)),
    ("app.networks*", (*HTTP, *PICTURES, *TEXTS, "asyncio")),
    ("app.quality*", (*HTTP, *FRAMEWORKS, *TEXTS, "asyncio", "prometheus_client")),
    ("app.export*", ("fastapi", "starlette", "uvicorn", "httptools", "prometheus_client")),
    ("app.main", FRAMEWORKS),
)

PADDLE_LIVES_IN = ("app.backends.paddle_*", "app.networks*", "app.export*")


@dataclass(frozen=True)
class Import:
    """One imported module, where, and whether only when a function is called."""

    importer: str
    imported: str
    line: int
    in_function: bool

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.imported}"


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in SOURCES}


def imports_of(name: str) -> Iterator[Import]:
    """Every import statement of a module, also those in functions and under TYPE_CHECKING."""
    tree = ast.parse(MODULES[name].read_text("utf-8"))
    functions = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    inside = {id(node) for function in functions for node in ast.walk(function)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}:{node.lineno} has a relative import"
            source = str(node.module)
            # `from app import errors` imports the module app.contracts.errors.
            members = [f"{source}.{alias.name}" for alias in node.names]
            found = [member if member in MODULES else source for member in members]
        else:
            continue
        for imported in dict.fromkeys(found):
            yield Import(name, imported, node.lineno, id(node) in inside)


ALL = [found for name in MODULES for found in imports_of(name)]


def within(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


def rows(table: tuple[tuple[str, tuple[str, ...]], ...], name: str) -> list[tuple[str, ...]]:
    return [value for pattern, value in table if fnmatchcase(name, pattern)]


def test_there_is_something_to_check() -> None:
    """The table is held against the real tree, and the parser sees what is in it."""
    assert len(MODULES) > 40
    assert "app.pipelines.sentiment.router" in MODULES
    assert any(f.imported == "tokenizers" for f in ALL)
    assert any(f.imported == "paddle" and f.in_function is False for f in ALL)


def test_imports_point_inward() -> None:
    """main → api and routers → data plane → engine ← backends; errors and settings are leaves."""
    wrong = [
        f"{name} is new: add it to MAY_IMPORT" for name in MODULES if not rows(MAY_IMPORT, name)
    ]
    for found in ALL:
        here = ".".join(found.importer.split(".")[:3])
        allowed = [each.format(here=here) for each in (*rows(MAY_IMPORT, found.importer), ())[0]]
        inside = within(found.imported, "app") and found.imported != "app"
        if inside and not any(within(found.imported, prefix) for prefix in allowed):
            wrong.append(str(found))
    assert wrong == []


def room_of(name: str) -> str:
    """The directory that a module lies in; modules of `app` itself are rooms of their own."""
    is_package = MODULES[name].name == "__init__.py"
    package = name if is_package else name.rpartition(".")[0]
    return name if package == "app" else package


def test_no_two_rooms_import_each_other() -> None:
    """Neither directly nor through others: CycleError names the rooms."""
    graph: dict[str, set[str]] = {room_of(name): set() for name in MODULES}
    for found in ALL:
        if found.imported in MODULES:
            graph[room_of(found.importer)].add(room_of(found.imported))
    for room, below in graph.items():
        below.discard(room)
    assert tuple(TopologicalSorter(graph).static_order())


def test_no_module_and_no_room_is_large() -> None:
    """500 lines a module; a tenth of all lines for the modules of one directory."""
    lines = {name: path.read_text("utf-8").count("\n") for name, path in MODULES.items()}
    assert {name: count for name, count in lines.items() if count > 500} == {}
    rooms: Counter[str] = Counter()
    for name, path in MODULES.items():
        rooms[str(path.parent.relative_to(ROOT))] += lines[name]
    most = rooms.total() // 10
    assert {room: count for room, count in rooms.items() if count > most} == {}


def forbidden_to(name: str) -> tuple[str, ...]:
    if name.endswith((".router", ".form")):
        return rows(MAY_NOT_IMPORT, name)[0]
    if name.startswith("app.pipelines.") and name.count(".") == 2:
        return ("asyncio", *FRAMEWORKS, *PICTURES, *TEXTS)  # FastAPI's types, for endpoints()
    return tuple(module for row in rows(MAY_NOT_IMPORT, name) for module in row)


def test_frameworks_stay_at_the_edges() -> None:
    """FastAPI in api/ and router.py, Pillow and OpenCV in codecs, no asyncio in child processes."""
    forbidden = {name: forbidden_to(name) for name in MODULES}
    assert [
        str(found)
        for found in ALL
        if any(within(found.imported, module) for module in forbidden[found.importer])
    ] == []


def test_nobody_imports_main() -> None:
    """Only the command that starts the server does, when it runs."""
    importers = {f.importer for f in ALL if within(f.imported, "app.main")}
    assert importers <= {"app.commands.serve"}
    assert all(f.in_function for f in ALL if within(f.imported, "app.main"))


def test_paddle_lives_in_three_places() -> None:
    """backends/paddle_*, networks and export; elsewhere only in functions of offline commands."""
    users = [f for f in ALL if within(f.imported, "paddle")]
    wrong = [
        str(found)
        for found in users
        if not any(fnmatchcase(found.importer, pattern) for pattern in PADDLE_LIVES_IN)
        and not (within(found.importer, "app.commands") and found.in_function)
    ]
    assert not wrong
    # What imports Paddle when it is itself imported may be imported only by its like,
    # or when an offline command runs.
    heavy = {found.importer for found in users if not found.in_function}
    reached = [
        str(found)
        for found in ALL
        if found.imported in heavy
        and not any(fnmatchcase(found.importer, pattern) for pattern in PADDLE_LIVES_IN)
        and not (within(found.importer, "app.commands") and found.in_function)
    ]
    assert not reached


def test_ray_is_imported_only_when_it_is_used() -> None:
    """It takes a second and 150 MB: nothing leads to it but its own command, when that runs."""
    users = [found for found in ALL if within(found.imported, "ray")]
    assert {found.importer for found in users} == {"app.scale.ray", "app.commands.ray"}
    reached = [found for found in ALL if found.imported == "app.scale.ray"] + users
    wrong = [f for f in reached if f.importer != "app.scale.ray" and not f.in_function]
    assert reached
    assert not wrong


def test_no_task_is_known_by_name_outside_its_package() -> None:
    """PIPELINES is the one place that names the packages; everything else goes through it, but for
    doors: a format is that of a task."""
    importers = {
        found.importer
        for found in ALL
        if found.imported.startswith("app.pipelines.")
        and found.imported != "app.pipelines.task"
        and not within(found.importer, "app.doors")
        and not within(found.importer, ".".join(found.imported.split(".")[:3]))
    }
    assert not importers


@pytest.mark.slow
@pytest.mark.parametrize("module", ["app.main", "app.commands.serve", "app.cli"])
def test_the_api_process_never_imports_paddle_or_a_picture_decoder(module: str) -> None:
    """Importing the server, every task's endpoint and pipeline included, loads none of them."""
    program = f"""
import importlib, sys
importlib.import_module({module!r})
from app.pipelines import PIPELINES
from app.pipelines.task import load_tasks, settings_class
tasks = load_tasks(PIPELINES)
for task in tasks.values():
    task.endpoints(settings_class(tasks.values())())
decoders = {{"paddle", "cv2", "torch", "onnxruntime", "PIL.JpegImagePlugin", "PIL.PngImagePlugin"}}
print(sorted(decoders & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_the_server_does_not_import_the_client() -> None:
    """`paddlepool segment` loads it by name; the server knows nothing of it."""
    assert not [found for found in ALL if within(found.imported, "paddlepool_client")]


def test_the_client_imports_nothing_but_httpx() -> None:
    """Neither `app` nor what the server is made of: it is a distribution of its own. Its commands
    have progress bars besides; `opentelemetry` is used where the caller has loaded it."""
    sources = sorted((ROOT / "clients" / "python" / "src").rglob("*.py"))
    assert any(source.parent.name == "commands" for source in sources)
    names = {
        name.partition(".")[0]
        for source in sources
        for node in ast.walk(ast.parse(source.read_text("utf-8")))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [str(node.module)]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    ours = {"httpx", "opentelemetry", "paddlepool_client", "tqdm"}
    assert names - set(sys.stdlib_module_names) == ours


def test_the_code_map_names_every_part_of_the_package() -> None:
    """ARCHITECTURE.md leaves out no module or package of `app` itself."""
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    parts = {f"`app/{path.name}`" for path in (ROOT / "app").glob("[!_]*.py")}
    parts |= {f"`app/{path.parent.name}/" for path in (ROOT / "app").glob("*/__init__.py")}
    assert {part for part in parts if part not in text} == set()
