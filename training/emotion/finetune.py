"""Fine-tunes a pre-trained encoder into the classifier and calibrates its scores."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import chain
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import BertConfig, BertForSequenceClassification

from training.emotion.batching import Ids
from training.emotion.corpora import LABELS
from training.emotion.evaluate import encoded, logits
from training.emotion.finishing import calibrated, saved
from training.emotion.prepare import load
from training.emotion.quality import Floats, measure, softmax
from training.emotion.targets import mixed
from training.emotion.tuning import Recipe, copied, tuned


def encoder_from(checkpoint: Path, dropout: float) -> BertForSequenceClassification:
    """Return a classifier with a pre-training checkpoint's encoder, pooler and own head."""
    if not checkpoint.is_file():
        raise SystemExit(
            f"no pre-training checkpoint: {checkpoint} (run training.emotion.pretrain)"
        )
    state = torch.load(checkpoint, weights_only=True, map_location="cpu")
    shape = BertConfig(**state["config"])
    shape.hidden_dropout_prob = shape.attention_probs_dropout_prob = dropout
    model = BertForSequenceClassification(shape)
    own = model.state_dict()
    for name, value in state["model"].items():
        target = name.replace("language.bert.", "bert.").replace("pooler.", "bert.pooler.")
        if target in own:
            own[target] = value
    own["classifier.weight"] = state["model"]["emotions.weight"]
    own["classifier.bias"] = state["model"]["emotions.bias"]
    model.load_state_dict(own)
    return model


class FineTuning:
    """The posts of ``--out`` and how to train a classifier on some of them."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._out: Path = arguments.out
        self._arguments = arguments
        self._rng = np.random.default_rng(arguments.seed)
        self._started = time.perf_counter()
        self._train, self._dev = load(self._out / "train.jsonl"), load(self._out / "dev.jsonl")
        self._tokenizer = self._read_tokenizer()
        self._varied = self._read_tokenizer()
        self._varied.model.dropout = arguments.piece_dropout
        teachers = [np.load(self._out / f"{name}.npz")["train"] for name in arguments.teacher]
        targets = mixed(self._train, np.mean(teachers, 0), hard=arguments.hard)
        self._targets = torch.from_numpy(targets).float()
        self._texts = [post.text for post in self._train]
        self._dev_ids = encoded(self._tokenizer, [post.text for post in self._dev])
        self._dev_labels: Ids = np.array([LABELS.index(post.label) for post in self._dev])
        self._usual = np.array([post.source == "usual_train" for post in self._dev])

    def _read_tokenizer(self) -> Tokenizer:
        return Tokenizer.from_file(str(self._out / "tokenizer.json"))

    def classifier(self) -> None:
        """Write the folder ``--name``: the best epoch of one network, calibrated."""
        model = self._fitted(np.arange(len(self._train)), choose=True).cpu()
        report = calibrated(model, self._train, self._dev, self._tokenizer)
        report["minutes"] = (time.perf_counter() - self._started) / 60
        print(json.dumps(report))
        tokenizer = self._out / "tokenizer.json"
        saved(model, self._out / self._arguments.name, tokenizer, report)

    def opinions(self, numbers: Ids) -> list[tuple[Ids, dict[str, Floats]]]:
        """Train once without each fold of ``numbers``; return its posts' places and all opinions.

        ``train`` holds opinions on the fold's posts, ``dev`` and ``auxiliary`` on all texts.
        """
        others = [p for p in load(self._out / "auxiliary.jsonl") if p.task != "polarity"]
        train = encoded(self._tokenizer, self._texts)
        everywhere = {
            "dev": self._dev_ids,
            "auxiliary": encoded(self._tokenizer, [post.text for post in others]),
        }
        fold = self._rng.integers(0, self._arguments.folds, len(self._train))
        folds = []
        for number in numbers:
            # The epoch is not chosen here: the texts that judge it must be unseen.
            model = self._fitted(np.flatnonzero(fold != number), choose=False)
            away = np.flatnonzero(fold == number)
            groups = everywhere | {"train": [train[place] for place in away]}
            folds.append((away, {n: softmax(logits(model, ids)) for n, ids in groups.items()}))
        return folds

    def teach(self, folds: Sequence[tuple[Ids, dict[str, Floats]]]) -> None:
        """Write ``--name``.npz from the opinions of all folds.

        A post's opinion is that of the network which missed it, other texts' the mean of all.
        """
        train = np.zeros((len(self._train), len(LABELS)))
        for away, opinions in folds:
            train[away] = opinions["train"]
        dev, auxiliary = (
            np.mean([opinions[name] for _, opinions in folds], axis=0)
            for name in ("dev", "auxiliary")
        )
        path = self._out / f"{self._arguments.name}.npz"
        np.savez_compressed(path, train=train, dev=dev, auxiliary=auxiliary)
        usual = self._usual
        judged = measure(np.log(dev[usual] + 1e-9), self._dev_labels[usual])
        print(f"folds: usual dev {judged.accuracy:.4f} macro-F1 {judged.macro_f1:.4f}")

    def _fitted(self, rows: Ids, *, choose: bool) -> BertForSequenceClassification:
        """Train on the posts ``rows``; with ``choose`` the epoch best on held-out posts is kept."""
        arguments = self._arguments
        model = encoder_from(self._out / f"{arguments.begin}.pt", arguments.dropout)
        model.to(arguments.device)
        state, best = copied(model), -1.0

        def after(epoch: int) -> None:
            nonlocal state, best
            worth = self._worth(model, epoch)
            if worth > best:
                best, state = worth, copied(model)

        texts = [self._texts[row] for row in rows]
        recipe = Recipe(
            epochs=arguments.epochs,
            tokens=arguments.tokens,
            rate=arguments.rate,
            agreement=arguments.agreement,
            push=arguments.push,
        )
        read = partial(encoded, self._varied, texts)  # other merges are dropped each time
        tuned(model, read, self._targets[rows], recipe, self._rng, after)
        if choose:
            model.load_state_dict(state)
        return model

    def _worth(self, model: BertForSequenceClassification, epoch: int) -> float:
        """Print the held-out posts' figures; return accuracy plus macro-F1 of the usual ones."""
        predicted = logits(model, self._dev_ids)
        usual, virus = (
            measure(predicted[part], self._dev_labels[part]) for part in (self._usual, ~self._usual)
        )
        print(
            f"epoch {epoch}, {(time.perf_counter() - self._started) / 60:.1f} min: usual dev "
            f"accuracy {usual.accuracy:.4f} macro-F1 {usual.macro_f1:.4f}, virus dev "
            f"{virus.accuracy:.4f} {virus.macro_f1:.4f}",
            flush=True,
        )
        return usual.accuracy + usual.macro_f1


def _opinions(numbers: Ids, arguments: argparse.Namespace) -> list[tuple[Ids, dict[str, Floats]]]:
    """Train the folds of one process, one after another."""
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed + int(numbers[0]))
    return FineTuning(arguments).opinions(numbers)


def main() -> None:
    """Command line: see ``--help``; writes the folder ``--out``/``--name``, or its opinions."""
    arguments = _parsed()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    if not arguments.folds:
        FineTuning(arguments).classifier()
        return
    count = min(arguments.at_once, arguments.folds)
    shares = np.array_split(np.arange(arguments.folds), count)
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as processes:
        folds = processes.map(partial(_opinions, arguments=arguments), shares)
        FineTuning(arguments).teach(list(chain.from_iterable(folds)))


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder that prepare wrote")
    parser.add_argument("--name", required=True, help="folder below --out for the classifier")
    parser.add_argument("--begin", default="pretrain-cool", help="file below --out, less .pt")
    parser.add_argument(
        "--teacher",
        nargs="+",
        default=["linear", "linear-plain"],
        help="files below --out, less .npz; their opinions are averaged",
    )
    parser.add_argument("--hard", type=float, default=0.6, help="the labels' share in targets")
    parser.add_argument("--epochs", type=int, default=3, help="0: calibrate and save only")
    parser.add_argument("--tokens", type=int, default=1536, help="a step, padding included")
    parser.add_argument("--rate", type=float, default=2e-4)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--agreement", type=float, default=1.0, help="weight of R-Drop, 0: none")
    parser.add_argument("--push", type=float, default=0.0, help="length of FGM's step, 0: none")
    parser.add_argument("--piece-dropout", type=float, default=0.1, help="of word-piece merges")
    parser.add_argument(
        "--folds",
        type=int,
        default=0,
        help="train so many networks, each without its part of the posts, and write their "
        "opinions to --out/--name.npz: a teacher for pretrain and finetune",
    )
    parser.add_argument(
        "--at-once", type=int, default=1, help="processes that train folds; a GPU has room for five"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


if __name__ == "__main__":
    main()
