"""The table of peers."""

from peers import Contender, Contest, measure, rows


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
    assert (ours["latency_ratio"], ours["throughput_ratio"]["all"]) == (1.0, 1.0)
    assert (bare["latency_ratio"], bare["throughput_ratio"]["all"]) == (4.0, 0.25)
