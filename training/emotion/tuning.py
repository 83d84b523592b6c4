"""The loop that makes a classifier of an encoder: soft targets, R-Drop, adversarial words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from transformers import BertForSequenceClassification

from training.emotion.batching import Ids, pad, shuffled
from training.emotion.network import halved
from training.emotion.vocabulary import PAD

_LAYER_DECAY = 0.9
_AVERAGING = 0.97
_AVERAGED_EVERY = 5
_WARMUP = 0.06


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How to fine-tune; ``tokens`` a step count padding.

    ``agreement`` weighs how far two passes with other dropout differ (R-Drop), ``push`` is the
    length of a step of the word vectors that hurts most, taken before a second pass (FGM);
    either is off at 0.
    """

    epochs: int
    tokens: int
    rate: float
    agreement: float
    push: float


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


def agreed(scores: Tensor, targets: Tensor, weight: float) -> Tensor:
    """Return the loss of ``[n, 6]`` scores, or of ``[2 n, 6]``: two passes over the same texts."""
    loss = nn.functional.cross_entropy(scores, targets.repeat(len(scores) // len(targets), 1))
    if len(scores) == len(targets):
        return loss
    one, other = scores.log_softmax(dim=-1).chunk(2)
    apart = (one.exp() - other.exp()) * (one - other)
    return loss + weight * 0.5 * apart.sum(dim=-1).mean()


def tuned(
    model: BertForSequenceClassification,
    read: Callable[[], Sequence[Sequence[int]]],
    targets: Tensor,
    recipe: Recipe,
    rng: np.random.Generator,
    after: Callable[[int], None],
) -> None:
    """Train on the texts that ``read`` gives anew each epoch, with ``[n, 6]`` targets.

    ``after`` is called with the number of each finished epoch, the averaged weights in place;
    the last of them stay.
    """
    device = model.device
    vectors = model.bert.embeddings.word_embeddings.weight
    average, step = copied(model), 0
    optimizer = torch.optim.AdamW(layered(model, recipe.rate), betas=(0.9, 0.98), fused=True)
    model.train()
    for epoch in range(recipe.epochs):
        texts = read()
        lengths: Ids = np.array([len(text) for text in texts])
        batches = shuffled(lengths, tokens=recipe.tokens, rng=rng)
        for place, rows in enumerate(batches):
            progress = (epoch + place / len(batches)) / recipe.epochs
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * min(1.0, progress / _WARMUP) * (1 - progress)
            ids = torch.from_numpy(pad(texts, rows)).to(device)
            if recipe.agreement:
                ids = ids.repeat(2, 1)

            def worsen(ids: Tensor = ids, rows: Ids = rows) -> None:
                with torch.autocast(device.type, torch.bfloat16, enabled=halved(device)):
                    scores = model(ids, attention_mask=(ids != PAD).long()).logits
                agreed(scores.float(), targets[rows].to(device), recipe.agreement).backward()

            worsen()
            if recipe.push:
                if vectors.grad is None:
                    raise RuntimeError("word vectors got no gradient: this is a bug")
                moved = vectors.grad * (recipe.push / (vectors.grad.norm() + 1e-9))
                vectors.data.add_(moved)
                worsen()
                vectors.data.sub_(moved)
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
        after(epoch + 1)
        if epoch + 1 < recipe.epochs:
            model.load_state_dict(raw)
