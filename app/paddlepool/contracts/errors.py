"""The errors that Paddlepool reports, in domain terms.

`paddlepool.service.api.errors` maps these classes to HTTP status codes; this module does not depend
on HTTP. A message for a client may repeat numbers of the client's input, but no text. It contains
the text of a library's exception only as `paddlepool.contracts.sentences.sentence` returns it.
"""

import re
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Self


@dataclass(eq=False, repr=False)
class PaddlepoolError(Exception):
    """Base class of all errors. `limit` and `received` are safe to show to a client.

    `errors` has the `field` and the `message` of each wrong field of the request. `parameter` is
    the name of the request's parameter that is at fault; empty unless it is a single one. A
    subclass that is defined with a `title` has its own `code`, which is its class name in snake
    case: `file_missing` for FileMissing. Other subclasses inherit title and code.
    """

    code: ClassVar[str] = "internal_error"
    title: ClassVar[str] = "Internal error"

    message: str
    _: KW_ONLY
    limit: int | float | str | None = None
    received: int | float | str | None = None
    errors: tuple[dict[str, str], ...] = ()
    parameter: str = ""

    def __init_subclass__(cls, title: str | None = None) -> None:
        if title is not None:
            cls.title = title
            cls.code = re.sub("(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    def without_traceback(self) -> Self:
        """Return a copy without traceback, cause and context.

        A future keeps its error, and the frames of a traceback keep a request's data in memory.
        Each raise adds frames. Two futures that shared one error would keep the data of both
        requests.
        """
        copy = type(self).__new__(type(self), *self.args)
        copy.__dict__.update(self.__dict__)
        return copy


class InputError(PaddlepoolError):
    """Base class of faults in a client's data. Only its subclasses have codes and are raised."""

    def about(self, part: str) -> Self:
        """Return a copy whose message begins with `part`, the faulty part of the request."""
        copy = self.without_traceback()
        copy.message = f"{part}: {self.message}"
        copy.args = (copy.message,)
        return copy


# fmt: off
class FileMissing(InputError, title="No picture in the request"): ...
class FileTooLarge(InputError, title="Request body too large"): ...
class UnsupportedMediaType(InputError, title="Unsupported media type"): ...
class UnsupportedEncoding(InputError, title="The body's encoding is not supported"): ...
class ImageUnreadable(InputError, title="The picture cannot be read"): ...
class ResolutionTooHigh(InputError, title="The picture has too many pixels"): ...
class TooManyScans(InputError, title="The JPEG has too many scans"): ...
class InvalidParameter(InputError, title="Invalid parameter"): ...
class TextEmpty(InputError, title="The text is empty"): ...
class TextTooLong(InputError, title="The text is too long"): ...
class TooManyInputs(InputError, title="Too many inputs"): ...
class InvalidTensor(InputError, title="Invalid tensor"): ...
class OutputTooLarge(InputError, title="The requested output is too large"): ...

class HostNotAllowed(PaddlepoolError, title="Unknown host"): ...
class CrossSite(PaddlepoolError, title="Sent by a page of another site"): ...
class Unauthorized(PaddlepoolError, title="Unauthorized"): ...
class Forbidden(PaddlepoolError, title="Disabled on this server"): ...
class GroupNotRunning(PaddlepoolError, title="The instance group is not running"): ...
class ModelNotFound(PaddlepoolError, title="Model not found"): ...
class ModelNotReady(PaddlepoolError, title="Model not ready"): ...
class ModelLoadFailed(PaddlepoolError, title="The model cannot be loaded"): ...
class CanaryConflict(PaddlepoolError, title="No new version is in a state for this"): ...
class DeadlineExceeded(PaddlepoolError, title="Deadline exceeded"): ...
class WorkerCrashed(PaddlepoolError, title="The worker process died"): ...
class ModelOutputInvalid(PaddlepoolError, title="The model's output is invalid"): ...
# fmt: on


@dataclass(eq=False, repr=False, kw_only=True)
class Overloaded(PaddlepoolError, title="Overloaded"):
    """The server cannot take the request now: a limit is reached or the deadline is too near.

    `retry_after` is in seconds; the HTTP layer rounds it up to an integer of at least 1.
    """

    retry_after: float = 1.0


class QuotaExceeded(Overloaded, title="The quota is used up"):
    """This caller has used up its quota; other callers are still served."""


class OperatorError(PaddlepoolError):
    """Base class of errors of the installation. A client gets `internal_error`, without details."""


class ConfigError(OperatorError):
    """A setting, a config.toml or an option of a command is invalid."""


class ManifestError(OperatorError):
    """A version has no valid manifest, or a file that is missing, changed or unusable."""


class ExportError(OperatorError):
    """A model version cannot be exported, sealed or quantised."""


class DownloadError(OperatorError):
    """The download failed."""


@dataclass(eq=False, repr=False, kw_only=True)
class BackendError(OperatorError):
    """A backend cannot load or run a model. `library_text` is the framework's message, or empty."""

    library_text: str = ""


class BackendUnavailable(BackendError):
    """This machine, or this build of a framework, cannot run the instance group."""


class RunRefused(BackendError):
    """The framework raised an error in a run, and the process survived.

    Usually the tensors are at fault: those of a client, of a task's pipeline, of a self-test or of
    a warm-up.
    """
