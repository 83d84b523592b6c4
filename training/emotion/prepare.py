"""Writes the training, held-out and auxiliary texts, free of anything from the eval splits."""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from paddlepool.tasks.sentiment.evaluation import text_key as key
from training.emotion.corpora import UNLABELLED, Post, auxiliary, more, smp

EVAL_SPLITS = ("usual_eval", "virus_eval")
_SHINGLE = 4
_CONTAINED = 0.7
_HELD_OUT_PERCENT = 8


def _chinese(text: str) -> str:
    return re.sub(r"[^\u4e00-\u9fff]", "", text)


def _shingles(text: str) -> set[str]:
    plain = _chinese(text)
    return {plain[i : i + _SHINGLE] for i in range(len(plain) - _SHINGLE + 1)}


class Overlap:
    """Tells whether a text equals, contains or lies within one of the forbidden texts."""

    def __init__(self, forbidden: Iterable[str]) -> None:
        self._keys: set[str] = set()
        self._sizes: list[int] = []
        self._holders: dict[str, list[int]] = defaultdict(list)
        for number, text in enumerate(forbidden):
            self._keys.add(key(text))
            parts = _shingles(text)
            self._sizes.append(len(parts))
            for part in parts:
                self._holders[part].append(number)

    def __contains__(self, text: str) -> bool:
        if key(text) in self._keys:
            return True
        parts = _shingles(text)
        shared = Counter(number for part in parts for number in self._holders.get(part, ()))
        return any(
            hits >= 5 and hits >= _CONTAINED * min(len(parts), self._sizes[number])
            for number, hits in shared.items()
        )


def _unique(posts: Iterable[Post]) -> list[Post]:
    """Drop repeats, and every copy of a text that carries two labels in one task."""
    groups: dict[tuple[str, str], list[Post]] = defaultdict(list)
    for post in posts:
        groups[post.task, key(post.text)].append(post)
    return [group[0] for group in groups.values() if len({post.label for post in group}) == 1]


def _held_out(text: str) -> bool:
    """Choose by the text's hash, so that the split survives any change of order."""
    return int(hashlib.sha256(key(text).encode()).hexdigest(), 16) % 100 < _HELD_OUT_PERCENT


def _write(path: Path, posts: Sequence[Post]) -> None:
    with path.open("w", encoding="utf-8") as out:
        for post in posts:
            out.write(json.dumps(asdict(post), ensure_ascii=False) + "\n")
    print(f"{path.name}: {len(posts)} texts", dict(Counter(post.source for post in posts)))


def load(path: Path) -> list[Post]:
    """Read back a file written by this module."""
    with path.open(encoding="utf-8") as lines:
        return [Post(**json.loads(line)) for line in lines]


def main() -> None:
    """Command line: ``python -m training.emotion.prepare --data … --out …``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with smp2020_ewect")
    parser.add_argument("--out", type=Path, required=True, help="folder of this run")
    arguments = parser.parse_args()
    evaluation = Overlap(post.text for split in EVAL_SPLITS for post in smp(arguments.data, split))
    labelled = [p for split in ("usual_train", "virus_train") for p in smp(arguments.data, split)]
    clean = [post for post in labelled if post.text not in evaluation]
    print(f"SMP train: {len(labelled)} posts, {len(labelled) - len(clean)} overlap with eval")
    clean = _unique(clean)
    dev = [post for post in clean if _held_out(post.text)]
    held = Overlap(post.text for post in dev)
    others = [*auxiliary(arguments.data), *more(arguments.data)]
    usable = [post for post in others if post.text not in evaluation and post.text not in held]
    print(f"auxiliary: {len(others)} texts, {len(others) - len(usable)} overlap with eval or dev")
    arguments.out.mkdir(parents=True, exist_ok=True)
    _write(arguments.out / "dev.jsonl", dev)
    _write(arguments.out / "train.jsonl", [post for post in clean if post.text not in held])
    usable = _unique(usable)
    known = {_chinese(post.text) for post in usable if post.task != UNLABELLED}
    _write(
        arguments.out / "auxiliary.jsonl",
        [post for post in usable if post.task != UNLABELLED or _chinese(post.text) not in known],
    )


if __name__ == "__main__":
    main()
