"""What rooms say to each other: errors, tensors, ports, status. Imports nothing of ours."""
