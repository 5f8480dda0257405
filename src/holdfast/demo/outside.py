"""Clients of the demo's outside world: a model, a bank and a mail service, all over HTTP."""

from __future__ import annotations

import http.client
import json
from typing import Any


class WorldConnection:
    """Sends requests to the world, each on a connection of its own."""

    address = ""

    def call(self, name: str, **body: Any) -> Any:
        connection = http.client.HTTPConnection(self.address)
        try:
            connection.request("POST", f"/{name}", json.dumps(body))
            response = connection.getresponse()
            if response.status != 200:
                raise RuntimeError(f"request {name!r} failed with status {response.status}")
            return json.load(response)
        finally:
            connection.close()


class Model:
    """The model. In a resumed run, each prompt starts with the resume context."""

    def __init__(self, world: WorldConnection) -> None:
        self._world = world
        self.resume_context: list[dict[str, Any]] = []

    def ask(self, question: str) -> str:
        messages = [*self.resume_context, {"role": "user", "content": question}]
        return str(self._world.call("ask", messages=messages))


class OutsideService:
    """A bank or a mail service. It acts on every request, even a repeat, and finds it by key."""

    def __init__(self, world: WorldConnection, name: str) -> None:
        self._world, self._name = world, name

    def do(self, to: str, what: object, *, key: str) -> str:
        return str(self._world.call("do", service=self._name, to=to, what=what, key=key))

    def find(self, *, key: str) -> str | None:
        found = self._world.call("find", service=self._name, key=key)
        return None if found is None else str(found)


world = WorldConnection()
model, bank, mail = Model(world), OutsideService(world, "bank"), OutsideService(world, "mail")
