"""`python -m app.cli`, which is the command `paddlepool`."""

import sys

from app.cli import main

sys.exit(main())
