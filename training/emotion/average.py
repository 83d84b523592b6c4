"""Averages classifiers that were fine-tuned from one checkpoint with other seeds or settings."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import BertForSequenceClassification

from training.emotion.finishing import calibrated, saved
from training.emotion.prepare import load


def averaged(folders: list[Path]) -> BertForSequenceClassification:
    """Return the network whose every weight is the mean of those in the folders."""
    models = [
        BertForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
        for folder in folders
    ]
    states = [model.state_dict() for model in models]
    mean = {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}
    models[0].load_state_dict(mean)
    return models[0]


def main() -> None:
    """Command line: ``python -m training.emotion.average --out … --name … hf-a hf-b``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder that prepare wrote")
    parser.add_argument("--name", required=True, help="folder below --out for the average")
    parser.add_argument("folders", nargs="+", help="below --out, written by finetune")
    arguments = parser.parse_args()
    out: Path = arguments.out
    model = averaged([out / name for name in arguments.folders])
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    train, dev = load(out / "train.jsonl"), load(out / "dev.jsonl")
    report = calibrated(model, train, dev, tokenizer) | {"averaged": arguments.folders}
    print(json.dumps(report))
    saved(model, out / arguments.name, out / "tokenizer.json", report)


if __name__ == "__main__":
    main()
