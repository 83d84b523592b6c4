"""Deep supervision: cross-entropy plus soft IoU on each of the seven maps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

FUSED_WEIGHT = 2.0
"""The fused map is the one that is served; each side map counts once."""


def map_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy + (1 - soft IoU), the IoU per picture; both N×1×S×S, target in 0…1."""
    entropy = F.binary_cross_entropy_with_logits(logits, target)
    mask = torch.sigmoid(logits)
    both = (mask * target).sum((1, 2, 3))
    either = (mask + target).sum((1, 2, 3)) - both
    # A target of 0.5 can never give IoU 1, a constant offset that leaves the gradient useful.
    return entropy + (1 - (both + 1) / (either + 1)).mean()


def deep_loss(outputs: Sequence[Tensor], targets: Tensor) -> Tensor:
    """Weighted mean over the logit maps and their targets N×7×S×S.

    Seven maps N×1×S×S, or the five of a coarse pass, N×1×(S/2)×(S/2), against shrunk targets.
    """
    weights = [FUSED_WEIGHT] + [1.0] * 6
    if len(outputs) == 5:
        weights = weights[2:]
        targets = F.avg_pool2d(targets[:, 2:], 2)
    total = torch.zeros((), device=targets.device)
    for index, (logits, weight) in enumerate(zip(outputs, weights, strict=True)):
        total = total + weight * map_loss(logits.float(), targets[:, index : index + 1])
    return total / sum(weights)
