"""All settings of the server with their defaults and limits. Tasks declare their own."""

import ipaddress
import os
import re
from collections.abc import Collection, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    DirectoryPath,
    Field,
    SecretStr,
    ValidationError,
    create_model,
    field_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from paddlepool.contracts.errors import ConfigError

PREFIX = "PADDLEPOOL_"
KEYS_FILE = PREFIX + "API_KEYS_FILE"
OLDER_NAMES = {"compatible_apis": f"{PREFIX}DOORS"}
"""Maps a setting to the older name of its variable, which is still read."""
KIB, MIB = 1024, 1024 * 1024
LOOPBACK = ("localhost", "127.0.0.1", "::1")
HOST = re.compile(r"\*|(\*\.)?[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?|[0-9a-f:.]+")

API_NAMES = ("rembg", "removebg", "tei", "huggingface", "paddlex")
"""The compatible APIs of the server itself."""


def split_words(value: Any) -> Any:
    """Split a comma-separated text into a tuple of words; return any other value unchanged.

    Raises ValueError for a text that has commas but no words.
    """
    if not isinstance(value, str):
        return value
    items = tuple(item.strip() for item in value.split(",") if item.strip())
    if value.strip() and not items:
        raise ValueError("expected words separated by commas")
    return items


Positive = Annotated[int, Field(ge=1)]
Bytes = Positive
ZeroOrMore = Annotated[int, Field(ge=0)]
UpTo64 = Annotated[int, Field(ge=1, le=64)]
Port = Annotated[int, Field(ge=0, le=65_535)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]
Words = Annotated[tuple[str, ...], NoDecode, BeforeValidator(split_words)]
Keys = Annotated[tuple[SecretStr, ...], NoDecode, BeforeValidator(split_words)]

T = TypeVar("T", bound=BaseModel)


def split_pairs(value: Any) -> Any:
    """Split the text `a=b,c=d` into a dict; return any other value unchanged.

    Of pairs with the same name, the last counts. Raises ValueError if a name or a value is missing.
    """
    if not isinstance(value, str):
        return value
    pairs = [item.partition("=") for item in value.split(",") if item.strip()]
    if any(not (left.strip() and right.strip()) for left, _, right in pairs):
        raise ValueError("expected NAME=VALUE pairs separated by commas")
    return {left.strip(): right.strip() for left, _, right in pairs}


Pairs = Annotated[dict[str, str], NoDecode, BeforeValidator(split_pairs)]


class PluginSettings(BaseSettings):
    """The settings that decide which tasks, and thus which other settings, the server has."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        frozen=True,
        extra="forbid",
        validate_by_name=True,
        validate_by_alias=True,
    )

    tasks: Pairs = {}
    """Tasks of modules that are no installed package, such as `tagger=my_package.task`. Those of
    installed packages are served without it."""
    compatible_apis: Annotated[
        tuple[str, ...],
        NoDecode,
        BeforeValidator(split_words),
        Field(
            validation_alias=AliasChoices(
                f"{PREFIX}COMPATIBLE_APIS", OLDER_NAMES["compatible_apis"]
            )
        ),
    ] = API_NAMES
    """Formats of other servers that this server also answers: `rembg`, `removebg`, `tei`,
    `huggingface`, `paddlex`, those of installed packages, and `name=my_package.api`. Unset: all.
    Empty: none."""


class Settings(PluginSettings):
    """Settings from environment variables: `PADDLEPOOL_` and the field's name in capitals.

    Lists are written with commas: `PADDLEPOOL_CORS_ORIGINS=https://a.example,https://b.example`.
    """

    grpc_port: Port | None = None
    """Port for the Open Inference Protocol over gRPC (extra `grpc`). 0 picks a free port and logs
    it. Unset: no gRPC."""
    tracing: bool = False
    """Whether requests are traced with OpenTelemetry (extra `otel`). The standard OTEL_* variables
    configure the exporter and the sampling."""
    header_timeout_seconds: Seconds = 10.0
    """Maximum time to send a request's headers, else 408."""
    header_max_bytes: Bytes = 32 * KIB
    """Maximum bytes of a request line and its headers, else 431."""
    receive_timeout_seconds: Seconds = 30.0
    """Maximum time to send a whole request, else 408."""
    keep_alive_seconds: Seconds = 5.0
    """How long an idle connection is kept open for the next request."""
    send_stall_seconds: Seconds = 30.0
    """Time in which a client must read 64 KiB of its reply, else the connection is closed."""
    backlog: Annotated[int, Field(ge=1, le=65_535)] = 2048
    """Connections that the system may queue before they are accepted."""
    max_connections: Positive = 1_000
    """Maximum open connections. 16 more get 503; further ones are closed at once. The server does
    not start if the limit of open files is too low for them."""
    body_memory_bytes: ZeroOrMore = 0
    """Maximum bytes of all request bodies together, and of all unread replies together. 0: a
    quarter of the memory of the machine or the container."""
    allowed_hosts: Words = ()
    """Accepted Host names, such as `api.example` or `*.example`, else 400. `*` accepts every name.
    Unset: loopback names if the server listens on a loopback address, else every name."""

    trusted_proxies: Words = ()
    """Addresses or networks of proxies, such as `10.0.0.0/8`, whose X-Forwarded-For is trusted for
    the client's address."""
    quota_requests_per_minute: ZeroOrMore = 0
    """Requests per minute for each caller: its key, or its address if there are no keys. 0:
    unlimited."""
    quota_pixels_per_minute: ZeroOrMore = 0
    """Pixels of uploaded pictures per minute for each caller. 0: unlimited."""
    quota_texts_per_minute: ZeroOrMore = 0
    """Texts per minute for each caller. 0: unlimited."""
    quota_concurrent_requests: ZeroOrMore = 0
    """Concurrent requests of each caller. 0: unlimited."""

    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    """Address to listen on."""
    port: Port = 8000
    """Port to listen on. 0 picks a free port and logs it."""
    model_repository: Path = Path("model_repo")
    """Directory with one directory for each model. If it is unset and the default does not exist,
    `paddlepool serve` makes `paddlepool/model_repo` below `$XDG_DATA_HOME` or `~/.local/share`,
    and the other commands use that one."""
    default_models: Pairs = {}
    """Model for requests that name none, such as `segment=u2netp`. Other tasks use the model with
    `default = true` in its config.toml, else the first by name that has the task."""
    model_source: str = ""
    """Source of the models, such as `s3://bucket/prefix`. They are copied and verified before the
    start and at each poll of the repository. Unset: the directory alone."""
    repository_poll_seconds: Annotated[float, Field(ge=0, le=86_400)] = 0.0
    """Seconds between two polls of the model repository for changes. 0: after the start, only the
    model control endpoints look for changes."""
    replica: Annotated[str, Field(pattern="^[A-Za-z0-9._-]{0,253}$")] = ""
    """Name of this server among its replicas, in every JSON log line and in `X-Replica` of its
    replies. Unset: log lines have the host's name."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level of the log lines: `debug`, `info`, `warning` or `error`."""
    log_format: Literal["auto", "json", "text"] = "auto"
    """`text` is for people, `json` for programs. `auto`: text on a terminal, JSON elsewhere."""

    infer_max_bytes: Bytes = 64 * MIB
    """Maximum request body of /v2/models/…/infer, in bytes."""
    infer_json_max_bytes: Bytes = 8 * MIB
    """Maximum JSON part of an /infer body, in bytes. Raw tensors are not counted."""
    body_max_bytes: Bytes = 16 * KIB
    """Maximum request body of an endpoint without a limit of its own, in bytes."""
    image_max_pixels: Positive = 65_000_000
    """Maximum pixels of an uploaded picture, read from its header."""
    image_max_side: Annotated[int, Field(ge=1, le=65_535)] = 16_384
    """Maximum width or height of an uploaded picture, in pixels."""
    picture_formats: Words = ()
    """Accepted picture formats, such as `jpeg,png,heic`. Empty: all."""
    jpeg_max_scans: Positive = 100
    """Maximum scans of a JPEG; a file with more is a decompression bomb."""
    png_max_pixels: Positive = 65_000_000
    """Maximum pixels of a PNG in a reply."""
    form_max_fields: Annotated[int, Field(ge=1, le=1_000)] = 16
    """Maximum fields of a multipart form besides its file."""
    timeout_default_ms: Positive = 10_000
    """Deadline of a request that names none, in milliseconds."""
    timeout_max_ms: Positive = 30_000
    """Maximum deadline that a request may name, in milliseconds."""

    drain_delay_seconds: Annotated[float, Field(ge=0, le=600)] = 5.0
    """Time to go on serving after SIGTERM, while readiness answers 503."""
    drain_timeout_seconds: Seconds = 20.0
    """Time for requests in flight to finish after the drain delay."""

    codec_processes: UpTo64 = 2
    """Processes that decode and encode pictures."""
    codec_memory_bytes: Annotated[int, Field(ge=256 * MIB)] = 1_536 * MIB
    """Address space of one codec process, in bytes."""
    codec_timeout_seconds: Seconds = 5.0
    """Maximum time to decode the largest picture. A smaller picture has at least two fifths of
    it."""
    codec_queue_size: Annotated[int, Field(ge=1, le=10_000)] = 32
    """Maximum pictures waiting for a codec process, else 503."""
    picture_memory_bytes: Annotated[int, Field(ge=64 * MIB)] = 1_024 * MIB
    """Maximum bytes of all decoded pictures together."""
    text_threads: UpTo64 = 2
    """Threads that tokenise texts."""

    predictor_memory_bytes: Bytes = 2 << 30
    """Resident bytes above which a predictor process is replaced by a fresh one, if that is also
    more than 1.5 times its size after opening."""
    on_demand_groups: UpTo64 = 3
    """Maximum instance groups that were started on demand, besides default groups. The least
    recently used idle one is stopped for the next."""
    on_demand_memory_bytes: ZeroOrMore = 0
    """No further group starts on demand while the started ones hold this many resident bytes. 0: a
    quarter of the memory of the machine or the container."""
    on_demand_idle_seconds: Annotated[float, Field(ge=0, le=86_400)] = 600.0
    """Seconds without a request after which a group that was started on demand is stopped; the next
    request starts it again. 0: never."""
    shadow_fraction: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the requests answered by a default group that are sampled, to run again on the
    model's other instance groups in idle moments and compare times and outputs."""
    shadow_groups: Words = ()
    """Instance groups for these runs, in every model that has them. Empty: all that are
    started."""
    shadow_max_predictors: UpTo64 = 4
    """Maximum predictor processes that are kept open for these runs."""
    prove_groups: Literal["off", "started", "all"] = "started"
    """Instance groups that are measured in idle moments. `off`: none, and no default group is
    chosen. `all` opens each group of each model once, also those that start on demand."""

    precision: Literal["auto", "exact"] = "auto"
    """`auto` may choose a default group of lower precision. `exact` chooses none whose outputs
    differ by more than 0.0001 from those of the group that serves first."""
    state_file: Path | None = None
    """File that keeps chosen default groups for the next start; promoted versions are kept beside
    it. `off`: none. Unset: a file in the user's home."""
    canary_judge: Annotated[str, Field(pattern="^[A-Za-z0-9._-]{0,253}$")] = ""
    """Name of the replica (`PADDLEPOOL_REPLICA`) that alone judges new versions. The others follow
    its verdict, which they read beside `PADDLEPOOL_STATE_FILE`. Unset: each replica judges."""
    quality_data: DirectoryPath | None = None
    """Folder of the labelled data for the conditions `quality` of new versions. It must exist."""

    api_keys: Keys = ()
    """API keys; a request must carry one of them. Empty, and no file of keys: no key is needed."""
    api_keys_file: Path | None = None
    """File with further API keys, one on each line, read at start. Lines that begin with `#` are
    comments. It must have at least one key."""
    start_group_keys: Keys = ()
    """API keys that may also start an instance group by naming it. Empty: every client may."""
    admin_key: SecretStr | None = None
    """Key for everything under /v2/repository. Unset: these endpoints are off."""
    health_needs_key: bool = False
    """Whether health and readiness endpoints need a key."""
    metrics_needs_key: bool = False
    """Whether /metrics needs a key."""
    cors_origins: Words = ()
    """Web origins that may call the server from a browser. Empty: none."""

    @field_validator("cors_origins")
    @classmethod
    def _origins_are_explicit(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for origin in value:
            if not origin.startswith(("http://", "https://")) or origin.count("/") != 2:
                raise ValueError("each origin is scheme://host[:port]; a wildcard is not accepted")
        return value

    @field_validator("timeout_max_ms")
    @classmethod
    def _default_fits(cls, value: int, info: Any) -> int:
        default = info.data.get("timeout_default_ms", 0)
        if default > value:
            raise ValueError(f"must be at least timeout_default_ms, which is {default}")
        return value

    @field_validator("model_source")
    @classmethod
    def _is_an_address(cls, value: str) -> str:
        schemes, mark, place = value.partition("://")
        if not mark:
            if value and not (Path(value).is_absolute() or Path(value).is_dir()):
                raise ValueError("must be an address such as s3://bucket/prefix, or a directory")
            return value
        with suppress(ImportError):  # without fsspec, the log says what to install
            from fsspec import available_protocols

            # fsspec reads an address such as simplecache::s3://bucket/prefix, too.
            if unknown := set(schemes.split("::")).difference(available_protocols()):
                raise ValueError(f"the scheme {min(unknown)!r} is unknown; use s3, gs, hf or file")
        if not place:
            raise ValueError("must name a place after ://, such as s3://bucket/prefix")
        return value

    @field_validator("state_file")
    @classmethod
    def _is_a_file(cls, value: Path | None) -> Path | None:
        if value is not None and not value.name:
            raise ValueError("must be the path of a file")
        return value

    @field_validator("canary_judge")
    @classmethod
    def _verdict_can_be_read(cls, value: str, info: Any) -> str:
        if value and not info.data.get("replica"):
            raise ValueError("needs PADDLEPOOL_REPLICA, the name of this server")
        if value and info.data.get("state_file") == Path("off"):
            raise ValueError("needs PADDLEPOOL_STATE_FILE, which is off")
        return value

    @field_validator("trusted_proxies")
    @classmethod
    def _proxies_are_networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for network in value:
            ipaddress.ip_network(network)  # raises ValueError
        return value

    def proxies(self) -> list[str]:
        """Return the trusted proxies, and each IPv4 network also as IPv4-mapped IPv6.

        A dual-stack socket reports IPv4 clients in the mapped form.
        """
        networks = [ipaddress.ip_network(network) for network in self.trusted_proxies]
        mapped = (
            f"::ffff:{network.network_address}/{96 + network.prefixlen}"
            for network in networks
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

    def hosts(self) -> tuple[str, ...]:
        """Return the names that Host may have: `*` for any, `*.example` for every subdomain."""
        if self.allowed_hosts:
            return self.allowed_hosts
        return (*LOOPBACK, self.host) if is_loopback(self.host) else ("*",)

    def of(self, part: type[T]) -> T:
        """Return these settings typed as `part`, a task's settings class.

        Raises TypeError if they do not include that class.
        """
        if not isinstance(self, part):
            raise TypeError(f"this is a bug: settings without {part.__name__}")
        return self

    @property
    def repository_is_chosen(self) -> bool:
        """Whether an operator set the repository, or a model source that fills it."""
        return "model_repository" in self.model_fields_set or bool(self.model_source)

    def keys(self) -> tuple[bytes, ...]:
        """Return all API keys, of the setting `api_keys` and then of the file.

        Raises ConfigError if the file cannot be read, is not UTF-8, has no key or has a line with
        white space within it: otherwise the server could be open to all.
        """
        keys = [key.get_secret_value() for key in self.api_keys]
        if (file := self.api_keys_file) is not None:
            try:
                text = file.read_text("utf-8-sig")
            except OSError as error:
                raise ConfigError(f"{KEYS_FILE}: {file}: {error.strerror}") from None
            except UnicodeDecodeError as error:
                where = f"{file} is not UTF-8 at byte {error.start}"
                raise ConfigError(f"{KEYS_FILE}: {where}") from None
            own: list[str] = []
            for number, line in enumerate(text.splitlines(), 1):
                words = [] if line.lstrip().startswith("#") else line.split()
                if len(words) > 1:
                    where = f"line {number} of {file} has white space within it"
                    raise ConfigError(f"{KEYS_FILE}: {where}; each line is one key")
                own += words
            if not own:
                raise ConfigError(f"{KEYS_FILE}: {file} contains no key; at least one is needed")
            keys += own
        return tuple(key.encode() for key in keys)


def is_loopback(host: str) -> bool:
    """Return whether `host` is "localhost" or a loopback address, such as 127.0.0.1."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def explain(error: ValidationError, *, options: Collection[str] = ()) -> str:
    """Describe all wrong settings in one line: name, requirement and received value.

    A setting in `options` is named as an option of the command line, any other as a variable. The
    value is cut after 80 characters, and left out if the setting's name contains "key": it may be
    secret.
    """
    faults = []
    for fault in error.errors(include_url=False):
        # The name of a setting with an older name comes with the prefix.
        name = str(fault["loc"][0]).removeprefix(PREFIX).lower() if fault["loc"] else "settings"
        received = "" if "key" in name else f", received {str(fault['input'])[:80]!r}"
        text = fault["msg"].removeprefix("Value error, ")
        source = f"--{name.replace('_', '-')}" if name in options else _variable(name)
        faults.append(f"{source}: {text}{received}")
    return "; ".join(faults)


def read_plugin_settings() -> PluginSettings:
    """Read PluginSettings from the environment. Raises ConfigError if one is invalid."""
    try:
        return PluginSettings()
    except ValidationError as error:
        raise ConfigError(explain(error)) from None


def _variable(name: str) -> str:
    """Return the variable of a setting; its older name if only that one is set."""
    variable, older = PREFIX + name.upper(), OLDER_NAMES.get(name)
    if older is None or older not in os.environ or variable in os.environ:
        return variable
    return older


@cache
def settings_with(*parts: type[BaseModel]) -> type[Settings]:
    """Return a Settings class that also has the fields of `parts`.

    Raises ConfigError for a name declared twice.
    """
    bases: list[type[BaseModel]] = [Settings]
    for part in parts:
        for base in bases:
            if twice := base.model_fields.keys() & part.model_fields.keys():
                names = ", ".join(sorted(twice))
                raise ConfigError(f"{part.__name__} and {base.__name__} both declare {names}")
        bases.append(part)
    return cast(type[Settings], create_model("Settings", __base__=tuple(bases)))


def unknown_variables(names: Iterable[str], settings: type[Settings]) -> tuple[str, ...]:
    """Return the `names` that begin with PREFIX but are no variable of `settings`, sorted."""
    known = {PREFIX + name.upper() for name in settings.model_fields} | {*OLDER_NAMES.values()}
    return tuple(sorted(name for name in names if name.startswith(PREFIX) and name not in known))
