"""Settings of the server's interfaces: connections, total request memory, host names, quotas."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, Field, SecretStr, field_validator
from pydantic_settings import NoDecode

KIB = 1024
LOOPBACK = ("localhost", "127.0.0.1", "::1")
HOST = re.compile(r"\*|(\*\.)?[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?|[0-9a-f:.]+")

DoorName = Literal["rembg", "removebg", "tei", "huggingface", "paddlex"]
DOOR_NAMES: tuple[DoorName, ...] = get_args(DoorName)


def split_words(value: Any) -> Any:
    """Split a comma-separated list from the environment. Raises ValueError."""
    if not isinstance(value, str):
        return value
    items = tuple(item.strip() for item in value.split(",") if item.strip())
    if value.strip() and not items:
        raise ValueError("expected words separated by commas")
    return items


Bytes = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]
Words = Annotated[tuple[str, ...], NoDecode, BeforeValidator(split_words)]
Keys = Annotated[tuple[SecretStr, ...], NoDecode, BeforeValidator(split_words)]


class DoorSettings(BaseModel):
    """The part of app.settings.server.Settings for connections and clients."""

    grpc_port: int | None = Field(
        None,
        ge=0,
        le=65_535,
        description="Port for the Open Inference Protocol over gRPC, which needs the extra `grpc`;"
        " 0 takes a free one and logs it, and without it there is none.",
    )
    tracing: bool = Field(
        False,
        description="Whether requests are traced with OpenTelemetry, which needs the extra `otel`;"
        " the standard OTEL_* variables say where spans go and how many are kept.",
    )
    header_timeout_seconds: Seconds = Field(
        10.0, description="Time a client has to send a request's headers, else 408."
    )
    header_max_bytes: Bytes = Field(
        32 * KIB, description="Most bytes of a request line and its headers, else 431."
    )
    receive_timeout_seconds: Seconds = Field(
        30.0, description="Time a client has to send a whole request, else 408."
    )
    keep_alive_seconds: Seconds = Field(
        5.0, description="Time an idle connection is kept open for the next request."
    )
    send_stall_seconds: Seconds = Field(
        30.0,
        description="Time in which a client must take 64 KiB of its reply, else it is cut off.",
    )
    backlog: int = Field(
        2048, ge=1, le=65_535, description="Connections the system may queue before accept."
    )
    max_connections: int = Field(
        1_000,
        ge=1,
        description="Open connections beyond which requests get 503, on 16 connections more, and"
        " the next are closed at once; a backstop only. The server does not start where the limit"
        " of open files is too low for them.",
    )
    body_memory_bytes: int = Field(
        0,
        ge=0,
        description="Memory that all request bodies together may hold, and as much again replies"
        " that their clients do not take, in bytes; 0 takes a quarter of the machine's or the"
        " container's.",
    )
    allowed_hosts: Words = Field(
        (),
        description="Names that a request's Host may have, else 400, as `api.example` or"
        " `*.example`; `*`: every name; left out, those of this machine's loopback where the"
        " server listens there, and every name elsewhere.",
    )

    doors: Annotated[tuple[DoorName, ...], NoDecode, BeforeValidator(split_words)] = Field(
        DOOR_NAMES,
        description="Formats of other servers that this one answers as well, of `rembg`,"
        " `removebg`, `tei`, `huggingface` and `paddlex`; empty: none.",
    )
    trusted_proxies: Words = Field(
        (),
        description="Addresses or networks, as `10.0.0.0/8`, of proxies whose X-Forwarded-For tells"
        " the client's address.",
    )
    quota_requests_per_minute: int = Field(
        0, ge=0, description="Requests a minute of one key, or address without keys; 0: any number."
    )
    quota_pixels_per_minute: int = Field(
        0, ge=0, description="Pixels of uploaded pictures a minute, likewise; 0: any number."
    )
    quota_texts_per_minute: int = Field(
        0, ge=0, description="Texts to classify a minute, likewise; 0: any number."
    )
    quota_concurrent_requests: int = Field(
        0, ge=0, description="Requests at one time of one key or address; 0: any number."
    )

    @field_validator("trusted_proxies")
    @classmethod
    def _proxies_are_networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for network in value:
            ipaddress.ip_network(network)  # raises ValueError
        return value

    def proxies(self) -> list[str]:
        """The trusted proxies; IPv4 networks also as a dual-stack socket reports them (mapped)."""
        found = [ipaddress.ip_network(network) for network in self.trusted_proxies]
        mapped = (
            f"::ffff:{network.network_address}/{96 + network.prefixlen}"
            for network in found
            if network.version == 4
        )
        return [*self.trusted_proxies, *mapped]

    @field_validator("allowed_hosts")
    @classmethod
    def _hosts_are_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        names = tuple(name.lower().removeprefix("[").removesuffix("]") for name in value)
        if not all(HOST.fullmatch(name) for name in names):
            raise ValueError("each is a host name, *.name, an address or *, without a port")
        return names


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a listener on `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
