"""What Paddle prints that no user of a command can act on, silenced for the process."""

import os
import warnings


def silence() -> None:
    """Call before Paddle is imported."""
    os.environ.setdefault("GLOG_minloglevel", "2")
    # A C++ build tool for custom operators, which this project has none of.
    warnings.filterwarnings("ignore", message="No ccache found")
