"""Types that all packages of `app` share: errors, tensors, ports, status. Imports no other one."""
