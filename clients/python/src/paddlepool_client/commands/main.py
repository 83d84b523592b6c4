"""`paddlepool-client`: the commands of this package, which `paddlepool` also runs."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from paddlepool_client import __version__
from paddlepool_client.commands.errors import INTERRUPTED, CommandError

COMMANDS = {
    "classify": "name what a picture shows, or every picture of a directory",
    "ocr": "read the text in a picture, or in every picture of a directory",
    "segment": "cut out one picture, or every picture of a directory",
    "sentiment": "find the emotions of a text, or of every row of a CSV file",
}
BROKEN_PIPE = 141
"""Exit code that a shell reports for a program ended by SIGPIPE."""


def main(argv: Sequence[str] | None = None, *, prog: str = "paddlepool-client") -> int:
    """Run one command and return its exit code. An expected failure is one line on stderr.

    `argv` are the arguments; None means those of this process. Raises SystemExit for a wrong
    argument, `--help` and `--version`.
    """
    listing = "\n".join(f"  {name:<10} {line}" for name, line in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Call a Paddlepool server.",
        epilog=f"commands:\n{listing}\n\n`{prog} COMMAND --help` describes each one.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"{prog} {__version__}")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND")
    # Only the first word is parsed here: the command parses the others, including `--`.
    first, *arguments = (sys.argv[1:] if argv is None else argv) or [""]
    name = parser.parse_args([first] if first else []).command
    try:
        module = importlib.import_module(f"paddlepool_client.commands.{name}")
    except ModuleNotFoundError as error:
        if error.name != "tqdm":
            raise
        print(f"{prog} {name}: needs tqdm: pip install tqdm", file=sys.stderr)
        return 1
    command = argparse.ArgumentParser(prog=f"{prog} {name}", description=module.__doc__)
    module.configure(command)
    try:
        code = int(module.run(command.parse_args(arguments)))
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader closed the pipe, as `head` does. Python would report it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except (CommandError, OSError) as error:  # OSError: a full disk, missing permission
        print(f"{prog} {name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
