"""Imports point down: every import statement of the package is held against a table of layers."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from graphlib import TopologicalSorter
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.ran import ROOT, ran

PACKAGE = ROOT / "app" / "paddlepool"
SOURCES = sorted(PACKAGE.rglob("*.py"))

# The layers of the package, the lowest first. A layer imports from itself and from the layers that
# its row names, which stand above it in this table. `making`, `evidence` and `service` do not know
# each other; the engine knows neither settings nor metrics.
LAYERS: dict[str, list[str]] = {
    layer: below.split()
    for layer, below in {
        "contracts": "",
        "settings": "contracts",
        "observability": "contracts",
        "models": "contracts",
        "engine": "contracts models",
        "making": "contracts models engine",
        "evidence": "contracts observability models engine",
        "service": "contracts settings observability models engine",
        "tasks": "contracts settings models engine evidence service",
        "codec": "contracts tasks",
        "compat": "contracts settings service tasks",
        "plugin": "contracts settings models engine service tasks compat",
        "application": "contracts settings service tasks compat",
        "main": "contracts settings observability models engine evidence service tasks application",
        "cli": "contracts settings observability models engine making evidence service tasks main",
    }.items()
}

HTTP = ("fastapi", "starlette", "uvicorn", "httptools", "httpx")
PADDLE = ("paddle",)
FRAMEWORKS = (*PADDLE, "onnxruntime", "openvino", "onnx", "torch")
PICTURES = ("PIL", "cv2")
TEXTS = ("tokenizers",)

MAY_NOT_IMPORT: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("paddlepool.contracts*", (*HTTP, *FRAMEWORKS, *PICTURES, *TEXTS, "asyncio", "pydantic")),
    ("paddlepool.settings*", (*HTTP, *FRAMEWORKS, *PICTURES, *TEXTS)),
    ("paddlepool.observability*", (*HTTP, *FRAMEWORKS, *PICTURES, *TEXTS)),
    ("paddlepool.models.networks*", (*HTTP, *PICTURES, *TEXTS, "asyncio")),
    ("paddlepool.engine*", (*HTTP, *PICTURES, *TEXTS, "prometheus_client")),
    ("paddlepool.engine.[!b]*", FRAMEWORKS),  # everywhere but in backends
    ("paddlepool.engine.backends*", ("asyncio",)),
    ("paddlepool.engine.process*", ("asyncio", "pydantic")),
    ("paddlepool.engine.dataplane", ("pydantic",)),
    (
        "paddlepool.making.export*",
        ("fastapi", "starlette", "uvicorn", "httptools", "prometheus_client"),
    ),
    ("paddlepool.evidence*", (*HTTP, *FRAMEWORKS, *TEXTS)),
    ("paddlepool.evidence.comparison*", PICTURES),
    ("paddlepool.evidence.quality*", ("asyncio", "prometheus_client")),
    ("paddlepool.service*", (*FRAMEWORKS, *PICTURES, *TEXTS)),
    ("paddlepool.compat*", (*FRAMEWORKS, *PICTURES, *TEXTS)),
    ("paddlepool.tasks.*.router", (*FRAMEWORKS, *PICTURES, *TEXTS)),  # a task's endpoint
    # The rest of a task knows no HTTP, neither the framework's nor the server's.
    ("paddlepool.tasks*", (*HTTP, *FRAMEWORKS, "prometheus_client", "paddlepool.service")),
    ("paddlepool.tasks.codecs*", TEXTS),
    ("paddlepool.codec", (*HTTP, *FRAMEWORKS, *TEXTS, "asyncio", "pydantic")),
    ("paddlepool.plugin", (*FRAMEWORKS, *PICTURES, *TEXTS)),
    ("paddlepool.application", (*FRAMEWORKS, *PICTURES, *TEXTS)),
    ("paddlepool.main", FRAMEWORKS),
)

PADDLE_LIVES_IN = (
    "paddlepool.engine.backends.paddle_*",
    "paddlepool.models.networks*",
    "paddlepool.making.export*",
)


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
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
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
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}:{node.lineno} has a relative import"
            source = str(node.module)
            # `from paddlepool import errors` imports the module paddlepool.contracts.errors.
            members = [f"{source}.{alias.name}" for alias in node.names]
            names = [member if member in MODULES else source for member in members]
        else:
            continue
        for imported in dict.fromkeys(names):
            yield Import(name, imported, node.lineno, id(node) in inside)


ALL = [entry for name in MODULES for entry in imports_of(name)]


def within(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


def rows(table: tuple[tuple[str, tuple[str, ...]], ...], name: str) -> list[tuple[str, ...]]:
    return [value for pattern, value in table if fnmatchcase(name, pattern)]


def layer_of(name: str) -> str:
    """`paddlepool.engine.queue.batcher` belongs to `engine`; the package itself to no layer."""
    return name.partition(".")[2].partition(".")[0]


def test_a_layer_imports_only_from_layers_below_it() -> None:
    """As LAYERS says: no arrow that it lacks, none that no module uses any more."""
    names = list(LAYERS)
    for place, (layer, below) in enumerate(LAYERS.items()):
        assert set(below) <= set(names[:place]), f"{layer} imports upwards"
    assert {layer_of(name) for name in MODULES} - {""} == set(LAYERS)
    wrong, used = [], set()
    for entry in ALL:
        if entry.imported not in MODULES or entry.imported == "paddlepool":
            continue
        arrow = (layer_of(entry.importer), layer_of(entry.imported))
        if arrow[0] != arrow[1]:
            used.add(arrow)
            if arrow[1] not in LAYERS[arrow[0]]:
                wrong.append(str(entry))
    assert wrong == []
    assert {(layer, lower) for layer, below in LAYERS.items() for lower in below} == used


def package_of(name: str) -> str:
    """Return the directory of a module. A module beside packages counts as a package of its own."""
    is_package = MODULES[name].name == "__init__.py"
    package = name if is_package else name.rpartition(".")[0]
    has_packages = package == "paddlepool" or (
        package.count(".") == 1 and any(MODULES[name].parent.glob("*/__init__.py"))
    )
    return name if has_packages else package


def test_no_two_packages_import_each_other() -> None:
    """Neither directly nor through others: CycleError names the packages."""
    graph: dict[str, set[str]] = {package_of(name): set() for name in MODULES}
    for entry in ALL:
        if entry.imported in MODULES:
            graph[package_of(entry.importer)].add(package_of(entry.imported))
    for package_name, below in graph.items():
        below.discard(package_name)
    assert tuple(TopologicalSorter(graph).static_order())


def test_no_module_and_no_package_is_large() -> None:
    """500 lines a module; a tenth of all lines for the modules of one directory."""
    lines = {name: path.read_text("utf-8").count("\n") for name, path in MODULES.items()}
    assert {name: count for name, count in lines.items() if count > 500} == {}
    packages: Counter[str] = Counter()
    for name, path in MODULES.items():
        packages[str(path.parent.relative_to(PACKAGE))] += lines[name]
    most = packages.total() // 10
    assert {package_name: count for package_name, count in packages.items() if count > most} == {}


def forbidden_to(name: str) -> tuple[str, ...]:
    if name.endswith(".router"):
        return rows(MAY_NOT_IMPORT, name)[0]
    if name == "paddlepool.tasks.task":
        # FastAPI's types, for endpoints()
        return ("asyncio", "paddlepool.service", *FRAMEWORKS, *PICTURES, *TEXTS)
    return tuple(module for row in rows(MAY_NOT_IMPORT, name) for module in row)


def test_frameworks_stay_at_the_edges() -> None:
    """FastAPI in api/ and router.py, Pillow and OpenCV in codecs, no asyncio in child processes."""
    forbidden = {name: forbidden_to(name) for name in MODULES}
    assert [
        str(entry)
        for entry in ALL
        if any(within(entry.imported, module) for module in forbidden[entry.importer])
    ] == []


def test_every_rule_matches_a_module_and_a_package() -> None:
    """A rule about a name that nothing has would allow everything."""
    patterns = [*(pattern for pattern, _ in MAY_NOT_IMPORT), *PADDLE_LIVES_IN]
    assert [
        name for name in patterns if not any(fnmatchcase(module, name) for module in MODULES)
    ] == []
    packages = {package for _, row in MAY_NOT_IMPORT for package in row}
    packages -= {"torch", *MODULES}  # torch is installed for training alone
    assert [package for package in packages if find_spec(package) is None] == []
    paddle_users = {entry.importer for entry in ALL if within(entry.imported, "paddle")}
    for pattern in PADDLE_LIVES_IN:
        assert any(fnmatchcase(name, pattern) for name in paddle_users), pattern


def test_nobody_imports_main() -> None:
    """Only the commands that start a server or open a composed model do, when they run."""
    importers = {f.importer for f in ALL if within(f.imported, "paddlepool.main")}
    assert importers == {"paddlepool.cli.serve", "paddlepool.cli.composed"}
    heavy = ("paddlepool.main", "paddlepool.cli.composed")
    late = [f for f in ALL if f.imported.startswith(heavy) and f.importer not in heavy]
    assert all(f.in_function for f in late)


def test_paddle_lives_in_three_places() -> None:
    """backends/paddle_*, networks and export; elsewhere only in functions of offline commands."""
    users = [entry for entry in ALL if within(entry.imported, "paddle")]
    # What imports Paddle when it is itself imported may be imported only by its like,
    # or when an offline command runs.
    heavy = {entry.importer for entry in users if not entry.in_function}
    wrong = [
        str(entry)
        for entry in ALL
        if (entry in users or entry.imported in heavy)
        and not any(fnmatchcase(entry.importer, pattern) for pattern in PADDLE_LIVES_IN)
        and not (within(entry.importer, "paddlepool.cli") and entry.in_function)
    ]
    assert not wrong


def test_ray_is_imported_only_when_it_is_used() -> None:
    """It takes a second and 150 MB: nothing leads to it but its own command, when that runs."""
    users = [entry for entry in ALL if within(entry.imported, "ray")]
    assert {entry.importer for entry in users} == {
        "paddlepool.service.scale.ray",
        "paddlepool.cli.ray",
    }
    reached = [entry for entry in ALL if entry.imported == "paddlepool.service.scale.ray"] + users
    wrong = [
        f for f in reached if f.importer != "paddlepool.service.scale.ray" and not f.in_function
    ]
    assert reached
    assert not wrong


def test_no_task_is_known_by_name_outside_its_package() -> None:
    """Except in PIPELINES, and in `compat`: a format is that of a task."""
    tasks = {name.removesuffix(".task") for name in MODULES if name.endswith(".task")}
    tasks.remove("paddlepool.tasks")
    assert "paddlepool.tasks.segment" in tasks
    importers = {
        entry.importer
        for entry in ALL
        for task in tasks
        if within(entry.imported, task)
        and not within(entry.importer, task)
        and not within(entry.importer, "paddlepool.compat")
    }
    assert not importers


@pytest.mark.slow
def test_the_api_process_never_imports_paddle_or_a_picture_decoder() -> None:
    """Nor gRPC, which has a port of its own."""
    program = """
import sys
import paddlepool.cli, paddlepool.cli.serve, paddlepool.main
from paddlepool.tasks import PIPELINES
from paddlepool.tasks.task import load_tasks, settings_class
tasks = load_tasks(PIPELINES)
for task in tasks.values():
    task.endpoints(settings_class(tasks.values())())
heavy = {"paddle", "cv2", "torch", "onnxruntime", "grpc"}
heavy |= {"PIL.JpegImagePlugin", "PIL.PngImagePlugin"}
print(sorted(heavy & set(sys.modules)))
"""
    assert ran([sys.executable, "-c", program]).stdout.strip() == "[]"


def test_serve_starts_its_first_processes_before_it_imports_a_library() -> None:
    """They import theirs while it imports its own."""
    program = "import sys, paddlepool.cli.serve; print({*sys.modules} & {'numpy', 'pydantic'})"
    assert ran([sys.executable, "-c", program]).stdout.strip() == "set()"


def test_the_server_does_not_import_the_client() -> None:
    assert not [entry for entry in ALL if within(entry.imported, "paddlepool_client")]


def test_the_client_imports_nothing_but_httpx() -> None:
    """Besides tqdm in its commands, and Pillow for a picture of Pillow; others are optional."""
    sources = sorted((ROOT / "clients" / "python" / "src").rglob("*.py"))
    assert any(source.parent.name == "commands" for source in sources)
    nodes = [node for path in sources for node in ast.walk(ast.parse(path.read_text("utf-8")))]
    imported = [
        alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names
    ]
    imported += [str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)]
    names = {name.partition(".")[0] for name in imported}
    allowed = {"PIL", "httpx", "opentelemetry", "paddlepool_client", "tqdm", "typing_extensions"}
    assert names - set(sys.stdlib_module_names) == allowed


def test_the_picture_names_every_layer_and_package() -> None:
    picture = (ROOT / "ARCHITECTURE.md").read_text("utf-8").partition("## Code map")[2]
    picture = picture.partition("```")[2].partition("```")[0]
    lines = {line.split()[0]: line.split() for line in picture.strip().splitlines()}
    layers = {f"{path.parent.name}/" for path in PACKAGE.glob("*/__init__.py")}
    modules = {path.name for path in PACKAGE.glob("[!_]*.py")}
    assert set(lines) == layers | modules | {"web/"}  # which has no Python
    for layer in layers:
        packages = {f"{path.parent.name}/" for path in (PACKAGE / layer).glob("*/__init__.py")}
        assert packages <= set(lines[layer]), layer
