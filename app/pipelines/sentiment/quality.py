"""The quality of an emotion model: its scores on the eval splits of SMP2020-EWECT and sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from app.contracts.errors import ConfigError
from app.contracts.ports import ServedModelInfo
from app.pipelines.sentiment.parameters import read_parameters
from app.pipelines.sentiment.pipeline import open_tokenizer, softmax, tensors_of, tokenise
from app.quality.files import read_jsonl
from app.quality.labels import BINS, Floats, Quality, measure, text_key
from app.quality.ports import Bench, Findings, Source, Table

SPLITS = ("usual", "virus")
BENCHMARK = "妈妈说想和我聊天，她一定是有难过的事了。。。我要上课，所以我好难过。。"
"""The example of the benchmark that Paddle's BERT deployment was published with: sad."""


@dataclass(frozen=True, slots=True)
class Posts:
    """Texts, the class number of each, and which of them also occur among the training posts."""

    name: str
    texts: tuple[str, ...]
    truth: np.ndarray[tuple[int], np.dtype[np.int64]]
    seen: np.ndarray[tuple[int], np.dtype[np.bool_]]


class SentimentQuality:
    """Reads posts when made: raises ConfigError where the splits are absent."""

    def __init__(self, info: ServedModelInfo, source: Source) -> None:
        self._parameters = read_parameters(info)
        self._output = info.outputs[0].name
        self._tokenizer = open_tokenizer(
            info.directory / "tokenizer.json", max_tokens=self._parameters.max_tokens
        )
        root = source.data / "smp2020_ewect"
        self._splits = [self._split(root, split, source.limit) for split in SPLITS]
        self._smoke = [self._sentences(path, source.limit) for path in source.smoke]

    def measure(self, bench: Bench) -> Findings:
        labels = self._parameters.labels
        judged = [row for posts in self._splits for row in self._judge(posts, bench)]
        tables = [
            Table(
                key="eval",
                title=f"SMP2020-EWECT; ECE over {BINS} bins of the best score",
                columns=("texts", "accuracy", "macro-F1", "ECE"),
                rows=tuple((n, (q.texts, q.accuracy, q.macro_f1, q.ece)) for n, q in judged),
            ),
            Table(
                key="f1",
                title="F1 of each class",
                columns=labels,
                rows=tuple((n, tuple(q.f1[label] for label in labels)) for n, q in judged),
            ),
        ]
        notes = ["NOT MEASURED: the smoke sentences are not here (--smoke names their file)"]
        if self._smoke:
            smoke, notes = self._smoke_right(bench)
            tables.append(smoke)
        scores = self._scores([BENCHMARK], bench, "benchmark sentence")[0]
        tables.append(
            Table(
                key="benchmark_sentence",
                title=f"The published benchmark's sentence, which is sad: 「{BENCHMARK}」",
                columns=labels,
                rows=(("scores", tuple(float(score) for score in scores)),),
            )
        )
        return Findings(tables=tuple(tables), notes=tuple(notes))

    def _judge(self, posts: Posts, bench: Bench) -> list[tuple[str, Quality]]:
        labels = self._parameters.labels
        found = self._scores(posts.texts, bench, posts.name)
        judged = [(posts.name, measure(found, posts.truth, labels=labels))]
        fresh = ~posts.seen
        if fresh.any():
            name = f"{posts.name} without posts of {posts.name.replace('eval', 'train')}"
            judged.append((name, measure(found[fresh], posts.truth[fresh], labels=labels)))
        return judged

    def _smoke_right(self, bench: Bench) -> tuple[Table, list[str]]:
        """How many sentences of each file are right, and a line on each that is not."""
        labels = self._parameters.labels
        rows, notes = [], []
        for posts in self._smoke:
            found = self._scores(posts.texts, bench, posts.name)
            guesses = found.argmax(axis=1)
            wrong = np.flatnonzero(guesses != posts.truth)
            rows.append((posts.name, (len(guesses), len(guesses) - len(wrong))))
            notes += [
                f"{labels[posts.truth[n]]} taken for {labels[guesses[n]]} ({found[n].max():.2f}): "
                f"{posts.texts[n]}"
                for n in wrong
            ]
        table = Table(
            key="smoke",
            title="Everyday sentences of our own (training/emotion)",
            columns=("sentences", "right"),
            rows=tuple(rows),
        )
        return table, notes

    def _scores(self, texts: Sequence[str], bench: Bench, what: str) -> Floats:
        """[texts, labels], as served: padded to buckets, softmax in float64."""
        wanted = self._parameters
        tokenised = tokenise(texts, self._tokenizer, lengths=wanted.lengths())
        jobs = [tensors_of([text], pad_id=wanted.pad_id) for text in tokenised]
        outputs = bench.run(jobs, what=what)
        return softmax(np.concatenate([output[self._output] for output in outputs]))

    def _split(self, root: Path, split: str, limit: int | None) -> Posts:
        rows = read_jsonl(root / f"{split}_eval.jsonl", keys=("content", "label"))[:limit]
        training = read_jsonl(root / f"{split}_train.jsonl", keys=("content",))
        known = {text_key(row["content"]) for row in training}
        return self._posts(f"{split}_eval", rows, "content", known)

    def _sentences(self, path: Path, limit: int | None) -> Posts:
        rows = read_jsonl(path, keys=("text", "label"))[:limit]
        return self._posts(f"{path.stem} sentences", rows, "text", set())

    def _posts(
        self, name: str, rows: Sequence[Mapping[str, str]], key: str, known: set[str]
    ) -> Posts:
        labels = self._parameters.labels
        unknown = sorted({row["label"] for row in rows} - set(labels))
        if unknown:
            raise ConfigError(f"{name} has the label {unknown[0]!r}, the model {', '.join(labels)}")
        return Posts(
            name,
            tuple(row[key] for row in rows),
            np.array([labels.index(row["label"]) for row in rows], np.int64),
            np.array([text_key(row[key]) in known for row in rows], np.bool_),
        )
