"""The published tables: what is compared, what is scaled, and the page that shows it."""

from claim_tables import ClaimRow, ClaimTable, beaten


def table(*ratios: tuple[str, float, float | None]) -> ClaimTable:
    return ClaimTable(
        title="A network",
        unit="seconds a picture",
        requests=4,
        rows=tuple(
            ClaimRow(
                label=label,
                threads="1",
                seconds=2 / ratio,
                ratio=ratio,
                published_seconds=None if published is None else 3 / published,
                published_ratio=published,
            )
            for label, ratio, published in ratios
        ),
        refused={"bf16": "no fast bfloat16"},
    )


def test_a_published_ratio_is_beaten_by_any_row_that_measures_it_again() -> None:
    """Padded texts may stay behind where buckets are ahead; the dynamic graph claims nothing."""
    found = table(
        ("dynamic", 1.0, 1.0), ("padded", 2.4, 3.8), ("buckets", 5.0, 3.8), ("slow", 1.1, 1.2)
    )
    assert beaten(found) == {"buckets": True, "slow": False}
