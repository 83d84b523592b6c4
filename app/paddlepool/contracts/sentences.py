"""Makes foreign text (of frameworks, in file names) safe to print."""

import re

MAX_CHARACTERS, MAX_INPUT = 500, 5_000
"""Maximum characters of a sentence, and of the text that it is made from."""

_TRACE = re.compile(r"^.*Error Message Summary:\s*-*", re.DOTALL)
"""Matches what Paddle writes before its message."""
_ORIGIN = re.compile(
    r"In user code:|Exception from [^\s:]+:\d+:|\(at [^()\s]+:\d+\)|0x[0-9a-fA-F]+"
)
_SIGNATURE = re.compile(
    r"… [\w:<>*&, ~]*onnxruntime::[\w:<>*&, ~]*\([^()]*(?:\([^()]*\)[^()]*)*\)( const)? "
)
"""Matches the name of a C++ function, which ONNX Runtime writes after the function's file."""
_ROOTS = "bin|boot|data|dev|etc|home|lib|lib64|media|mnt|opt|proc|root|run|srv|sys|tmp|usr|var"
_PATH = re.compile(
    rf"(?<![\w.@+-])/(?:(?:{_ROOTS})(?:/[\w.@+-]*)+|(?:[\w.@+-]+/)*[\w@+-]+\.[A-Za-z][\w.]*(?::\d+)?)"
)
"""Matches an absolute path below a usual root, or to a file with a suffix. It does not match the
name of a graph's node, such as `/model/Add`."""


def printable(text: str, allowed: str = "") -> str:
    """Escape unprintable characters, such as terminal control codes, except those in `allowed`."""
    return "".join(
        char if char.isprintable() or char in allowed else char.encode("unicode_escape").decode()
        for char in text
    )


def sentence(text: str, *, longest: int = MAX_CHARACTERS) -> str:
    """Return a framework's message as one line of at most `longest` characters, cut with "…".

    Absolute paths (_PATH) become "…". What Paddle writes before its message, memory addresses,
    places in source code and signatures of C++ functions are removed. Unprintable characters are
    escaped.
    """
    text = _TRACE.sub("", text)[:MAX_INPUT]
    line = " ".join(_PATH.sub("…", _ORIGIN.sub(" ", text)).split())
    line = printable(_SIGNATURE.sub("", line))
    return line if len(line) <= longest else f"{line[: longest - 1]}…"
