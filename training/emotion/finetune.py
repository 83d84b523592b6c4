"""Fine-tunes a pre-trained encoder into the classifier and calibrates its scores."""

from __future__ import annotations

import argparse
import json
import time
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


def main() -> None:
    """Command line: see ``--help``; writes the folder ``--out``/``--name``, or its opinions."""
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
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    rng = np.random.default_rng(arguments.seed)
    out: Path = arguments.out

    train, dev = load(out / "train.jsonl"), load(out / "dev.jsonl")
    opinions = np.mean([np.load(out / f"{name}.npz")["train"] for name in arguments.teacher], 0)
    targets = torch.from_numpy(mixed(train, opinions, hard=arguments.hard)).float()
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    varied = Tokenizer.from_file(str(out / "tokenizer.json"))
    varied.model.dropout = arguments.piece_dropout
    texts = [post.text for post in train]
    dev_ids = encoded(tokenizer, [post.text for post in dev])
    dev_labels: Ids = np.array([LABELS.index(post.label) for post in dev])
    usual = np.array([post.source == "usual_train" for post in dev])
    started = time.perf_counter()
    recipe = Recipe(
        epochs=arguments.epochs,
        tokens=arguments.tokens,
        rate=arguments.rate,
        agreement=arguments.agreement,
        push=arguments.push,
    )

    def fitted(rows: Ids, *, choose: bool) -> BertForSequenceClassification:
        model = encoder_from(out / f"{arguments.begin}.pt", arguments.dropout)
        model.to(arguments.device)
        kept, best = copied(model), -1.0

        def after(epoch: int) -> None:
            nonlocal kept, best
            found = logits(model, dev_ids)
            on_usual, on_virus = (measure(found[p], dev_labels[p]) for p in (usual, ~usual))
            print(
                f"epoch {epoch}, {(time.perf_counter() - started) / 60:.1f} min: usual dev "
                f"accuracy {on_usual.accuracy:.4f} macro-F1 {on_usual.macro_f1:.4f}, virus dev "
                f"{on_virus.accuracy:.4f} {on_virus.macro_f1:.4f}",
                flush=True,
            )
            if on_usual.accuracy + on_usual.macro_f1 > best:
                best, kept = on_usual.accuracy + on_usual.macro_f1, copied(model)

        part = [texts[row] for row in rows]
        tuned(model, lambda: encoded(varied, part), targets[rows], recipe, rng, after)
        if choose:
            model.load_state_dict(kept)
        return model

    if arguments.folds:
        others = [p.text for p in load(out / "auxiliary.jsonl") if p.task != "polarity"]
        groups = {"train": encoded(tokenizer, texts), "dev": dev_ids}
        groups["auxiliary"] = encoded(tokenizer, others)
        fold = rng.integers(0, arguments.folds, len(train))
        found: dict[str, Floats] = {
            name: np.zeros((len(ids), len(LABELS))) for name, ids in groups.items()
        }
        for number in range(arguments.folds):
            # The epoch is not chosen here: what judges it must not have been looked at.
            model = fitted(np.flatnonzero(fold != number), choose=False)
            away = np.flatnonzero(fold == number)
            found["train"][away] = softmax(logits(model, [groups["train"][n] for n in away]))
            for name in ("dev", "auxiliary"):
                found[name] += softmax(logits(model, groups[name])) / arguments.folds
        np.savez_compressed(out / f"{arguments.name}.npz", **found)
        judged = measure(np.log(found["dev"][usual] + 1e-9), dev_labels[usual])
        print(f"folds: usual dev {judged.accuracy:.4f} macro-F1 {judged.macro_f1:.4f}")
        return

    model = fitted(np.arange(len(train)), choose=True).cpu()
    report = calibrated(model, train, dev, tokenizer)
    report["minutes"] = (time.perf_counter() - started) / 60
    print(json.dumps(report))
    saved(model, out / arguments.name, out / "tokenizer.json", report)


if __name__ == "__main__":
    main()
