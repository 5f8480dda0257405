"""How the agent of the demo reaches the outside world: a model, a bank and a mail service, all over HTTP."""

from __future__ import annotations

import http.client
import json
from typing import Any


class WorldConnection:
    """The way to the world: one request for one answer."""

    address = ""

    def call(self, name: str, **body: Any) -> Any:
        connection = http.client.HTTPConnection(self.address)
        try:
            connection.request("POST", f"/{name}", json.dumps(body))
            answer = connection.getresponse()
            if answer.status != 200:
                raise RuntimeError(f"the world answered {answer.status} to {name!r}")
            return json.load(answer)
        finally:
            connection.close()


class Model:
    """The model. After a resume it is told first what was done before."""

    def __init__(self, line: WorldConnection) -> None:
        self._line = line
        self.briefing: list[dict[str, Any]] = []

    def ask(self, question: str) -> str:
        messages = [*self.briefing, {"role": "user", "content": question}]
        return str(self._line.call("ask", messages=messages))


class OutsideService:
    """A bank or a mail service. It does what it is told as often as it is told, and can say what it did under a key."""

    def __init__(self, line: WorldConnection, name: str) -> None:
        self._line, self._name = line, name

    def do(self, to: str, what: object, *, key: str) -> str:
        return str(self._line.call("do", service=self._name, to=to, what=what, key=key))

    def find(self, *, key: str) -> str | None:
        found = self._line.call("find", service=self._name, key=key)
        return None if found is None else str(found)


line = WorldConnection()
model, bank, mail = Model(line), OutsideService(line, "bank"), OutsideService(line, "mail")
