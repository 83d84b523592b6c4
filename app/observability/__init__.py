"""What the server tells about itself: metrics, gauges, build, log."""
