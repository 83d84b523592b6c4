"""The server: HTTP, gRPC, connections and replicas. It depends on no specific task."""
