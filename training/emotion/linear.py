"""The first teacher: logistic regression on counts of one to four characters."""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import sklearn
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from tokenizers import Tokenizer

from training.emotion.annotation import joined
from training.emotion.corpora import LABELS, UNLABELLED
from training.emotion.prepare import load
from training.emotion.quality import Floats, Ints, measure

_UNTELLING = (UNLABELLED, "signs", "weibo2018", "glued")


def fitted(rows: sp.csr_matrix, labels: Ints, weights: Floats) -> OneVsRestClassifier:
    """Return one fitted regression a class; 30 rounds change as much as convergence does."""
    one = LogisticRegression(C=12, solver="liblinear", dual=True, max_iter=30, random_state=0)
    one.set_fit_request(sample_weight=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return OneVsRestClassifier(one).fit(rows, labels, sample_weight=weights)


def main() -> None:
    """Command line: ``python -m training.emotion.linear --out …``, after ``vocabulary``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder that prepare wrote")
    parser.add_argument("--name", default="linear", help="of the file below --out, less .npz")
    parser.add_argument("--folds", type=int, default=4)
    parser.add_argument(
        "--foreign", type=float, default=0.3, help="weight of auxiliary texts with joined labels"
    )
    parser.add_argument("--seed", type=int, default=20)
    arguments = parser.parse_args()
    sklearn.set_config(enable_metadata_routing=True)
    out, started = arguments.out, time.perf_counter()
    train, dev = load(out / "train.jsonl"), load(out / "dev.jsonl")
    others = [post for post in load(out / "auxiliary.jsonl") if post.task != "polarity"]
    # Two classes say little about six: such texts are judged, but nothing is learnt from them.
    telling = np.array([post.task not in _UNTELLING for post in others])
    normalizer = Tokenizer.from_file(str(out / "tokenizer.json")).normalizer
    counter = TfidfVectorizer(
        analyzer="char",
        ngram_range=(1, 4),
        min_df=2,
        sublinear_tf=True,
        lowercase=False,
        preprocessor=normalizer.normalize_str,
    )
    rows = counter.fit_transform([post.text for post in train])
    dev_rows = counter.transform([post.text for post in dev])
    other_rows = counter.transform([post.text for post in others])
    labels = np.array([LABELS.index(post.label) for post in train])
    dev_labels = np.array([LABELS.index(post.label) for post in dev])
    usual = np.array([post.source == "usual_train" for post in dev])
    fold = np.random.default_rng(arguments.seed).integers(0, arguments.folds, len(train))

    on_train = np.zeros((len(train), len(LABELS)))
    on_dev, on_others = np.zeros((len(dev), len(LABELS))), np.zeros((len(others), len(LABELS)))
    plain = fitted(rows, labels, np.ones(len(train)))
    known = joined(plain.predict_proba(other_rows).astype(np.float64), others)
    for number in range(arguments.folds):
        inside = fold != number
        taught = rows[inside], labels[inside], np.ones(inside.sum())
        if arguments.foreign > 0:
            weights = arguments.foreign * known[telling].max(axis=1)
            taught = (
                sp.vstack([taught[0], other_rows[telling]]),
                np.concatenate([taught[1], known[telling].argmax(axis=1)]),
                np.concatenate([taught[2], weights]),
            )
        model = fitted(*taught)
        on_train[~inside] = model.predict_proba(rows[~inside])
        on_dev += model.predict_proba(dev_rows) / arguments.folds
        on_others += model.predict_proba(other_rows) / arguments.folds
        print(f"fold {number + 1}: {(time.perf_counter() - started) / 60:.1f} min", flush=True)
    for name, chances in (("whole", plain.predict_proba(dev_rows)), ("folds", on_dev)):
        quality = measure(np.log(chances[usual] + 1e-9), dev_labels[usual])
        print(f"{name}: usual dev accuracy {quality.accuracy:.4f} macro-F1 {quality.macro_f1:.4f}")
    np.savez_compressed(
        out / f"{arguments.name}.npz",
        train=on_train,
        dev=on_dev,
        auxiliary=joined(on_others, others),
    )


if __name__ == "__main__":
    main()
