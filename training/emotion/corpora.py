"""Reads every labelled Chinese corpus into one kind of record."""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LABELS = ("angry", "happy", "neutral", "surprise", "sad", "fear")
"""The served classes, in the order of the classifier's outputs."""

_EIGHT = ("anger", "disgust", "happiness", "like", "sadness", "surprise", "fear", "none")
TASKS: dict[str, tuple[str, ...]] = {
    "smp": LABELS,
    "clue": _EIGHT[:7],
    "nlpcc": _EIGHT,
    "stripped": _EIGHT,
    "moods": _EIGHT[:5],
    "covid": ("0", "1", "2", "3", "4", "5", "6"),
    "polarity": ("0", "1"),
    "ocemotion": ("sadness", "happiness", "disgust", "anger", "fear"),
    "nlpcc14": _EIGHT,
    "sentences": _EIGHT,
    "codemixed": ("none", "happiness", "sadness", "surprise", "anger", "fear"),
    "drama": (
        *("neutral", "anger", "depress", "negative-other", "happy", "relaxed", "positive-other"),
        *("worried", "astonished", "fear", "sadness", "disgust", "grateful"),
    ),
    "glued": ("happy", "angry"),
    "cause": (
        *("none", "negative", "happiness", "positive", "neutral_emotion", "anger", "sadness"),
        "fear",
    ),
    "weibo2018": ("positive", "negative"),
    "signs": ("positive", "negative"),
    "raw": (),
}
"""Each annotation scheme and its classes; schemes that disagree keep heads of their own."""

UNLABELLED = "raw"
"""The task of texts without a label, and of labels that no head knows."""

_MORE = {
    "lab_cped_dialogue": "drama",
    "lab_nlpcc2014_test_weibo": "nlpcc14",
    "lab_nlpcc2014_train_sentences": "sentences",
    "lab_nlpcc2018_codemixed": "codemixed",
    "lab_ocemotion_tianchi": "ocemotion",
    "lab_simplifyweibo_part": "glued",
    "lab_weibo_emotion_cause": "cause",
    "pol_weibo2018": "weibo2018",
    "pol_weibo_senti_100k_part": "signs",
    "alt/ocemotion_overlap_with_punct": "ocemotion",
}
"""Labelled files of zh_corpora2 and their tasks; every raw_ file is read as well."""


@dataclass(frozen=True, slots=True)
class Post:
    """One text with the label that its corpus gives it."""

    text: str
    task: str
    label: str
    source: str


def smp(data: Path, split: str) -> Iterator[Post]:
    """Yield one split of SMP2020-EWECT: ``usual_train``, ``virus_eval`` and so on."""
    for line in _lines_of(_text(data / "smp2020_ewect" / f"{split}.jsonl")):
        row = json.loads(line)
        yield Post(row["content"], "smp", row["label"], split)


def auxiliary(data: Path) -> Iterator[Post]:
    """Yield every post of the corpora beside SMP2020-EWECT."""
    root = data / "zh_corpora"
    for part in ("test", "valid"):
        for line in _lines_of(_text(root / f"cluemotion2020_{part}.txt")):
            row = json.loads(line)
            yield from _post(row["content"], "clue", row["label"], "clue")
    for label, text in _pairs(root / "spianmo_Nlpcc2013Train.tsv", ","):
        yield from _post(text.strip('"').replace('""', '"'), "nlpcc", label, "nlpcc")
    # The same posts as spianmo_lstm_sentiment_classification_8_total.txt, punctuation kept.
    yield from _lines(data / "zh_corpora2/alt/spianmo_lstm8_with_punct.jsonl.gz", "stripped")
    for label, text in _pairs(root / "spianmo_simplifyweibo_5_moods.csv", ","):
        yield from _post(text, "moods", label, "moods")
    for row in _csv(_text(root / "covid_weibo_labeledData.csv")):
        yield from _post(row[0], "covid", row[1], "covid")
    for name in ("ChnSentiCorp_htl_all", "waimai_10k"):
        for row in _csv(_text(root / f"{name}.csv")):
            yield from _post(row[1], "polarity", row[0], name)
    with zipfile.ZipFile(_file(root / "online_shopping_10_cats.zip")) as archive:
        shopping = archive.read("online_shopping_10_cats.csv").decode("utf-8-sig")
    for row in _csv(shopping):
        yield from _post(row[2], "polarity", row[1], "online_shopping_10_cats")


def more(data: Path) -> Iterator[Post]:
    """Yield every text of zh_corpora2, labelled ones first."""
    root = data / "zh_corpora2"
    for name, task in _MORE.items():
        yield from _lines(root / f"{name}.jsonl.gz", task)
    for path in sorted(root.glob("raw_*.jsonl.gz")):
        yield from _lines(path, UNLABELLED)


def _lines(path: Path, task: str) -> Iterator[Post]:
    source = path.name.removesuffix(".jsonl.gz")
    for line in _lines_of(gzip.decompress(_file(path).read_bytes()).decode("utf-8")):
        row = json.loads(line)
        known = row["label"] in TASKS[task]
        if row["text"].strip():
            yield Post(
                row["text"].strip(),
                task if known else UNLABELLED,
                row["label"] if known else "",
                source,
            )


def _post(text: str, task: str, label: str, source: str) -> Iterator[Post]:
    if text.strip() and label in TASKS[task]:
        yield Post(text.strip().lstrip("\ufeff"), task, label, source)


def _pairs(path: Path, separator: str) -> Iterator[tuple[str, str]]:
    for line in _lines_of(_text(path)):
        label, matched, text = line.partition(separator)
        if matched:
            yield label, text


def _csv(text: str) -> Iterator[list[str]]:
    rows = csv.reader(io.StringIO(text))
    width = len(next(rows))
    yield from (row for row in rows if len(row) == width)


def _lines_of(text: str) -> list[str]:
    """Lines that a newline ends: a post may contain other separators, such as U+2028."""
    return text.removesuffix("\n").split("\n")


def _text(path: Path) -> str:
    return _file(path).read_text(encoding="utf-8-sig", errors="replace")


def _file(path: Path) -> Path:
    if not path.is_file():
        sys.exit(f"training data absent: {path} is not a file (set --data to the data folder)")
    return path
