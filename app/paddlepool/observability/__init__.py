"""Observability of the server: metrics, gauges, history, traces, build information, log."""
