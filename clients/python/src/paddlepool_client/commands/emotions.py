"""Print the emotions of texts on a terminal, or as JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict

from paddlepool_client import Client, Emotion, RequestFailed
from paddlepool_client.commands.at_server import routing, server_of
from paddlepool_client.commands.errors import CommandError

BATCH = 32
BAR = 24
SHOWN = 60
"""Maximum characters of a text beside its emotion."""


def print_emotions(
    texts: Sequence[str], args: argparse.Namespace, *, connect: Callable[..., Client]
) -> int:
    """Print all labels of one text, each with a bar, or the best label of each of several texts.

    `args.top_k` sets another number of labels. `args.json` prints JSON, by default with all labels.
    Returns 0. Nothing is printed if it raises CommandError: for a text that is not UTF-8, and for a
    request that fails.
    """
    for number, text in enumerate(texts, 1):
        try:
            text.encode()
        except UnicodeEncodeError as error:  # the bytes of an argument are not text
            raise CommandError(f"text {number} of {len(texts)} is not UTF-8") from error
    top_k = args.top_k or (None if len(texts) == 1 or args.json else 1)
    options = routing(args) | ({} if top_k is None else {"top_k": top_k})
    results: list[list[Emotion]] = []
    with server_of(args, task="sentiment", connect=connect) as url, connect(url) as client:
        for begin in range(0, len(texts), BATCH):
            try:
                results += client.sentiment(list(texts[begin : begin + BATCH]), **options)
            except RequestFailed as error:
                raise CommandError(str(error)) from error
    if args.json:
        shown = [[asdict(emotion) for emotion in emotions] for emotions in results]
        print(json.dumps(shown, ensure_ascii=False))
        return 0
    for text, emotions in zip(texts, results, strict=True):
        for emotion in emotions:
            behind = "█" * round(BAR * emotion.score) if len(texts) == 1 else short(text)
            name = f"{emotion.label:<9}{emotion.label_zh or ''}"
            print(f"{name}  {emotion.score:6.1%}  {behind}".rstrip())
    return 0


def short(text: str) -> str:
    """Return a text as one line without control characters, of at most SHOWN characters and "…"."""
    plain = "".join(char if char.isprintable() else " " for char in text)
    return plain if len(plain) <= SHOWN else f"{plain[:SHOWN]}…"
