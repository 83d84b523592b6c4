"""Queues, instances and versions of models; knows no HTTP, no asyncio and no ML framework."""
