"""A connection to an application in this process."""

import uvicorn
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from app.service.server.connection_limits import LimitedProtocol, protocol_class
from tests.fuzz.http_door import LIMITS, REPLY_BYTES, Transport


class Line(Transport):
    """Knows also whether it is read from."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = self.paused = False

    def write_eof(self) -> None:
        self.ended = True

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


def opened(app: ASGIApp, line: Line, state: ServerState) -> LimitedProtocol:
    """A connection that has just been made."""
    kind = protocol_class(LIMITS, reply_bytes=REPLY_BYTES)
    config = uvicorn.Config(app, http=kind, ws="none", log_config=None)
    config.load()
    protocol = kind(config=config, server_state=state, app_state={})
    assert isinstance(protocol, LimitedProtocol)
    protocol.connection_made(line)
    return protocol
