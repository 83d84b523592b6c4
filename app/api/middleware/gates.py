"""What requests pass, whichever door they come through."""

from __future__ import annotations

from dataclasses import dataclass

from app.api.middleware.budget import Budget
from app.api.middleware.keys import KeyRules
from app.api.middleware.quotas import Purses


@dataclass(frozen=True, slots=True, kw_only=True)
class Gates:
    """Built once: doors share what callers have left, and the memory of request bodies."""

    keys: KeyRules
    purses: Purses | None
    bodies: Budget
