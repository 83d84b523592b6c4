"""The server: HTTP, gRPC, connections, replicas. Knows no task by name."""
