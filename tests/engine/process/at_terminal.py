"""Prints, as JSON, a child's id and what it can do to its parent's terminal and standard error."""

import fcntl
import json
import sys
import termios

from paddlepool.engine.process.child import Child

if __name__ == "__main__":
    fcntl.ioctl(sys.stdin, termios.TIOCSCTTY, 0)
    print("before ", end="", file=sys.stderr, flush=True)
    child = Child("tests.engine.process.attempts:open_printing", {})
    print(json.dumps([child.pid, dict(child.call({}, timeout=60.0).meta)]))
    child.close()
