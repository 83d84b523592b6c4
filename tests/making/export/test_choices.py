"""What `paddlepool export` offers is what the exporter takes."""

import claim_tables

from app.making.export import config_text
from app.tasks.sentiment import pipeline


def test_the_length_buckets_are_the_same_wherever_they_are_written() -> None:
    """What is exported and what is measured is what a model without buckets of its own gets."""
    assert config_text.BUCKETS == pipeline.BUCKETS
    served = tuple(length for length in pipeline.BUCKETS if length <= claim_tables.PADDED)
    assert served == claim_tables.BUCKETS
