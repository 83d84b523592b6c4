"""Types that all packages share: errors, tensors, ports, status. Imports no other one."""
