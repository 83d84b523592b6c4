"""Every setting that belongs to no task."""
