"""The Open Inference Protocol v2 over HTTP, and its parts that gRPC shares."""
