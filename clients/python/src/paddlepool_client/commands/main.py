"""`paddlepool-client`: the commands of this package. `paddlepool` runs the same ones."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from paddlepool_client.commands.errors import CommandError

COMMANDS = {
    "segment": "cut out a picture, or every one of a directory",
    "sentiment": "the emotions of a text, or of every row of a CSV file",
}
BROKEN_PIPE, INTERRUPTED = 141, 130
"""Exit codes that a shell gives a program ended by SIGPIPE or SIGINT."""


def main(argv: Sequence[str] | None = None, *, prog: str = "paddlepool-client") -> int:
    """Run one command and return its exit code. An expected failure is one line on stderr."""
    listing = "\n".join(f"  {name:<10} {line}" for name, line in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Ask a Paddlepool server.",
        epilog=f"commands:\n{listing}\n\n`{prog} COMMAND --help` says more of each.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND")
    # Only the first word is read here: a command reads the others itself, a `--` among them.
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
        # The reader has had enough, as `head` has. Python would complain again at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except (CommandError, OSError) as error:  # OSError: a full disk, a directory without rights
        print(f"{prog} {name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
