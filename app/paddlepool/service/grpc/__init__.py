"""The Open Inference Protocol over gRPC (extra `grpc`): messages, calls and a second port.

This package only translates messages. Calls run through the HTTP API's code
(`paddlepool.service.api.v2`), and through the same keys, quotas and errors
(`paddlepool.service.api.middleware.limits.Gates`). The package is imported only if a gRPC port is
set.
"""
