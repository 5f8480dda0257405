"""A recorded task as a test: a small store with the recording, and a test that replays it."""

from __future__ import annotations

import io
import re
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from .. import Store, TaskView
from ..admin.copy.copy import copy
from ..backends import Backend, Head, StreamKey
from ..log import operations as ops
from ..log.ids import SYSTEM_TENANT
from ..log.operations.blobs import blob_prefix
from ..tasks.state.load import load_branch

if TYPE_CHECKING:
    from ..log.log import Log

METHODS: Final = ("append", "read", "find_append", "due", "head", "delete", "describe", "close")

TEST: Final = '''\
"""Replays a task against its recording. Nothing is called, written or waited for."""

from pathlib import Path

import holdfast

import app  # noqa: F401  change this to the module that declares the agent {agent!r}


def test_{name}_replays_as_recorded() -> None:
    with holdfast.open(str(Path(__file__).parent / {file!r})) as store:
        replay = store{tenant}.replay({agent!r}, {id!r})
    assert replay.ok, str(replay)
'''


class SelectedStreams:
    """A backend of which a copy sees only some streams."""

    def __init__(self, backend: Backend, streams: Iterable[StreamKey]) -> None:
        self._backend = backend
        self._streams = sorted(streams, key=lambda stream: stream.id.encode())
        for name in METHODS:
            setattr(self, name, getattr(backend, name))

    def heads(
        self,
        *,
        tenant: str,
        kind: str,
        status: str | None = None,
        after: str = "",
        limit: int = 500,
    ) -> Sequence[Head]:
        """Return the heads of the chosen streams of a kind."""
        chosen = [
            stream
            for stream in self._streams
            if stream[:2] == (tenant, kind) and stream.id.encode() > after.encode()
        ]
        heads = map(self._backend.head, chosen[:limit])
        return [head for head in heads if head is not None]


def make_replay_test(store: Store, view: TaskView) -> bytes:
    """Return a zip file with a store that has this task only, and a test that replays it.

    Raises `ValueError` if the task cannot be replayed, or must not be stored unencrypted.
    """
    if view.agent is None:
        raise ValueError("the task has no agent, so there is no function to replay")
    if store._log.cipher is not None:
        raise ValueError(
            "the store is encrypted, and a test would have the recording unencrypted;"
            " decrypt a copy of the store on purpose: holdfast decrypt"
        )
    name = re.sub(r"[^a-z0-9]+", "_", view.id.lower()).strip("_")[:60] or "task"
    file = f"{name}.db"
    test = TEST.format(
        id=view.id,
        agent=view.agent,
        name=name,
        file=file,
        tenant="" if store.tenant == "default" else f".for_tenant({store.tenant!r})",
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / file
        selected: Any = SelectedStreams(store._log.backend, find_streams(store, view))
        copy(selected, str(path))
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(f"test_{name}.py", test)
            archive.write(path, file)
    return packed.getvalue()


def find_streams(store: Store, view: TaskView) -> set[StreamKey]:
    """Return the streams that a replay reads: the task, what it was forked from, and its chats."""
    log, found = store._log, set[StreamKey]()
    chats = {view.id, *(step.reply[0] for step in view.steps if step.reply is not None)}
    chats |= {part.conversation for step in view.steps for part in step.model_input}
    for kind, names in (("task", {view.id}), ("conversation", chats)):
        left = [StreamKey(store.tenant, kind, name) for name in names]
        while left:
            key = left.pop()
            head = ops.run(log, ops.head(key))
            if head is None or key in found:
                continue
            found |= {key, *_list_blobs(log, head)}
            parent = _find_parent(store, key)
            left += [] if parent is None else [key._replace(id=parent)]
    return {*found, StreamKey(SYSTEM_TENANT, "tenant", store.tenant)}


def _list_blobs(log: Log, head: Head) -> Iterator[StreamKey]:
    prefix = blob_prefix(head.stream, head.incarnation.hex())
    after = prefix
    while page := ops.run(log, ops.heads(head.stream.tenant, "blob", after=after)):
        for blob in page:
            if not blob.stream.id.startswith(prefix):
                return
            yield blob.stream
        after = page[-1].stream.id


def _find_parent(store: Store, key: StreamKey) -> str | None:
    """Return the id of the stream that a fork starts with."""
    if key.kind == "conversation":
        return store.conversation(key.id).view().forked_from
    branched = ops.run(store._log, load_branch(key))
    return None if branched is None else branched.parent
