"""One killable child process: its parent's side, its own side, shared arrays, suspension."""
