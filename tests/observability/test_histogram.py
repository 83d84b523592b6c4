"""The histograms of /metrics are exposed as those of the library are."""

import prometheus_client
from hypothesis import given
from hypothesis import strategies as st

from app.observability.metrics import DRIFT, ROWS, SECONDS, HistogramFamily

BOUNDS = st.sampled_from((SECONDS, DRIFT, ROWS))


@given(st.data())
def test_a_histogram_is_exposed_as_the_librarys_own(data: st.DataObject) -> None:
    """Byte for byte, with values on a bound and above all of them."""
    bounds = data.draw(BOUNDS)
    value = st.sampled_from(bounds) | st.floats(min_value=0, allow_nan=False)
    values = data.draw(st.lists(st.tuples(value, st.sampled_from("ab"))))
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
    ours, theirs = prometheus_client.CollectorRegistry(), prometheus_client.CollectorRegistry()
    own = HistogramFamily("seconds", "Help.", ("name",), bounds)
    ours.register(own)
    library = prometheus_client.Histogram(
        "seconds", "Help.", ("name",), buckets=bounds, registry=theirs
    )
    for observed, name in values:
        own.observe(observed, name)
        library.labels(name).observe(observed)
    assert prometheus_client.generate_latest(ours) == prometheus_client.generate_latest(theirs)
