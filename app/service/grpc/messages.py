"""The protocol's messages, built from the descriptors beside this module when a server opens.

They have their own descriptor pool, because a client library in the same process may register
messages with the same names in the default pool.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]

SERVICE = "inference.GRPCInferenceService"
DESCRIPTORS = "open_inference.binpb"


def descriptor_set() -> bytes:
    """Return the output of the protocol buffer compiler for open_inference.proto."""
    return files("app.service.grpc").joinpath(DESCRIPTORS).read_bytes()


class Messages:
    """The classes of all messages by their short names, like `messages["ModelInferRequest"]`."""

    def __init__(self) -> None:
        self.pool = descriptor_pool.DescriptorPool()
        for file in descriptor_pb2.FileDescriptorSet.FromString(descriptor_set()).file:
            self.pool.Add(file)
        self._classes: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        found = self._classes.get(name)
        if found is None:
            descriptor = self.pool.FindMessageTypeByName(f"inference.{name}")
            found = self._classes[name] = message_factory.GetMessageClass(descriptor)
        return found
