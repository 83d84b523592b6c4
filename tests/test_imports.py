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
    "app.engine.awaiting",
    "app.contracts",
    "app.engine.process",
    "app.models.repository",
    "app.contracts.resources",
    "app.engine",
)
PORTS = ("app.contracts", "app.models.repository.config")
EDGE = (
    "app.service.api",
    "app.contracts",
    "app.engine.dataplane",
    "app.observability",
    "app.settings.server",
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
    "app.engine.backends",
    "app.evidence.comparison",
    "app.making.export",
    "app.tasks",
    "app.making.programs",
    "app.evidence.quality",
    "app.models.sources",
)

MAY_IMPORT: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("app.contracts*", ("app.contracts",)),
    ("app.engine.process*", ("app.contracts", "app.engine.process", "app.contracts.resources")),
    (
        "app.models.repository*",
        ("app.contracts", "app.models.repository", "app.contracts.resources"),
    ),
    ("app.evidence.verdict*", ("app.contracts", "app.evidence.verdict")),
    (
        "app.observability*",
        ("app.contracts", "app.contracts.resources", "app.observability"),
    ),
    ("app.settings.door", ()),
    ("app.contracts.resources", ()),
    ("app.settings.server", ("app.contracts.errors", "app.settings.door")),
    ("app.engine.awaiting", ()),
    ("app.contracts.extras", ("app.contracts",)),
    ("app.engine.queue*", ("app.contracts", "app.engine.queue")),
    (
        "app.engine.pool*",
        (
            "app.engine.awaiting",
            "app.contracts",
            "app.engine.process",
            "app.models.repository",
            "app.contracts.resources",
            "app.engine.queue",
            "app.engine.pool",
        ),
    ),
    ("app.engine*", ENGINE),
    (
        "app.tasks.codecs*",
        (
            "app.engine.awaiting",
            "app.contracts",
            "app.engine.process",
            "app.engine.queue",
            "app.engine.pool",
            "app.tasks.codecs",
        ),
    ),
    ("app.models.sources*", ("app.contracts", "app.models.repository", "app.models.sources")),
    ("app.models.networks*", ("app.contracts", "app.models.repository", "app.models.networks")),
    (
        "app.making.export*",
        (*ENGINE, "app.evidence.verdict", "app.making.export", "app.models.networks"),
    ),
    (
        "app.engine.backends.paddle_*",
        ("app.contracts", "app.engine.backends", "app.models.networks"),
    ),
    ("app.engine.backends*", ("app.contracts", "app.engine.process", "app.engine.backends")),
    (
        "app.making.programs*",
        (
            "app.contracts",
            "app.models.repository",
            "app.making.export",
            "app.engine.backends",
            "app.making.programs",
        ),
    ),
    ("app.tasks.workers", ("app.tasks.codecs",)),
    ("app.engine.dataplane", ("app.engine.awaiting", "app.contracts", "app.engine")),
    (
        "app.evidence.quality*",
        ("app.contracts", "app.models.repository", "app.evidence.verdict", "app.evidence.quality"),
    ),
    ("app.evidence.live*", (*ENGINE, "app.evidence.verdict", "app.evidence.live")),
    (
        "app.evidence.comparison*",
        (*ENGINE, "app.evidence.verdict", "app.observability", "app.evidence.comparison"),
    ),
    ("app.tasks.*.router", (*EDGE, *PORTS, "app.tasks.codecs", "{here}")),
    ("app.tasks.*.settings", ("app.settings.server",)),
    ("app.tasks.*.tensors", (*PORTS, "app.settings.server", "{here}")),
    ("app.tasks.*.task", (*PORTS, "app.tasks.task", "app.evidence.quality.ports", "{here}")),
    ("app.tasks.*.evaluation", (*PORTS, "app.tasks.codecs", "app.evidence.quality", "{here}")),
    (
        "app.tasks.*.*",
        (*PORTS, "app.engine.awaiting", "app.tasks.codecs", "app.settings.server", "{here}"),
    ),
    (
        "app.tasks.task",
        (
            "app.evidence.comparison.tasks",
            "app.contracts",
            "app.evidence.quality.ports",
            "app.settings.server",
            "app.tasks.workers",
        ),
    ),
    ("app.tasks.*", ()),
    ("app.tasks", ()),
    ("app.service.api*", (*EDGE, "app.engine", "app.models.repository", "app.contracts.resources")),
    # Each translates to one task: to its request, and to what answers it.
    (
        "app.doors*",
        (*EDGE, "app.doors", *(f"app.tasks.{module}" for module in DOORS_SEE)),
    ),
    ("app.service.grpc*", (*EDGE, "app.service.grpc")),
    (
        "app.service.server*",
        ("app.service.api", "app.contracts", "app.service.server", "app.settings.server"),
    ),
    (
        "app.service.scale*",
        (
            "app.service.api.errors",
            "app.service.api.problems",
            "app.service.scale",
            "app.settings.server",
        ),
    ),
    ("app.cli.serve", ("app",)),
    ("app.cli.ray", ("app.contracts.errors", "app.service.scale")),
    ("app.cli*", (*ENGINE, *OFFLINE, "app.cli", "app.settings.server")),
    ("app.cli", ("app.contracts.errors", "app.cli")),
    (
        "app.application",
        (*EDGE, "app.doors.door", "app.engine", "app.contracts.resources", "app.tasks.task"),
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
    ("app.engine.process*", (*HTTP, *FRAMEWORKS, *PICTURES, *TEXTS, "asyncio", "pydantic")),
    ("app.engine*", (*HTTP, *FRAMEWORKS, *PICTURES, *TEXTS, "prometheus_client")),
    (
        "app.engine.dataplane",
        (*HTTP, *FRAMEWORKS, *PICTURES, *TEXTS, "prometheus_client", "pydantic"),
    ),
    ("app.observability*", (*HTTP, *FRAMEWORKS, *PICTURES, *TEXTS)),
    ("app.settings.server", (*HTTP, *FRAMEWORKS, *PICTURES, *TEXTS)),
    ("app.settings.door", (*HTTP, *FRAMEWORKS, *PICTURES, *TEXTS)),
    ("app.service.api*", (*FRAMEWORKS, *PICTURES, *TEXTS)),
    ("app.doors*", (*FRAMEWORKS, *PICTURES, *TEXTS)),
    # A task's edge: its endpoint, and the reading of its request's body.
    ("app.tasks.*.router", (*FRAMEWORKS, *PICTURES, *TEXTS)),
    ("app.tasks.*.form", (*FRAMEWORKS, *PICTURES, *TEXTS)),
    ("app.tasks*", (*HTTP, *FRAMEWORKS, "prometheus_client")),
    ("app.tasks.codecs*", (*HTTP, *FRAMEWORKS, *TEXTS, "prometheus_client")),
    ("app.engine.backends*", (*HTTP, *PICTURES, *TEXTS, "asyncio", "prometheus_client")),
    ("app.evidence.comparison*", (*HTTP, *FRAMEWORKS, *PICTURES, *TEXTS)),
    ("app.models.networks*", (*HTTP, *PICTURES, *TEXTS, "asyncio")),
    ("app.evidence.quality*", (*HTTP, *FRAMEWORKS, *TEXTS, "asyncio", "prometheus_client")),
    ("app.making.export*", ("fastapi", "starlette", "uvicorn", "httptools", "prometheus_client")),
    ("app.main", FRAMEWORKS),
)

PADDLE_LIVES_IN = ("app.engine.backends.paddle_*", "app.models.networks*", "app.making.export*")


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
    assert "app.tasks.sentiment.router" in MODULES
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
    if name.startswith("app.tasks.") and name.count(".") == 2:
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
    assert importers <= {"app.cli.serve"}
    assert all(f.in_function for f in ALL if within(f.imported, "app.main"))


def test_paddle_lives_in_three_places() -> None:
    """backends/paddle_*, networks and export; elsewhere only in functions of offline commands."""
    users = [f for f in ALL if within(f.imported, "paddle")]
    wrong = [
        str(found)
        for found in users
        if not any(fnmatchcase(found.importer, pattern) for pattern in PADDLE_LIVES_IN)
        and not (within(found.importer, "app.cli") and found.in_function)
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
        and not (within(found.importer, "app.cli") and found.in_function)
    ]
    assert not reached


def test_ray_is_imported_only_when_it_is_used() -> None:
    """It takes a second and 150 MB: nothing leads to it but its own command, when that runs."""
    users = [found for found in ALL if within(found.imported, "ray")]
    assert {found.importer for found in users} == {"app.service.scale.ray", "app.cli.ray"}
    reached = [found for found in ALL if found.imported == "app.service.scale.ray"] + users
    wrong = [f for f in reached if f.importer != "app.service.scale.ray" and not f.in_function]
    assert reached
    assert not wrong


def test_no_task_is_known_by_name_outside_its_package() -> None:
    """PIPELINES is the one place that names the packages; everything else goes through it, but for
    doors: a format is that of a task."""
    importers = {
        found.importer
        for found in ALL
        if found.imported.startswith("app.tasks.")
        and found.imported != "app.tasks.task"
        and not within(found.importer, "app.doors")
        and not within(found.importer, ".".join(found.imported.split(".")[:3]))
    }
    assert not importers


@pytest.mark.slow
@pytest.mark.parametrize("module", ["app.main", "app.cli.serve", "app.cli"])
def test_the_api_process_never_imports_paddle_or_a_picture_decoder(module: str) -> None:
    """Importing the server, every task's endpoint and pipeline included, loads none of them."""
    program = f"""
import importlib, sys
importlib.import_module({module!r})
from app.tasks import PIPELINES
from app.tasks.task import load_tasks, settings_class
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
