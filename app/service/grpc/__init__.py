"""The Open Inference Protocol over gRPC (extra `grpc`): messages, calls and a second port.

What a call means is the HTTP door's business (`app.service.api.v2`), and so are keys, quotas and
errors (`app.service.api.middleware.limits.Gates`): here messages are translated. Nothing else
imports this unless a port is set.
"""
