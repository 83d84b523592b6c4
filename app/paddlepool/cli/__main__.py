"""Runs the command `paddlepool` as `python -m paddlepool.cli`."""

import sys

from paddlepool.cli import main

sys.exit(main())
