"""A server under somebody else's engine: what it is given, and the metrics of several in one."""

import os
import signal
import subprocess
import sys

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from paddlepool.service.scale.local_server import merged, server_environment
from paddlepool.settings.server import Settings

PROXY = """
import time
from paddlepool.service.scale.local_server import LocalServer
from paddlepool.settings.server import Settings
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
    env = {"PADDLEPOOL_TRUSTED_PROXIES": "10.0.0.0/8", "PADDLEPOOL_GRPC_PORT": "8001", "A": "b"}
    assert server_environment(env) == {
        "PADDLEPOOL_TRUSTED_PROXIES": "10.0.0.0/8,127.0.0.1",
        "PADDLEPOOL_DRAIN_DELAY_SECONDS": "0",
        "A": "b",
    }
    changed = server_environment({})
    assert changed["PADDLEPOOL_TRUSTED_PROXIES"] == "127.0.0.1"
    assert set(changed) <= {f"PADDLEPOOL_{name.upper()}" for name in Settings.model_fields}


def exposition(*, served: int, model: str | None = None) -> str:
    registry = CollectorRegistry()
    Counter("served", 'With a quote " and a } in it', ["route"], registry=registry).labels(
        'a } "b" \\ c d'
    ).inc(served)
    Gauge("queue", "No label", registry=registry).set(served)
    Histogram("seconds", "Buckets", buckets=[1], registry=registry).observe(served)
    if model:
        Gauge("ready", "Of one replica only", ["model"], registry=registry).labels(model).set(1)
    return generate_latest(registry).decode()


def test_every_sample_is_there_with_its_replica() -> None:
    texts = {"a1": exposition(served=1), "b2": exposition(served=2, model="mnist")}
    expected = {
        (sample.name, *sorted((sample.labels | {"replica": name}).items()), sample.value)
        for name, text in texts.items()
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    families = list(text_string_to_metric_families(merged(texts, label="replica").decode()))
    merged_samples = [
        (sample.name, *sorted(sample.labels.items()), sample.value)
        for family in families
        for sample in family.samples
    ]
    assert len(merged_samples) == len(set(merged_samples))
    assert expected == set(merged_samples)


def test_a_family_is_described_once_and_before_its_samples() -> None:
    """Prometheus refuses a second TYPE of a name."""
    text = merged({"a": exposition(served=1), "b": exposition(served=2)}, label="replica").decode()
    lines = text.splitlines()
    for name in ("served_total", "queue", "seconds"):
        described = [n for n, line in enumerate(lines) if line.startswith(f"# TYPE {name} ")]
        heads = tuple(f"{name}{suffix}{{" for suffix in ("", "_bucket", "_count", "_sum"))
        samples = [number for number, line in enumerate(lines) if line.startswith(heads)]
        assert len(described) == 1
        assert described[0] < min(samples)
        assert samples == list(range(min(samples), max(samples) + 1))
