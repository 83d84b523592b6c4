"""Pre-trains the encoder on all texts; a run ends when it is told to and is resumed at will."""

from __future__ import annotations

import argparse
import signal
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from training.emotion.beginning import begin
from training.emotion.corruption import Neighbours, corrupted
from training.emotion.embedding import factorised
from training.emotion.lessons import Asked, Lessons
from training.emotion.muon import Muon
from training.emotion.network import LOSSES, Pretraining, Wanted, config, halved
from training.emotion.packing import WIDTH, Packed

_WEIGHTS = (1.0, 5.0, 0.5, 0.5, 1.0)
_WARMUP = 200
_SAVED_EVERY = 300
"""Seconds of training."""


def optimizers(model: nn.Module, rate: float) -> list[torch.optim.Optimizer]:
    """Return Muon for the layers' matrices and AdamW for everything else."""
    turned, decayed, plain = [], [], []
    for name, parameter in model.named_parameters():
        if ".layer." in name and parameter.dim() == 2:
            turned.append(parameter)
        else:
            (decayed if parameter.dim() > 1 else plain).append(parameter)
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}]
    return [
        Muon(turned, rate, 0.01),
        torch.optim.AdamW(groups, rate, betas=(0.9, 0.98), fused=True),
    ]


def main() -> None:
    """Command line: see ``--help``; a run is resumed from its newest checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder that prepare wrote")
    parser.add_argument("--minutes", type=float, default=1e9, help="of this run, then it saves")
    parser.add_argument(
        "--cooldown",
        action="store_true",
        help="let the rate fall to 0 over --minutes and write NAME-cool.pt, "
        "what fine-tuning begins from; NAME.pt stays to be gone on with",
    )
    parser.add_argument("--name", default="pretrain", help="of the checkpoint, less .pt")
    parser.add_argument(
        "--teacher", default="linear", help="emotions of every text: file below --out, less .npz"
    )
    parser.add_argument("--begin", type=Path, help="folder of a served version to start from")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=320)
    parser.add_argument("--rows", type=int, default=48, help=f"of {WIDTH} tokens, a step")
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    device, out = torch.device(arguments.device), arguments.out

    teacher = out / f"{arguments.teacher}.npz"
    lessons = Lessons(out, teacher=teacher if teacher.is_file() else None, last=arguments.cooldown)
    neighbours = Neighbours(lessons.texts)
    pieces = lessons.tokenizer.get_vocab_size()
    shape = config(pieces, layers=arguments.layers, width=arguments.width, dropout=0.0)
    model = Pretraining(shape)
    checkpoint = out / f"{arguments.name}.pt"
    state = {"step": 0, "tokens": 0, "spent": 0.0}
    optimizing = optimizers(model, arguments.rate)
    if checkpoint.exists():
        stored = torch.load(checkpoint, weights_only=True, map_location="cpu")
        model.load_state_dict(stored["model"])
        state = {name: stored[name] for name in state}
    elif arguments.begin:
        begin(model.language.bert, lessons.tokenizer, arguments.begin)
    else:
        vectors = torch.from_numpy(factorised(lessons.texts, pieces, arguments.width))
        with torch.no_grad():
            model.language.bert.embeddings.word_embeddings.weight.copy_(vectors)
    model.to(device)
    if checkpoint.exists():
        for optimizer, past in zip(optimizing, stored["optimizers"], strict=True):
            optimizer.load_state_dict(past)
    rng = np.random.default_rng((arguments.seed, state["step"]))
    total = sum(parameter.numel() for parameter in model.language.bert.parameters())
    print(
        f"{total} encoder parameters, {len(lessons.texts)} texts, teacher "
        f"{teacher.is_file()}, from step {state['step']}, {state['tokens'] / 1e6:.2f} M tokens, "
        f"{state['spent'] / 60:.1f} min",
        flush=True,
    )

    def save(path: Path) -> None:
        everything = {
            "model": model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in optimizing],
            "config": shape.to_dict(),
            "signs": lessons.signs,
            **state,
        }
        torch.save(everything, path.with_suffix(".tmp"))
        path.with_suffix(".tmp").replace(path)

    ended = False

    def end(*_: object) -> None:
        nonlocal ended
        ended = True

    signal.signal(signal.SIGTERM, end)
    target = out / f"{arguments.name}-cool.pt" if arguments.cooldown else checkpoint
    weights = torch.tensor(_WEIGHTS, device=device)
    model.train()
    began, saved, start = time.perf_counter(), 0.0, dict(state)
    mean, counted = np.zeros(len(LOSSES)), 0
    while True:
        for batch, asked in lessons.epoch(rows=arguments.rows, rng=rng):
            here = time.perf_counter() - began
            left = 1 - here / (60 * arguments.minutes)
            if left <= 0 or ended:
                save(target)
                return
            warm = min(1.0, (state["step"] + 1) / _WARMUP)
            for optimizer in optimizing:
                for group in optimizer.param_groups:
                    group["lr"] = arguments.rate * warm * (left if arguments.cooldown else 1)
            with torch.autocast(device.type, torch.bfloat16, enabled=halved(device)):
                parts = model(*arrays(batch, asked, neighbours, rng, device))
            (parts * weights).sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer in optimizing:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            state["step"] += 1
            state["tokens"] += int((batch.owner >= 0).sum())
            mean, counted = mean + parts.detach().cpu().numpy(), counted + 1
            here = time.perf_counter() - began
            state["spent"] = start["spent"] + here
            if state["step"] % 25 == 0:
                means = " ".join(
                    f"{name} {value:.4f}"
                    for name, value in zip(LOSSES, mean / counted, strict=True)
                )
                print(
                    f"step {state['step']} {state['tokens'] / 1e6:.2f} M tokens "
                    f"{state['spent'] / 60:.1f} min {means} "
                    f"{(state['tokens'] - start['tokens']) / here:.0f} tokens/s",
                    flush=True,
                )
                mean, counted = np.zeros(len(LOSSES)), 0
            if here - saved > _SAVED_EVERY and not arguments.cooldown:
                saved = here
                save(target)


def arrays(
    batch: Packed,
    asked: Asked,
    neighbours: Neighbours,
    rng: np.random.Generator,
    device: torch.device,
) -> tuple[Tensor | Wanted, ...]:
    """Return the network's arguments for one batch, freshly corrupted."""
    changed = corrupted(batch, neighbours, rng)

    def there(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(device, non_blocking=True)

    return (
        *map(there, (changed.ids, batch.owner, batch.place)),
        *map(there, (changed.hidden, changed.wanted, changed.replaced)),
        Wanted(*map(there, (batch.first, asked.task, asked.label, asked.signs, asked.emotion))),
    )


if __name__ == "__main__":
    main()
