"""Liveness, readiness, /info and the gauges of /metrics, over a registry of fakes."""

from dataclasses import replace
from typing import cast

import pytest

from paddlepool.contracts.status import Candidate, Effect, GroupStatus, ModelStatus
from paddlepool.engine.pool.group import Duration, Statistics
from paddlepool.engine.registry.registry import ModelRegistry
from paddlepool.service.api.info import read_gauges
from tests.service.api.fakes import (
    CHOICE,
    GROUP,
    Client,
    FakeModel,
    FakeRegistry,
    make_app,
    make_settings,
)

BROKEN = ModelStatus(name="m2", version=3, state="UNAVAILABLE", reason="m2/3: broken")


def client_of(registry: FakeRegistry) -> Client:
    return Client(make_app(registry=registry))


def test_readiness_needs_every_model() -> None:
    assert client_of(FakeRegistry()).get("/v2/health/ready").status_code == 200
    down = client_of(FakeRegistry(models=[FakeModel(is_ready=False)]))
    assert down.get("/v2/models/m1/ready").status_code == 503
    for client in (down, client_of(FakeRegistry(failed=[BROKEN]))):
        assert client.get("/v2/health/live").json() == {"live": True}
        response = client.get("/v2/health/ready")
        assert response.status_code == 503
        assert response.headers["retry-after"] == "2"
    nothing = client_of(FakeRegistry(models=[])).get("/v2/health/ready")
    assert nothing.status_code == 503
    assert "No model is served" in nothing.json()["error"]


def test_info_tells_what_is_served_and_from_where() -> None:
    info = client_of(FakeRegistry(failed=[BROKEN])).get("/info").json()
    assert info["ready"] is False
    assert info["default_models"] == {"echo": "m1"}
    served, broken = info["models"]
    assert (served["name"], served["version"], served["state"]) == ("m1", 1, "READY")
    assert served["task"] == "echo"
    assert served["files"] == {"inference.json": "a" * 64, "inference.pdiparams": "b" * 64}
    assert len(served["sha256"]) == 64
    assert served["weights"] == {"origin": "random", "preview": True, "licence": "Apache-2.0"}
    assert (served["labels"], served["labels_zh"]) == (["sad", "happy"], ["悲伤", "快乐"])
    [group] = served["predictors"]
    assert (group["name"], group["backend"], group["threads"]) == ("one", "fake", 1)
    assert (group["count"], group["live"], group["queue_limit"]) == (2, 2, 32)
    assert (group["started"], group["default"], group["ready"]) == (True, True, True)
    assert (group["effective"], group["proof"]) == (None, "not measured yet")
    assert (broken["state"], broken["reason"]) == ("UNAVAILABLE", "m2/3: broken")
    assert info["thread_budget"] == {"cores": 4.0, "threads": 2, "warning": None}
    assert info["confinement"] == {"codecs": ["no_new_privileges", "landlock"], "predictors": []}


def test_info_leaves_out_what_a_newer_version_has_superseded() -> None:
    """Nothing is missing there; what failed, and what is newer than all that is ready, is told."""
    passed_over = [
        ModelStatus(name="m1", version=version, state="UNAVAILABLE", reason=reason)
        for version, reason in ((3, "not loaded"), (1, "not loaded"), (1, "broken"))
    ]
    other = ModelStatus(name="m2", version=1, state="UNAVAILABLE", reason="not loaded")
    registry = FakeRegistry(models=[FakeModel(version=2)], failed=[*passed_over, other])
    shown = {
        (model["name"], model["version"], model["reason"])
        for model in client_of(registry).get("/info").json()["models"]
    }
    assert shown == {
        ("m1", 2, None),
        ("m1", 3, "not loaded"),
        ("m1", 1, "broken"),
        ("m2", 1, "not loaded"),
    }


COLD = replace(GROUP, started=False, ready=False, reason="not started")
NOTHING, BASE_REFUSED = Effect(False, "changes nothing"), Effect(None, "its base cannot start: x")
NOISY = "too noisy to tell"


@pytest.mark.parametrize(
    ("status", "trial", "reason", "refused"),
    [
        (replace(GROUP, effect=Effect(True, "other outputs")), "", None, False),
        (replace(GROUP, effect=NOTHING), "", "changes nothing", False),
        (replace(GROUP, ready=False, reason="restarting", effect=NOTHING), "", "restarting", False),
        (COLD, "", "not started", False),
        (replace(COLD, effect=Effect(True, "other outputs")), "", "not started", False),
        (replace(COLD, effect=NOTHING), "takes 4 times as long", "not started", False),
        (replace(COLD, effect=Effect(None, NOISY)), NOISY, "not started", False),
        (replace(COLD, effect=BASE_REFUSED), NOISY, "not started", False),
        (replace(COLD, effect=Effect(None, "cannot start: a")), "", "cannot start: a", True),
        (COLD, "cannot start: no CUDA", "cannot start: no CUDA", True),
    ],
)
def test_a_group_of_no_use_says_why(
    status: GroupStatus, trial: str, reason: str | None, refused: bool
) -> None:
    """Why it is not ready comes first, then why its effect is unknown."""
    reasons = {"one": trial, "two": "cannot start: no CUDA"}
    candidates = (Candidate(group=name, fit=False, reason=why) for name, why in reasons.items())
    choice = replace(CHOICE, candidates=tuple(candidates))
    client = client_of(FakeRegistry(models=[FakeModel(statuses=(status,), choice=choice)]))
    [model] = client.get("/info").json()["models"]
    [group] = model["predictors"]
    assert group["reason"] == reason
    assert (group["effective"], group["proof"]) == (status.effect.effective, status.effect.reason)
    [model] = client.get("/compare/data").json()["models"]
    [compared] = model["groups"]
    assert (compared["reason"], compared["proof"]) == (reason, status.effect.reason)
    assert compared["refused"] == (reason if refused else None)


def test_info_tells_the_limits_that_are_in_force() -> None:
    settings = make_settings(text_max_characters=77, segment_max_bytes=1234)
    limits = Client(make_app(settings=settings)).get("/info").json()["limits"]
    assert limits["text_max_characters"] == 77
    assert limits["segment_max_bytes"] == 1234
    assert limits["image_max_pixels"] == 65_000_000


def test_gauges_are_read_from_what_is_served() -> None:
    models = [FakeModel(), FakeModel(version=2, is_ready=False)]
    registry = FakeRegistry(models=models, failed=[BROKEN])
    first, second, third = read_gauges(cast(ModelRegistry, registry))
    assert (first.model, first.version, first.ready) == ("m1", 1, True)
    assert (second.version, second.ready) == (2, False)
    assert (third.model, third.version, third.ready, third.groups) == ("m2", 3, False, ())
    [group] = first.groups
    assert (group.queue_depth, group.inflight, group.resident_bytes) == (3, 1, 1000)
    assert first.chosen_by == "measured"
    assert (first.default_group, group.name, group.queue_limit) == ("one", "one", 32)


def test_configuration_and_statistics_have_tritons_units() -> None:
    """0 rows without a batch axis; nanoseconds."""
    counters = Statistics(success=Duration(count=2, seconds=0.5))
    client = client_of(FakeRegistry(models=[FakeModel(batched=False, counters=counters)]))
    config = client.get("/v2/models/m1/config").json()
    assert config["max_batch_size"] == 0
    assert "dynamic_batching" not in config
    [stats] = client.get("/v2/models/m1/stats").json()["model_stats"]
    assert stats["inference_stats"]["success"] == {"count": 2, "ns": 500_000_000}
