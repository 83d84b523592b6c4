"""docker-compose.yml is valid, hardened and in step with the settings."""

import re
from typing import Any

import pytest
import yaml

from paddlepool.settings.server import Settings
from tests.deploy.conftest import tool
from tests.ran import ROOT, ran

FILE = ROOT / "docker-compose.yml"
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(FILE.read_text("utf-8"))["services"]


@pytest.mark.slow
def test_the_file_is_valid() -> None:
    """By the schema that check-jsonschema carries."""
    ran([tool("check-jsonschema", "make install"), "--builtin-schema", "vendor.compose-spec", FILE])


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_hardened(name: str) -> None:
    """Read-only root, no capabilities, no new privileges, bounded processes and memory."""
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["pids_limit"] <= 512
    assert service["mem_limit"]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert not any(re.search(r"\d-\d", port) for port in service["ports"])  # Podman takes no range
    binds = [volume for volume in service.get("volumes", []) if volume.startswith("./")]
    assert all(volume.endswith(":ro") for volume in binds)
    assert all((ROOT / volume.split(":")[0]).exists() for volume in binds)


def test_the_image_s_own_models_are_served() -> None:
    """A checkout's model_repo has the preview alone until something has pulled."""
    assert "volumes" not in SERVICES["paddlepool"]


def test_our_own_images_are_never_pulled() -> None:
    """A stranger may own their names in a registry."""
    policies = {name: spec["pull_policy"] for name, spec in SERVICES.items() if "build" in spec}
    assert policies == {"paddlepool": "build", "locust": "build"}


@pytest.mark.parametrize("name", ["paddlepool", "prometheus", "grafana"])
def test_every_server_has_a_health_check(name: str) -> None:
    """Others wait for it."""
    assert SERVICES[name]["healthcheck"]["test"][0] == "CMD"


def test_a_drain_ends_before_the_container_is_killed() -> None:
    """The grace period outlasts the drain delay and the drain timeout together."""
    settings = Settings()
    grace = float(SERVICES["paddlepool"]["stop_grace_period"].removesuffix("s"))
    assert grace > settings.drain_delay_seconds + settings.drain_timeout_seconds


def test_the_load_generator_runs_only_when_asked_for() -> None:
    """It is in the profile `load`, the balancer in `scale`, and nothing else is in a profile."""
    profiles = {name: s["profiles"] for name, s in SERVICES.items() if "profiles" in s}
    assert profiles == {"locust": ["load"], "balancer": ["scale"]}
