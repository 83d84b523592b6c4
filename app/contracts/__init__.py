"""Types shared by all wings: errors, tensors, ports, status. Imports no other wing."""
