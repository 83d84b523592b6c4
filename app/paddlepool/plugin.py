"""The names that a package with a task or a compatible API may import (docs/new-task.md).

docs/stability.md says how long they stay. Functions that run in a codec process import
`paddlepool.codec` instead, which loads no web framework. Every other module of `paddlepool` may
change.
"""

from paddlepool.compat.api import CompatibleApi
from paddlepool.contracts import errors
from paddlepool.contracts.caller import CALLER
from paddlepool.contracts.ports import (
    ComposedPipeline,
    Pipeline,
    RequestContext,
    RequestOutput,
    ServedModelInfo,
)
from paddlepool.contracts.tensors import (
    STRINGS,
    Array,
    TaskTensors,
    Tensors,
    TensorSpec,
    strings_of,
)
from paddlepool.engine.dataplane import ready
from paddlepool.models.repository.config import parse_parameters
from paddlepool.service.api.errors import ErrorForm, Fault
from paddlepool.service.api.routes import (
    PICTURE_BODY,
    Routing,
    RoutingDep,
    TaskRoute,
    output_headers,
    uploaded_picture,
)
from paddlepool.service.api.services import Services, ServicesDep
from paddlepool.settings.server import Settings
from paddlepool.tasks.codecs.pool import Codecs
from paddlepool.tasks.options import Options
from paddlepool.tasks.task import Task, Workers

__all__ = [
    "CALLER",
    "PICTURE_BODY",
    "STRINGS",
    "Array",
    "Codecs",
    "CompatibleApi",
    "ComposedPipeline",
    "ErrorForm",
    "Fault",
    "Options",
    "Pipeline",
    "RequestContext",
    "RequestOutput",
    "Routing",
    "RoutingDep",
    "ServedModelInfo",
    "Services",
    "ServicesDep",
    "Settings",
    "Task",
    "TaskRoute",
    "TaskTensors",
    "TensorSpec",
    "Tensors",
    "Workers",
    "errors",
    "output_headers",
    "parse_parameters",
    "ready",
    "strings_of",
    "uploaded_picture",
]
