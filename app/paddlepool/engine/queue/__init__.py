"""Admission, scheduling and batching of jobs."""
