"""Hooks: where notifications go, and how long an unreachable receiver is tried.

A webhook is signed as in the Standard Webhooks specification, so that its libraries can verify it:
the headers `webhook-id`, `webhook-timestamp` and `webhook-signature`.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import inspect
import os
import signal
import subprocess
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import copy_context
from datetime import timedelta
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from ..backends import clock
from ..log.validation import check_seconds
from .find import DEFAULT_KINDS, KINDS, Notification, NotificationKind

SEND_SECONDS: Final = 10.0
"""How long a delivery may take."""
GIVE_UP_SECONDS: Final = 86_400.0
"""How long an undeliverable notification is retried before it becomes a dead letter."""
TOLERANCE_SECONDS: Final = 300.0
"""How old a webhook may be, so that a recorded one cannot be sent again later."""

_to_json = msgspec.json.Encoder().encode


class DeliveryFailed(Exception):
    """A notification was not delivered. The message has no content: it is stored and shown."""


class Hook(ABC):
    """A receiver of notifications: a `Webhook`, a `Command` or a `Callback`.

    Args:
        name: Identifies the hook in the store, which records what it has received. Under
            another name it counts as a new hook.
        kinds: The kinds of notifications it gets; all but "retrying" by default.
        content: Whether it gets content: goals, questions and error messages.
        timeout: How long a delivery may take, in seconds or as a timedelta.
        give_up_after: How long to retry before a notification becomes a dead letter.
    """

    def __init__(
        self,
        name: str,
        *,
        kinds: Collection[NotificationKind] = DEFAULT_KINDS,
        content: bool = False,
        timeout: float | timedelta = SEND_SECONDS,
        give_up_after: float | timedelta = GIVE_UP_SECONDS,
    ) -> None:
        unknown = set(kinds) - set(KINDS)
        if unknown or isinstance(kinds, str):
            raise ValueError(f"kinds must be some of {', '.join(KINDS)}, got {kinds!r}")
        if not name:
            raise ValueError("name must not be empty")
        self.name, self.kinds, self.content = name, frozenset(kinds), content
        self.timeout = check_seconds(timeout, "timeout")
        self.give_up_after = check_seconds(give_up_after, "give_up_after")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"  # a URL may contain a token

    @abstractmethod
    def send(self, notification: Notification) -> None:
        """Deliver a notification. Raise any exception if that failed."""

    def deliver(self, notification: Notification) -> str | None:
        """Deliver a notification within the timeout. Return the problem, None if there is none.

        The problem is the type of the error and never its message, which may have content.
        """
        outcome: list[str | None] = []

        def send() -> None:
            try:
                self.send(notification)
                outcome.append(None)
            except DeliveryFailed as error:
                outcome.append(str(error))
            except BaseException as error:
                outcome.append(type(error).__name__)

        # In a thread, which is abandoned after the timeout: sockets have timeouts for each byte,
        # and functions have none.
        thread = threading.Thread(
            target=copy_context().run, args=(send,), name="holdfast-notify-send", daemon=True
        )
        thread.start()
        thread.join(self.timeout)
        return outcome[0] if outcome else f"no answer within {self.timeout:g} s"


class Webhook(Hook):
    """Sends notifications as JSON in HTTP POST requests. Any status from 200 to 299 confirms it.

    Redirects are not followed, because a request could end up at another host.

    Args:
        url: Where to send them. It is neither logged nor stored, because it may contain a token.
        secret: The signing key: text, or "whsec_" and base64. Without it, requests are
            not signed.
        headers: More headers, such as an authorization.
        name: See `Hook`. By default it is derived from the URL.

    Example:
        >>> Webhook("https://ops.example/hook", secret=os.environ["HOOK_SECRET"])
    """

    def __init__(
        self,
        url: str,
        *,
        secret: str | None = None,
        headers: Mapping[str, str] | None = None,
        name: str | None = None,
        **options: Any,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("a webhook's URL must start with http:// or https:// and name a host")
        digest = sha256(b"holdfast webhook\0" + url.encode()).hexdigest()
        super().__init__(name or f"webhook-{digest[:12]}", **options)
        self._url, self._headers = url, dict(headers or {})
        self._key = None if secret is None else _decode_secret(secret)

    def send(self, notification: Notification) -> None:
        import urllib.error
        import urllib.request

        from .. import __version__

        body = _to_json(notification)
        headers = {
            **self._headers,
            "content-type": "application/json",
            "user-agent": f"holdfast/{__version__}",
            "webhook-id": notification.id,
            "webhook-timestamp": str(int(clock.time())),
        }
        if self._key is not None:
            headers["webhook-signature"] = _sign(self._key, headers, body)
        request = urllib.request.Request(  # noqa: S310  # http or https
            self._url, data=body, headers=headers, method="POST"
        )
        try:
            with _build_opener().open(request, timeout=self.timeout):
                return
        except urllib.error.HTTPError as error:
            error.close()
            raise DeliveryFailed(f"HTTP {error.code}") from None
        except urllib.error.URLError as error:
            reason = error.reason
            what = type(reason).__name__ if isinstance(reason, Exception) else "URLError"
            raise DeliveryFailed(what) from None


class Command(Hook):
    """Runs a command for each notification, which it gets as JSON on standard input.

    HOLDFAST_NOTIFICATION_ID, _KIND and _TASK are set in its environment. Exit code 0 confirms it.
    Its output is discarded. After the timeout it is killed, with the processes it started.

    Args:
        command: A shell command, or a program with its arguments.
        name: See `Hook`. By default it is derived from the command.

    Example:
        >>> Command("jq -r .command | mail -s 'a task needs you' ops@example.com")
    """

    def __init__(
        self, command: str | Sequence[str], *, name: str | None = None, **options: Any
    ) -> None:
        args = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        if not args or not all(args):
            raise ValueError("command must not be empty")
        digest = sha256(b"holdfast command\0" + "\0".join(args).encode()).hexdigest()
        super().__init__(name or f"command-{digest[:12]}", **options)
        self._args = args

    def send(self, notification: Notification) -> None:
        process = subprocess.Popen(  # noqa: S603  # the application chooses the command
            self._args,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={
                **os.environ,
                "HOLDFAST_NOTIFICATION_ID": notification.id,
                "HOLDFAST_NOTIFICATION_KIND": notification.kind,
                "HOLDFAST_NOTIFICATION_TASK": notification.task,
            },
        )
        try:
            process.communicate(_to_json(notification), timeout=self.timeout)
        except BaseException:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
            raise
        if process.returncode:
            raise DeliveryFailed(f"exit code {process.returncode}")


class Callback(Hook):
    """Calls a function, plain or async, with each notification. After an exception, it is retried.

    A function that runs longer than the timeout counts as failed, but it cannot be stopped.

    Args:
        fn: The function.
        name: See `Hook`. By default it is the function's module and name.
    """

    def __init__(
        self, fn: Callable[[Notification], object], *, name: str | None = None, **options: Any
    ) -> None:
        if not callable(fn):
            raise TypeError(f"a hook must be a Hook or a function, got {type(fn).__name__}")
        module, qualname = (getattr(fn, key, "") for key in ("__module__", "__qualname__"))
        super().__init__(name or f"{module}.{qualname or type(fn).__qualname__}", **options)
        self._fn = fn

    def send(self, notification: Notification) -> None:
        result = self._fn(notification)
        if inspect.isawaitable(result):
            import asyncio

            asyncio.run(_wait_for(result))


async def _wait_for(awaitable: Any) -> None:
    await awaitable


def check_hooks(given: Sequence[Hook | Callable[[Notification], object]]) -> list[Hook]:
    """Return the hooks, with functions as callbacks. Raise if two have the same name."""
    hooks = [hook if isinstance(hook, Hook) else Callback(hook) for hook in given]
    names = [hook.name for hook in hooks]
    if len(set(names)) != len(names):
        raise ValueError(f"hooks must have different names, got {', '.join(map(repr, names))}")
    return hooks


def verify_webhook(
    headers: Mapping[str, str],
    body: bytes,
    secret: str,
    *,
    tolerance: float | timedelta = TOLERANCE_SECONDS,
) -> Notification:
    """Return the notification of a webhook request. For receivers written in Python.

    Args:
        headers: The headers of the request, in any case.
        body: The body of the request, as it was received.
        secret: The secret that the `Webhook` was given.
        tolerance: How old the request may be, in seconds or as a timedelta.

    Returns:
        The notification. Compare its `id` with those you have seen: it may be a repeat.

    Raises:
        ValueError: The signature or a header is missing or wrong, or the request is too old.
    """
    given = {name.lower(): value for name, value in headers.items()}
    try:
        sent_at = int(given["webhook-timestamp"])
        signatures = given["webhook-signature"].split(" ")
        expected = _sign(_decode_secret(secret), given, body)
    except (KeyError, ValueError):
        raise ValueError("the webhook has no valid signature") from None
    if not any(hmac.compare_digest(expected.encode(), each.encode()) for each in signatures):
        raise ValueError("the webhook has no valid signature")
    if abs(clock.time() - sent_at) > check_seconds(tolerance, "tolerance"):
        raise ValueError("the webhook is too old, or the clocks of the two machines differ")
    try:
        return msgspec.json.decode(body, type=Notification)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise ValueError("the webhook's body is not a notification") from None


def _decode_secret(secret: str) -> bytes:
    if not secret.removeprefix("whsec_"):
        raise ValueError("secret must not be empty")
    if not secret.startswith("whsec_"):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except binascii.Error:
        raise ValueError("a secret that starts with whsec_ must continue with base64") from None


def _sign(key: bytes, headers: Mapping[str, str], body: bytes) -> str:
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    return f"v1,{base64.b64encode(hmac.digest(key, signed, 'sha256')).decode()}"


@lru_cache(1)
def _build_opener() -> Any:
    """Return an opener that sends requests and turns every redirect into an `HTTPError`."""
    from urllib.request import HTTPRedirectHandler, build_opener  # slow to import

    class RefuseRedirects(HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            return None

    return build_opener(RefuseRedirects)
