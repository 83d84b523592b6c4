"""Formats of other servers, answered by the tasks of this one: one module for each format."""
