"""What a server under somebody else's engine is given."""

from __future__ import annotations

from app.scale.local_server import server_environment
from app.settings import Settings


def test_it_keeps_the_settings_and_learns_who_stands_in_front() -> None:
    """The relay says whose request it is, and whoever is in front has left before the drain. gRPC
    has no port: every replica of a machine would want the same one, and nothing leads to it."""
    given = {"PADDLEPOOL_TRUSTED_PROXIES": "10.0.0.0/8", "PADDLEPOOL_GRPC_PORT": "8001", "A": "b"}
    assert server_environment(given) == {
        "PADDLEPOOL_TRUSTED_PROXIES": "10.0.0.0/8,127.0.0.1",
        "PADDLEPOOL_DRAIN_DELAY_SECONDS": "0",
        "A": "b",
    }
    changed = server_environment({})
    assert changed["PADDLEPOOL_TRUSTED_PROXIES"] == "127.0.0.1"
    assert set(changed) <= {f"PADDLEPOOL_{name.upper()}" for name in Settings.model_fields}
