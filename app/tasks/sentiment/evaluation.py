"""Supports offline commands: sample texts, and a model's quality on labelled posts."""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from app.contracts.errors import ConfigError
from app.contracts.ports import ServedModelInfo
from app.contracts.tensors import Tensors
from app.evidence.quality.ports import Bench, Findings, Source, Table, read_jsonl
from app.tasks.sentiment.pipeline import (
    label_agreement,
    open_tokenizer,
    read_parameters,
    softmax,
    tensors_of,
    tokenise,
)
from app.tasks.sentiment.texts import SentimentSettings, check_texts

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BINS = 15


@dataclass(frozen=True, slots=True)
class Quality:
    """Quality of the predictions for `texts` texts; each other figure is from 0 to 1."""

    texts: int
    accuracy: float
    macro_f1: float
    ece: float
    f1: dict[str, float]


def measure(probabilities: Floats, truth: Ints, *, labels: Sequence[str]) -> Quality:
    """Compare probabilities [n, classes] with the true class numbers [n]; n is at least 1."""
    guesses = probabilities.argmax(axis=1)
    f1 = {}
    for number, name in enumerate(labels):
        guessed, true = guesses == number, truth == number
        f1[name] = float(2 * (guessed & true).sum() / max(1, guessed.sum() + true.sum()))
    return Quality(
        texts=len(truth),
        accuracy=float((guesses == truth).mean()),
        macro_f1=float(np.mean(list(f1.values()))),
        ece=calibration_error(probabilities, truth),
        f1=f1,
    )


def calibration_error(probabilities: Floats, truth: Ints) -> float:
    """The expected calibration error (ECE) over BINS bins of the top score.

    It is the gap between mean top score and accuracy in each bin, averaged over all texts.
    """
    top, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == truth
    slot = np.minimum((top * BINS).astype(int), BINS - 1)
    gaps = (abs(top[slot == b].sum() - right[slot == b].sum()) for b in range(BINS))
    return float(sum(gaps) / len(truth))


def text_key(text: str) -> str:
    """A key that copies of one post share: its letters and digits in lower case and NFKC form."""
    return re.sub(r"[\W_]+", "", unicodedata.normalize("NFKC", text).lower()) or text.strip()


SPLITS = ("usual", "virus")
BENCHMARK = "妈妈说想和我聊天，她一定是有难过的事了。。。我要上课，所以我好难过。。"
"""From the benchmark published with Paddle's BERT deployment; its label is sad."""


@dataclass(frozen=True, slots=True)
class Posts:
    """Texts, the class number of each, and which of them also occur among the training posts."""

    name: str
    texts: tuple[str, ...]
    truth: np.ndarray[tuple[int], np.dtype[np.int64]]
    seen: np.ndarray[tuple[int], np.dtype[np.bool_]]


class SentimentQuality:
    """Measures a model on labelled posts. Raises ConfigError without them."""

    def __init__(self, info: ServedModelInfo, source: Source) -> None:
        self._parameters = read_parameters(info)
        self._output = info.outputs[0].name
        self._tokenizer = open_tokenizer(info, self._parameters)
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
        """Scores [texts, labels], computed as in serving."""
        wanted = self._parameters
        tokenised = tokenise(texts, self._tokenizer, lengths=wanted.lengths())
        jobs = [tensors_of([text], pad_id=wanted.pad_id) for text in tokenised]
        outputs = bench.run(jobs, what=what)
        logits = np.concatenate([output[self._output] for output in outputs])
        return np.array([softmax(row) for row in logits.tolist()])

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


SENTENCE = "今天加班到很晚才回家，楼下的小店居然还亮着灯，老板笑着问我要不要来一碗热汤面。"
CHARACTERS = (6, 12, 20, 28, 40, 56, 80, 120, 160)
"""Lengths of the texts that are compared by default. Most are short, as posts are."""


class LabelComparison:
    """Samples are (name, tensors); agreement is the share of texts that get the same label."""

    agreement_name = "label agreement"
    least_agreement = 0.99
    agreement = staticmethod(label_agreement)

    def __init__(self, info: ServedModelInfo) -> None:
        self._parameters = read_parameters(info)
        self._tokenizer = open_tokenizer(info, self._parameters)

    def samples(self, files: Sequence[Path]) -> list[tuple[str, Tensors]]:
        """One sample for each line of the files; of a line in a .jsonl file, its member `text`.

        Raises ConfigError if a file cannot be read, and InputError if a text is not accepted.
        """
        texts: list[str] = []
        for file in files:
            if file.suffix == ".jsonl":
                texts += [row["text"] for row in read_jsonl(file, keys=("text",))]
                continue
            try:
                lines = file.read_text("utf-8").splitlines()
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"{file} cannot be read as UTF-8 text") from error
            texts += [line for line in lines if line.strip()]
        return self._tokenised(texts)

    def default_samples(self) -> list[tuple[str, Tensors]]:
        longest = SENTENCE * (max(CHARACTERS) // len(SENTENCE) + 1)
        return self._tokenised([longest[:length] for length in CHARACTERS])

    def _tokenised(self, texts: Sequence[str]) -> list[tuple[str, Tensors]]:
        check_texts(texts, limits=SentimentSettings.model_construct(text_max_inputs=len(texts)))
        tokenised = tokenise(texts, self._tokenizer, lengths=self._parameters.lengths())
        return [
            (
                f"text {number} ({text.tokens} tokens)",
                tensors_of([text], pad_id=self._parameters.pad_id),
            )
            for number, text in enumerate(tokenised, 1)
        ]
