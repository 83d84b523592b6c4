"""What a server under somebody else's engine is given."""

import os
import signal
import subprocess
import sys

from app.service.scale.local_server import server_environment
from app.settings.server import Settings

PROXY = """
import time
from app.service.scale.local_server import LocalServer
from app.settings.server import Settings
print(LocalServer(Settings())._process.pid, flush=True)
time.sleep(60)
"""


def test_a_proxy_ends_with_its_server() -> None:
    """Without its server it would answer 503 at once, and attract the others' requests."""
    with subprocess.Popen([sys.executable, "-c", PROXY], stdout=subprocess.PIPE) as proxy:
        assert proxy.stdout is not None
        os.kill(int(proxy.stdout.readline()), signal.SIGKILL)
        assert proxy.wait(10) == 1


def test_it_keeps_the_settings_and_learns_who_stands_in_front() -> None:
    """The relay says whose request it is; every replica of a machine would want one gRPC port."""
    given = {"PADDLEPOOL_TRUSTED_PROXIES": "10.0.0.0/8", "PADDLEPOOL_GRPC_PORT": "8001", "A": "b"}
    assert server_environment(given) == {
        "PADDLEPOOL_TRUSTED_PROXIES": "10.0.0.0/8,127.0.0.1",
        "PADDLEPOOL_DRAIN_DELAY_SECONDS": "0",
        "A": "b",
    }
    changed = server_environment({})
    assert changed["PADDLEPOOL_TRUSTED_PROXIES"] == "127.0.0.1"
    assert set(changed) <= {f"PADDLEPOOL_{name.upper()}" for name in Settings.model_fields}
