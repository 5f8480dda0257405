"""moto's server, one request at a time: it checks the condition of a put and then puts, and AWS does both in one step."""

from __future__ import annotations

import sys
import threading
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication
from moto.server import main

_one_at_a_time = threading.Lock()
_call = DomainDispatcherApplication.__call__


def _alone(self: DomainDispatcherApplication, environ: dict[str, Any], start_response: Any) -> Any:
    with _one_at_a_time:
        return _call(self, environ, start_response)


if __name__ == "__main__":
    DomainDispatcherApplication.__call__ = _alone  # type: ignore[method-assign]
    main(sys.argv[1:])
