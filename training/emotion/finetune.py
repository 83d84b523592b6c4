"""Fine-tunes a pre-trained encoder into the classifier and calibrates its scores."""

from __future__ import annotations

import argparse
import json
import shutil
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification

from training.emotion.batching import Ids, pad, shuffled
from training.emotion.corpora import LABELS
from training.emotion.evaluate import encoded, logits
from training.emotion.network import CLASSES
from training.emotion.prepare import load
from training.emotion.quality import measure, rare_lift, temperature
from training.emotion.targets import mixed
from training.emotion.vocabulary import PAD

_LAYER_DECAY = 0.9
_AVERAGING = 0.97
_AVERAGED_EVERY = 5
_WARMUP = 0.06


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
    served = [number for number, (task, _) in enumerate(CLASSES) if task == "smp"]
    own["classifier.weight"] = state["model"]["classes.weight"][served]
    own["classifier.bias"] = state["model"]["classes.bias"][served]
    model.load_state_dict(own)
    return model


def layered(model: BertForSequenceClassification, rate: float) -> list[dict[str, object]]:
    """Return parameter groups whose rate falls with the distance from the head."""
    depth = model.config.num_hidden_layers
    groups: list[dict[str, object]] = []
    for name, parameter in model.named_parameters():
        below = 0 if name.startswith("classifier") or "pooler" in name else depth
        if ".layer." in name:
            below = depth - 1 - int(name.split(".layer.")[1].split(".")[0])
        decay = 0.02 if parameter.dim() > 1 else 0.0
        peak = rate * _LAYER_DECAY**below
        groups.append({"params": [parameter], "peak": peak, "weight_decay": decay})
    return groups


def copied(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights as they are now."""
    return {name: value.clone() for name, value in model.state_dict().items()}


def main() -> None:
    """Command line: see ``--help``; writes the folder ``--out``/``--name``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder that prepare wrote")
    parser.add_argument("--name", required=True, help="folder below --out for the classifier")
    parser.add_argument("--teacher", default="linear", help="file below --out, less .npz")
    parser.add_argument("--hard", type=float, default=0.6, help="the labels' share in targets")
    parser.add_argument("--epochs", type=int, default=3, help="0: calibrate and save only")
    parser.add_argument("--tokens", type=int, default=1536, help="a step, padding included")
    parser.add_argument("--rate", type=float, default=2e-4)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--piece-dropout", type=float, default=0.1, help="of word-piece merges")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=20)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    rng = np.random.default_rng(arguments.seed)
    out: Path = arguments.out

    train, dev = load(out / "train.jsonl"), load(out / "dev.jsonl")
    teacher = np.load(out / f"{arguments.teacher}.npz")["train"]
    targets = torch.from_numpy(mixed(train, teacher, hard=arguments.hard)).float()
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    varied = Tokenizer.from_file(str(out / "tokenizer.json"))
    varied.model.dropout = arguments.piece_dropout
    dev_ids = encoded(tokenizer, [post.text for post in dev])
    dev_labels: Ids = np.array([LABELS.index(post.label) for post in dev])
    usual = np.array([post.source == "usual_train" for post in dev])

    model = encoder_from(out / "pretrain.pt", arguments.dropout)
    average, kept, best, step = copied(model), copied(model), -1.0, 0
    optimizer = torch.optim.AdamW(layered(model, arguments.rate), betas=(0.9, 0.98), fused=True)
    model.train()
    started = time.perf_counter()
    for epoch in range(arguments.epochs):
        texts = encoded(varied, [post.text for post in train])
        lengths = np.array([len(text) for text in texts])
        batches = shuffled(lengths, tokens=arguments.tokens, rng=rng)
        for place, rows in enumerate(batches):
            progress = (epoch + place / len(batches)) / arguments.epochs
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * min(1.0, progress / _WARMUP) * (1 - progress)
            ids = torch.from_numpy(pad(texts, rows).ids)
            with torch.autocast("cpu", torch.bfloat16):
                scores = model(ids, attention_mask=(ids != PAD).long()).logits
            nn.functional.cross_entropy(scores.float(), targets[rows]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
            if step % _AVERAGED_EVERY == 0:
                share = 1 - min(_AVERAGING, step / (step + 100))
                with torch.no_grad():
                    for name, value in model.state_dict().items():
                        average[name].lerp_(value, share)
        raw = copied(model)
        model.load_state_dict(average)
        found = logits(model, dev_ids)
        on_usual, on_virus = (measure(found[p], dev_labels[p]) for p in (usual, ~usual))
        print(
            f"epoch {epoch + 1}, {(time.perf_counter() - started) / 60:.1f} min: usual dev "
            f"accuracy {on_usual.accuracy:.4f} macro-F1 {on_usual.macro_f1:.4f}, virus dev "
            f"{on_virus.accuracy:.4f} {on_virus.macro_f1:.4f}",
            flush=True,
        )
        if on_usual.accuracy + on_usual.macro_f1 > best:
            best, kept = on_usual.accuracy + on_usual.macro_f1, copied(model)
        model.load_state_dict(raw)

    model.load_state_dict(kept)
    shares = np.bincount([LABELS.index(post.label) for post in train]) / len(train)
    found = logits(model, dev_ids)
    lift = rare_lift(found[usual], dev_labels[usual], shares)
    raised = -lift * np.log(shares)
    divisor = temperature(found[usual] + raised, dev_labels[usual])
    with torch.no_grad():
        model.classifier.bias.add_(torch.from_numpy(raised))
        model.classifier.weight.div_(divisor)
        model.classifier.bias.div_(divisor)
    report = asdict(measure(logits(model, dev_ids)[usual], dev_labels[usual]))
    report |= {
        "minutes": (time.perf_counter() - started) / 60,
        "temperature": divisor,
        "lift": lift,
    }
    print(json.dumps(report))
    fresh = out / f"{arguments.name}.tmp"
    shutil.rmtree(fresh, ignore_errors=True)
    model.save_pretrained(fresh)
    shutil.copy(out / "tokenizer.json", fresh / "tokenizer.json")
    (fresh / "dev.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    shutil.rmtree(out / arguments.name, ignore_errors=True)
    fresh.replace(out / arguments.name)


if __name__ == "__main__":
    main()
