"""The `paddlepool` command: a table of its commands and of the modules that run them."""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from paddlepool import __version__
from paddlepool.contracts.errors import PaddlepoolError
from paddlepool.contracts.resources import NO_REPORTS

CLIENT = "paddlepool_client.commands.main"
"""Module of the commands that call a server, in the distribution of the client."""
COMMANDS = {
    "serve": ("paddlepool.cli.serve", "serve the models of a repository over HTTP"),
    "ray": ("paddlepool.cli.ray", "serve with several replicas under Ray Serve"),
    "classify": (CLIENT, "name what a picture shows, or every picture of a directory"),
    "ocr": (CLIENT, "read the text in a picture, or in every picture of a directory"),
    "segment": (CLIENT, "cut out one picture, or every picture of a directory"),
    "sentiment": (CLIENT, "find the emotions of a text, or of every row of a CSV file"),
    "models": (
        "paddlepool.cli.models",
        "list, verify, describe and seal models of a repository",
    ),
    "pull": ("paddlepool.cli.pull", "fetch official weights and publish them as a new version"),
    "import": ("paddlepool.cli.import_", "publish weights from a local file as a new version"),
    "derive": ("paddlepool.cli.derive", "create the int8 programs that need no calibration data"),
    "quantize": ("paddlepool.cli.quantize", "publish an int8 program of a model, made from data"),
    "compare": ("paddlepool.cli.compare", "measure predictor configurations against each other"),
    "tune": ("paddlepool.cli.tune", "find the best instance group for a model on this machine"),
    "new-task": ("paddlepool.cli.new_task", "write a package with a task of your own"),
    "graph": ("paddlepool.cli.graph", "show a model's optimised operators and the time of each"),
    "export": ("paddlepool.cli.export", "publish a network with given weights as a static model"),
}

BROKEN_PIPE = 141
"""Exit code that a shell reports for a program ended by SIGPIPE."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command of `argv`, by default that of this process, and return its exit code.

    The code is 1 after a PaddlepoolError or OSError, whose message is printed on standard error,
    and if the client's package is missing. It is 130 after Ctrl-C, and BROKEN_PIPE if the reader of
    the output has gone. Exits (SystemExit) for `--help` and for options that argparse rejects.
    """
    listing = "\n".join(f"  {name:<10} {line}" for name, (_, line) in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="paddlepool",
        description="A model server around Paddle Inference.",
        epilog=f"commands:\n{listing}\n\n`paddlepool COMMAND --help` describes each one.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"paddlepool {__version__}")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND")
    # Only the first word is parsed here: the command parses the others itself, including a `--`.
    first, *arguments = (sys.argv[1:] if argv is None else argv) or [""]
    chosen = parser.parse_args([first] if first else [])
    os.environ.setdefault(NO_REPORTS, "1")
    try:
        module = importlib.import_module(COMMANDS[chosen.command][0])
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("paddlepool_client"):
            raise
        print(
            f"paddlepool {chosen.command}: needs the Python client: pip install ./clients/python",
            file=sys.stderr,
        )
        return 1
    if COMMANDS[chosen.command][0] == CLIENT:
        return int(module.main([chosen.command, *arguments], prog="paddlepool"))
    command = argparse.ArgumentParser(
        prog=f"paddlepool {chosen.command}", description=module.__doc__
    )
    module.configure(command)
    try:
        code = int(module.run(command.parse_args(arguments)))
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader closed the pipe, as `head` does. Python would report it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except (PaddlepoolError, OSError) as error:  # OSError: such as a full disk
        print(f"paddlepool {chosen.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
