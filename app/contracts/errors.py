"""All errors of Paddlepool, in domain terms.

`app.service.api.errors` maps these classes to HTTP status codes; this module does not depend on
HTTP. A message states what was received, what was expected and the limit. It never repeats the
client's input and never contains the text of a library's exception.
"""

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Self


@dataclass(eq=False, repr=False)
class PaddlepoolError(Exception):
    """Base class of all errors. `limit` and `received` are safe to show to a client."""

    code: ClassVar[str] = "internal_error"
    title: ClassVar[str] = "Internal error"

    message: str
    _: KW_ONLY
    limit: int | float | str | None = None
    received: int | float | str | None = None
    errors: tuple[dict[str, str], ...] = ()

    def without_traceback(self) -> Self:
        """Return a copy without traceback, cause and context.

        A future keeps its error, and the frames of a traceback keep a request's data in memory.
        Each raise adds frames, so two futures that shared an error would keep each other's data.
        """
        copy = type(self).__new__(type(self), *self.args)
        copy.__dict__.update(self.__dict__)
        return copy


class InputError(PaddlepoolError):
    """Base class of client errors; only its subclasses have codes, so only they are raised."""

    def about(self, part: str) -> Self:
        """Return a copy whose message names the part of the request that is at fault."""
        copy = self.without_traceback()
        copy.message = f"{part}: {self.message}"
        copy.args = (copy.message,)
        return copy


class FileMissing(InputError):
    code = "file_missing"
    title = "No picture in the request"


class FileTooLarge(InputError):
    code = "file_too_large"
    title = "Request body too large"


class UnsupportedMediaType(InputError):
    code = "unsupported_media_type"
    title = "Unsupported media type"


class UnsupportedEncoding(InputError):
    code = "unsupported_encoding"
    title = "The body's encoding is not supported"


class ImageUnreadable(InputError):
    code = "image_unreadable"
    title = "The picture cannot be read"


class ResolutionTooHigh(InputError):
    code = "resolution_too_high"
    title = "The picture has too many pixels"


class TooManyScans(InputError):
    code = "too_many_scans"
    title = "The JPEG has too many scans"


class InvalidParameter(InputError):
    code = "invalid_parameter"
    title = "Invalid parameter"


class TextEmpty(InputError):
    code = "text_empty"
    title = "The text is empty"


class TextTooLong(InputError):
    code = "text_too_long"
    title = "The text is too long"


class TooManyInputs(InputError):
    code = "too_many_inputs"
    title = "Too many inputs"


class InvalidTensor(InputError):
    code = "invalid_tensor"
    title = "Invalid tensor"


class OutputTooLarge(InputError):
    code = "output_too_large"
    title = "The requested output is too large"


class HostNotAllowed(PaddlepoolError):
    code = "host_not_allowed"
    title = "Unknown host"


class CrossSite(PaddlepoolError):
    code = "cross_site"
    title = "Sent by a page of another site"


class Unauthorized(PaddlepoolError):
    code = "unauthorized"
    title = "Unauthorized"


class Forbidden(PaddlepoolError):
    code = "forbidden"
    title = "Disabled on this server"


class GroupNotRunning(PaddlepoolError):
    code = "group_not_running"
    title = "The instance group is not running"


class ModelNotFound(PaddlepoolError):
    code = "model_not_found"
    title = "Model not found"


class ModelNotReady(PaddlepoolError):
    code = "model_not_ready"
    title = "Model not ready"


class ModelLoadFailed(PaddlepoolError):
    code = "model_load_failed"
    title = "The model cannot be loaded"


@dataclass(eq=False, repr=False, kw_only=True)
class Overloaded(PaddlepoolError):
    """`retry_after` is in seconds; the HTTP layer rounds it up to an integer of at least 1."""

    code = "overloaded"
    title = "Overloaded"

    retry_after: float = 1.0


class QuotaExceeded(Overloaded):
    """This caller has used up its quota; other callers are still served."""

    code = "quota_exceeded"
    title = "The quota is used up"


class DeadlineExceeded(PaddlepoolError):
    code = "deadline_exceeded"
    title = "Deadline exceeded"


class WorkerCrashed(PaddlepoolError):
    code = "worker_crashed"
    title = "The worker process died"


class ModelOutputInvalid(PaddlepoolError):
    code = "model_output_invalid"
    title = "The model's output is not a number"


class OperatorError(PaddlepoolError):
    """Base class of the installation's errors. A client sees `internal_error` in their place."""


class ConfigError(OperatorError):
    """The configuration is invalid."""


class ManifestError(OperatorError):
    """The model's files do not match their manifest."""


class ExportError(OperatorError):
    """The model cannot be exported."""


class DownloadError(OperatorError):
    """The download failed."""


class BackendError(OperatorError):
    """The backend refused the model."""


class BackendUnavailable(BackendError):
    """This machine, or this build of a framework, lacks what the instance group needs."""


class RunRefused(BackendError):
    """The framework raised an error in a run, and the process survived.

    The fault lies with the source of the tensors: the server's own pipeline, or a client.
    """
