"""What one connection may take, and how many there may be."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolLimits:
    """Seconds, bytes, and open connections of the whole server."""

    header_seconds: float
    header_bytes: int
    receive_seconds: float
    send_stall_seconds: float
    connections: int
    reply_bytes: int
    """That all replies together may hold while their clients do not take them."""
