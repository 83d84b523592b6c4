"""Sample texts, and a model's quality on labelled posts, for the offline commands."""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paddlepool.contracts.errors import ConfigError
from paddlepool.contracts.ports import ServedModelInfo
from paddlepool.contracts.tensors import Tensors
from paddlepool.evidence.quality.ports import (
    EvaluationPredictor,
    Findings,
    Source,
    Table,
    read_jsonl,
)
from paddlepool.tasks.sentiment.pipeline import (
    SentimentSettings,
    check_texts,
    label_agreement,
    open_tokenizer,
    read_parameters,
    softmax,
    tensors_of,
    tokenise,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BINS = 15


@dataclass(frozen=True, slots=True)
class Quality:
    """Quality of the predictions for `texts` texts. All other figures are from 0 to 1.

    `f1` has the F1 of each label, `macro_f1` is their mean; `ece` is the calibration_error().
    """

    texts: int
    accuracy: float
    macro_f1: float
    ece: float
    f1: dict[str, float]


def measure(probabilities: Floats, truth: Ints, *, labels: Sequence[str]) -> Quality:
    """Compare probabilities [n, classes] with the true class numbers [n]; n is at least 1.

    The F1 of a class that is neither predicted nor true for any text is 0.
    """
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
    """Return the expected calibration error (ECE) over BINS equal bins of the top score.

    It is the gap between the mean top score and the accuracy of a bin, averaged over all texts.
    """
    top, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == truth
    slot = np.minimum((top * BINS).astype(int), BINS - 1)
    gaps = (abs(top[slot == b].sum() - right[slot == b].sum()) for b in range(BINS))
    return float(sum(gaps) / len(truth))


def text_key(text: str) -> str:
    """Return a key that copies of a post share: its letters and digits, in lower case and NFKC.

    The key of a text without letters and digits is the text without surrounding white space.
    """
    return re.sub(r"[\W_]+", "", unicodedata.normalize("NFKC", text).lower()) or text.strip()


SPLITS = ("usual", "virus")
BENCHMARK = "妈妈说想和我聊天，她一定是有难过的事了。。。我要上课，所以我好难过。。"
"""A text of the benchmark published with Paddle's BERT deployment; its label is sad."""


class Posts(NamedTuple):
    """Texts with their class numbers; `fresh` is True for each text that is no training post."""

    name: str
    texts: Sequence[str]
    truth: Ints
    fresh: NDArray[np.bool_]


class _TextJobs:
    """Turns texts into jobs with the tokenizer of one model version, as the server does.

    Constructing one raises ConfigError as read_parameters() and open_tokenizer() do.
    """

    def __init__(self, info: ServedModelInfo) -> None:
        self._parameters = read_parameters(info)
        self._tokenizer = open_tokenizer(info, self._parameters)

    def _jobs(self, texts: Sequence[str]) -> list[tuple[int, Tensors]]:
        """Return the number of tokens and the job of each text; a job has one row."""
        parameters = self._parameters
        tokenised = tokenise(texts, self._tokenizer, lengths=parameters.lengths())
        return [(text.tokens, tensors_of([text], pad_id=parameters.pad_id)) for text in tokenised]


class SentimentQuality(_TextJobs):
    """Measures a model on the posts of SMP2020-EWECT, and on files of labelled texts.

    Constructing one raises ConfigError if the posts or a file are missing or damaged, if a label is
    not one of the model's, or if the model does not fit the task.
    """

    def __init__(self, info: ServedModelInfo, source: Source) -> None:
        super().__init__(info)
        self._output = info.outputs[0].name
        root, limit = source.data / "smp2020_ewect", source.limit
        self._splits = []
        for split in SPLITS:
            rows = read_jsonl(root / f"{split}_eval.jsonl", keys=("content", "label"))[:limit]
            training = read_jsonl(root / f"{split}_train.jsonl", keys=("content",))
            known = {text_key(row["content"]) for row in training}
            self._splits.append(self._posts(f"{split}_eval", rows, "content", known))
        self._smoke = []
        for path in source.smoke:
            rows = read_jsonl(path, keys=("text", "label"))[:limit]
            self._smoke.append(self._posts(f"{path.stem} sentences", rows, "text", set()))

    def _posts(
        self, name: str, rows: Sequence[Mapping[str, str]], key: str, known: set[str]
    ) -> Posts:
        labels = self._parameters.labels
        if unknown := sorted({row["label"] for row in rows} - set(labels)):
            raise ConfigError(f"{name} has the label {unknown[0]!r}, the model {', '.join(labels)}")
        return Posts(
            name,
            [row[key] for row in rows],
            np.array([labels.index(row["label"]) for row in rows], np.int64),
            np.array([text_key(row[key]) not in known for row in rows], np.bool_),
        )

    def measure(self, predictor: EvaluationPredictor) -> Findings:
        labels = self._parameters.labels
        judged: list[tuple[str, Quality]] = []
        for name, texts, truth, fresh in self._splits:
            scores = self._scores(texts, predictor, name)
            judged.append((name, measure(scores, truth, labels=labels)))
            if fresh.any():
                without = f"{name} without posts of {name.replace('eval', 'train')}"
                judged.append((without, measure(scores[fresh], truth[fresh], labels=labels)))
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
        rows, notes = [], []
        for name, texts, truth, _ in self._smoke:
            scores = self._scores(texts, predictor, name)
            guesses = scores.argmax(axis=1)
            wrong = np.flatnonzero(guesses != truth).tolist()
            rows.append((name, (len(guesses), len(guesses) - len(wrong))))
            notes += [
                f"{labels[truth[n]]} taken for {labels[guesses[n]]} ({scores[n].max():.2f}): "
                f"{texts[n]}"
                for n in wrong
            ]
        if rows:
            tables.append(
                Table(
                    key="smoke",
                    title="Everyday sentences of our own (training/emotion)",
                    columns=("sentences", "right"),
                    rows=tuple(rows),
                )
            )
        else:
            notes.append(
                "NOT MEASURED: the smoke sentences are not here (--smoke names their file)"
            )
        [benchmark] = self._scores([BENCHMARK], predictor, "benchmark sentence")
        tables.append(
            Table(
                key="benchmark_sentence",
                title=f"The published benchmark's sentence, which is sad: 「{BENCHMARK}」",
                columns=labels,
                rows=(("scores", tuple(benchmark.tolist())),),
            )
        )
        return Findings(tables=tuple(tables), notes=tuple(notes))

    def _scores(self, texts: Sequence[str], predictor: EvaluationPredictor, what: str) -> Floats:
        """Return scores [texts, labels], computed as the server does."""
        outputs = predictor.run([job for _, job in self._jobs(texts)], what=what)
        logits = np.concatenate([output[self._output] for output in outputs])
        return np.array([softmax(row) for row in logits.tolist()])


SENTENCE = "今天加班到很晚才回家，楼下的小店居然还亮着灯，老板笑着问我要不要来一碗热汤面。"
CHARACTERS = (6, 12, 20, 28, 40, 56, 80, 120, 160)
"""Lengths of the default samples in characters. Most are short, as posts are."""


class LabelComparison(_TextJobs):
    """How `paddlepool compare` measures a text classifier: by the share of equal labels."""

    agreement_name = "label agreement"
    least_agreement = 0.99
    agreement = staticmethod(label_agreement)

    def samples(self, files: Sequence[Path]) -> list[tuple[str, Tensors]]:
        """Return a name and a job of one row for each line of the files that is not blank.

        The line is the text; in a .jsonl file, it is an object with the text as its member `text`.
        Raises ConfigError for a file that cannot be read or has another line, and InputError if
        there is no text or a text is not accepted.
        """
        texts: list[str] = []
        for file in files:
            if file.suffix == ".jsonl":
                texts += [row["text"] for row in read_jsonl(file, keys=("text",))]
                continue
            try:
                lines = file.read_text("utf-8").split("\n")
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"{file} cannot be read as UTF-8 text") from error
            texts += [line for line in lines if line.strip()]
        return self._named(texts)

    def default_samples(self) -> list[tuple[str, Tensors]]:
        longest = SENTENCE * (max(CHARACTERS) // len(SENTENCE) + 1)
        return self._named([longest[:length] for length in CHARACTERS])

    def _named(self, texts: Sequence[str]) -> list[tuple[str, Tensors]]:
        check_texts(texts, limits=SentimentSettings.model_construct(text_max_inputs=len(texts)))
        return [
            (f"text {number} ({tokens} tokens)", job)
            for number, (tokens, job) in enumerate(self._jobs(texts), 1)
        ]
