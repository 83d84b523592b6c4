"""Pre-trains the encoder on masked words, the corpora's labels and a teacher's emotions."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from training.emotion.batching import Batch, pad, shuffled
from training.emotion.corpora import TASKS
from training.emotion.embedding import factorised
from training.emotion.network import CLASSES, Pretraining, config
from training.emotion.prepare import load
from training.emotion.targets import feelings, masking

_REVIEWS = 0.2
_LABEL_WEIGHT = 0.5
_EMOTION_WEIGHT = 1.5
_HARD = 0.7
_WARMUP = 0.04


def main() -> None:
    """Command line: see ``--help``; a run is resumed from its newest checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder that prepare wrote")
    parser.add_argument("--minutes", type=float, default=80, help="of training, all runs together")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=320)
    parser.add_argument("--tokens", type=int, default=2048, help="a step, padding included")
    parser.add_argument("--rate", type=float, default=8e-4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=20)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    rng = np.random.default_rng(arguments.seed)

    tokenizer = Tokenizer.from_file(str(arguments.out / "tokenizer.json"))
    vocabulary = tokenizer.get_vocab_size()
    posts = load(arguments.out / "train.jsonl") + load(arguments.out / "auxiliary.jsonl")
    texts = [encoding.ids for encoding in tokenizer.encode_batch([post.text for post in posts])]
    lengths = np.array([len(text) for text in texts])
    review = np.array([post.task == "polarity" for post in posts])
    names = list(TASKS)
    tasks = torch.tensor([*(names.index(post.task) for post in posts), 0])
    labels = torch.tensor(
        [*(-100 if p.task == "smp" else CLASSES.index((p.task, p.label)) for p in posts), -100]
    )
    emotions = torch.from_numpy(feelings(arguments.out / "linear.npz", posts, hard=_HARD)).float()

    shape = config(vocabulary, layers=arguments.layers, width=arguments.width, dropout=0.0)
    model = Pretraining(shape)
    decayed = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, arguments.rate, betas=(0.9, 0.98), fused=True)
    checkpoint = arguments.out / "pretrain.pt"
    spent, step, epoch = 0.0, 0, 0
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        spent, step, epoch = state["spent"], state["step"], state["epoch"]
        rng = np.random.default_rng(arguments.seed + step)
    else:
        vectors = factorised(texts, vocabulary, arguments.width)
        with torch.no_grad():
            model.language.bert.embeddings.word_embeddings.weight.copy_(torch.from_numpy(vectors))
    total = sum(parameter.numel() for parameter in model.language.bert.parameters())
    print(
        f"{total} encoder parameters, resumed at step {step}, {spent / 60:.1f} minutes", flush=True
    )

    def losses(batch: Batch) -> tuple[torch.Tensor, ...]:
        hidden, positions, wanted = masking(batch.ids, vocabulary=vocabulary, rng=rng)
        rows = torch.from_numpy(batch.rows)
        arrays = (torch.from_numpy(array) for array in (hidden, positions, wanted))
        with torch.autocast("cpu", torch.bfloat16):
            parts: tuple[torch.Tensor, ...] = stepped(
                *arrays, tasks[rows], labels[rows], emotions[rows]
            )
        return parts

    def save() -> None:
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "config": shape.to_dict(),
            "spent": spent,
            "step": step,
            "epoch": epoch,
        }
        torch.save(state, checkpoint.with_suffix(".tmp"))
        checkpoint.with_suffix(".tmp").replace(checkpoint)

    torch._dynamo.config.recompile_limit = 32
    stepped = torch.compile(model, dynamic=False)
    model.train()
    budget, saved, mean = 60 * arguments.minutes, spent, np.zeros(4)
    while spent < budget:
        included = np.flatnonzero(~review | (rng.random(len(posts)) < _REVIEWS))
        for picked in shuffled(lengths[included], tokens=arguments.tokens, rng=rng, exact=True):
            started = time.perf_counter()
            batch = pad(texts, np.where(picked >= 0, included[picked], -1))
            progress = spent / budget
            rise = min(1.0, (step + 1) / 300, (progress + 1e-3) / _WARMUP)
            for group in optimizer.param_groups:
                group["lr"] = arguments.rate * rise * max(0.0, 1 - progress)
            words, classes, emotion = losses(batch)
            (words + _LABEL_WEIGHT * classes + _EMOTION_WEIGHT * emotion).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
            spent += time.perf_counter() - started
            mean += [float(part.detach()) for part in (words, classes, emotion)] + [1.0]
            if step % 50 == 0:
                rates = mean[:3] / mean[3]
                print(
                    f"epoch {epoch} step {step} {spent / 60:.1f} min words {rates[0]:.3f} "
                    f"labels {rates[1]:.3f} emotions {rates[2]:.3f}",
                    flush=True,
                )
                mean[:] = 0
            if spent - saved > 240:
                saved = spent
                save()
            if spent >= budget:
                break
        epoch += 1
    save()


if __name__ == "__main__":
    main()
