"""`paddlepool new-task`: write a package with a task of your own, to be changed.

The task classifies pictures. The package also has tests, and a script that exports a small model;
its README lists the commands.
"""

import argparse
import keyword
import re
import sys
from importlib.util import find_spec
from pathlib import Path

from paddlepool.contracts.errors import ConfigError
from paddlepool.tasks import PIPELINES

EXAMPLE = "picture-classifier"
PACKED = Path(__file__).parent / "template"
"""Where setup.py puts the template in a wheel."""
CHECKOUT = Path(__file__).parents[3] / "examples" / EXAMPLE
NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
MAX_CHARACTERS = 40
IGNORED = ("__pycache__", ".egg-info", ".pytest_cache")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name",
        metavar="NAME",
        help="name of the task, its package and its endpoint: lower case, digits and dashes, "
        "such as plant-classifier",
    )
    parser.add_argument(
        "--directory", type=Path, metavar="DIR", help="directory to create; default: ./NAME"
    )


def run(args: argparse.Namespace) -> int:
    """Write the package.

    Raises ConfigError for a wrong name, for a path that exists and is no empty directory, and if
    this installation has no template.
    """
    check_name(args.name)
    target: Path = args.directory or Path(args.name)
    template = next((folder for folder in (PACKED, CHECKOUT) if folder.is_dir()), None)
    if template is None:
        raise ConfigError("this installation has no template; the wheel and a checkout have it")
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise ConfigError(f"{target} exists and is no empty directory")
    for source in sorted(template.rglob("*")):
        name = str(source.relative_to(template))
        if source.is_file() and not any(ignored in name for ignored in IGNORED):
            file = target / renamed(name, args.name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(renamed(source.read_text("utf-8"), args.name), "utf-8")
    print(f"{target} is a package with the task {args.name}. Next, as its README.md says:")
    print(f"  cd {target} && pip install -e '.[test]' && python -m pytest")
    return 0


def check_name(name: str) -> None:
    """Raise ConfigError unless a package and a task can have this name."""
    if not NAME.fullmatch(name) or len(name) > MAX_CHARACTERS:
        raise ConfigError(
            f"NAME must be lower-case words and digits with dashes between them, at most "
            f"{MAX_CHARACTERS} characters, such as plant-classifier; received {name[:80]!r}"
        )
    module = name.replace("-", "_")
    if name in PIPELINES:
        raise ConfigError(f"{name} is a task of the server: choose another name")
    if keyword.iskeyword(module) or module in sys.stdlib_module_names:
        raise ConfigError(f"{module} is a name of Python: choose another one")
    if find_spec(module) is not None:
        raise ConfigError(f"a module {module} is installed: choose another name")


def renamed(text: str, name: str) -> str:
    """Return `text` with each form of the example's name replaced by the same form of `name`."""

    def forms(words: list[str]) -> tuple[str, ...]:
        snake = "_".join(words)
        return "-".join(words), snake, snake.upper(), "".join(word.title() for word in words)

    for old, new in zip(forms(EXAMPLE.split("-")), forms(name.split("-")), strict=True):
        text = text.replace(old, new)
    return text
