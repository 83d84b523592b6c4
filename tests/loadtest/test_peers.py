"""The table of peers: what is asked of whom, and peers that cannot take part."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

import peer_contenders
import pytest
from peer_contenders import Contender, Contest
from peer_servers import PEER_SERVERS, PeerServer, Running
from peers import Figure, Row, figures, measure, rows


def row(name: str, *, latency: float, throughput: dict[str, float], task: str = "masks") -> Row:
    return Row(
        name=name,
        task=task,
        threads_each=1,
        p50_seconds=1.0,
        p95_seconds=1.0,
        per_second=throughput,
        memory_bytes=1,
        latency_ratio=latency,
        throughput_ratio=throughput,
        agreement="",
    )


def test_every_figure_is_over_the_best_rival() -> None:
    """Of two bare loops the faster one counts, under each load."""
    ours = row("ours", latency=1.0, throughput={"2 clients": 1.0, "4 clients": 1.0})
    table = [
        ours,
        row("rembg server", latency=2.0, throughput={"2 clients": 0.25, "4 clients": 0.5}),
        row("bare onnxruntime loop", latency=0.5, throughput={"2 clients": 0.4, "4 clients": 0.4}),
        row("bare openvino loop", latency=0.5, throughput={"2 clients": 0.5, "4 clients": 0.2}),
    ]
    found = {(each.what, each.measured, each.met) for each in figures("masks", table)}
    best, rembg = "over the best bare float32 loop's", "over the rembg server's"
    assert {
        (f"masks, 2 clients: a second, {rembg}", 4.0, True),
        (f"masks, 2 clients: a second, {best}", 2.0, False),
        (f"masks, 4 clients: a second, {rembg}", 2.0, False),
        (f"masks, 4 clients: a second, {best}", 2.5, True),
        (f"masks, one client: p50, {rembg}", 0.5, True),
    } == found


def test_texts_are_asked_for_both_loads() -> None:
    """Single texts and lists have limits of their own; latency is an upper one."""
    loads = {"32 clients": 1.0, "4 of 32 texts": 1.0}
    bare = row("bare onnxruntime loop", latency=0.5, throughput=dict.fromkeys(loads, 0.5))
    found = figures("texts", [row("ours", latency=1.0, throughput=loads), bare])
    assert [(each.measured, each.limit, each.met) for each in found] == [
        (2.0, 1.5, False),
        (2.0, 1.2, True),
        (2.0, 2.5, False),
    ]


def test_nobody_to_compare_with_is_no_figure() -> None:
    """With --no-peers there is no rembg."""
    ours = row("ours", latency=1.0, throughput={"2 clients": 1.0})
    no_figures: list[Figure] = []
    assert no_figures == figures("cut-outs", [ours])


def test_ratios_are_taken_within_rounds() -> None:
    """Each busy phase of a rival stands over ours of the same round."""

    def contender(name: str, rate: float) -> Contender:
        return Contender(
            name=name,
            threads_each=1,
            one=lambda: (1 / rate, b'[{"score": 0.5}]' if name == "ours" else b"[(0, 0.5)]"),
            busy={"all": lambda _seconds: rate},
            memory=lambda: 1,
        )

    contest = Contest(
        task="texts", contenders=[contender("ours", 8), contender("b", 2)], requests=2
    )
    measure(contest, seconds=1.0, rounds=3)
    [ours, bare] = rows(contest)
    assert (ours.latency_ratio, ours.throughput_ratio["all"]) == (1.0, 1.0)
    assert (bare.latency_ratio, bare.throughput_ratio["all"]) == (4.0, 0.25)


def test_a_peer_that_cannot_be_installed_is_left_out_aloud(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others take part."""
    absent, *others = PEER_SERVERS

    def install(peer: PeerServer) -> None:
        if peer is absent:
            raise subprocess.CalledProcessError(1, ["pip"])

    @contextlib.contextmanager
    def running(*_arguments: object, **_options: object):  # type: ignore[no-untyped-def]
        yield Running(1, 1)

    monkeypatch.setattr(peer_contenders, "install", install)
    monkeypatch.setattr(peer_contenders, "running", running)
    with contextlib.ExitStack() as stack:
        found = peer_contenders.general_servers(
            stack, tmp_path / "m.onnx", b"picture", tmp_path, clients=(2, 4), workers=2
        )
        assert [peer.name for peer in others] == [each.name for each in found]
    assert f"{absent.name} IS LEFT OUT" in capsys.readouterr().err


@pytest.mark.parametrize("peer", PEER_SERVERS, ids=lambda peer: peer.name)
def test_a_peer_is_pinned(peer: PeerServer) -> None:
    """To one version, in an environment that carries its name."""
    name, _, version = peer.package.partition("==")
    assert version
    assert peer.environment.name == f".venv-peers-{name}"
