"""Prints, as JSON, what a child process has of its parent's terminal, which is standard input."""

from __future__ import annotations

import fcntl
import json
import sys
import termios

from app.process.child import Child

if __name__ == "__main__":
    fcntl.ioctl(sys.stdin, termios.TIOCSCTTY, 0)
    child = Child("tests.process.attempts:open_terminal", {})
    print(json.dumps(dict(child.call({}, timeout=60.0).meta)))
    child.close()
