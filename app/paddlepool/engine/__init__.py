"""Processes, queues, pools and model versions; independent of HTTP, settings and metrics."""
