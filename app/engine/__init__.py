"""Processes, queues, pools and versions of models; knows no HTTP, settings or metrics."""
