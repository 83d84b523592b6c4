"""A killable child process: the parent's side, the child's side, shared arrays, suspension."""
