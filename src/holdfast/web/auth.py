"""Who may use the server: host names, log-in, sessions, and protection against other sites.

Pages hold a form token that only this server's pages for the same user have. A request that changes
something needs it, or a bearer token, which browsers don't add by themselves.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections import deque
from collections.abc import Mapping
from http.cookies import SimpleCookie
from typing import Final, NamedTuple

from starlette.requests import HTTPConnection

from .options import LOOPBACK_HOSTS, WebOptions

COOKIE: Final = "holdfast_session"
SESSION_SECONDS: Final = 12 * 3600
API_USER: Final = "api"
"""Who is recorded for a program that uses the shared token."""
LOGIN_ATTEMPTS: Final = 10
"""How many failed log-ins a minute the server accepts from one client."""
MAX_FAILURES: Final = 10_000
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]+)?")

SECURITY_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class WebSession(NamedTuple):
    """The session of a person who has logged in: its id, when it ends, and the person's name."""

    id: str
    until: int
    user: str


class Guard:
    """Decides for each request whether to serve it, and as whom."""

    def __init__(self, options: WebOptions) -> None:
        self._options = options
        self._failures: deque[tuple[float, str]] = deque(maxlen=MAX_FAILURES)
        self._logged_out: dict[str, int] = {}
        """The ids of sessions that were logged out, until they would have ended."""
        tokens = repr((options.token, sorted(options.tokens.items())))
        self._tokens_digest = hashlib.sha256(tokens.encode()).hexdigest()

    @property
    def needs_login(self) -> bool:
        return self._options.token is not None or bool(self._options.tokens)

    def is_host_allowed(self, host: str) -> bool:
        """Whether the request names a host of ours. Otherwise it may come by DNS rebinding."""
        name = _host_name(host)
        if name in LOOPBACK_HOSTS or name in (each.lower() for each in self._options.hosts):
            return True
        protected = self.needs_login or self._options.user_header is not None
        return protected and not self._options.hosts and name != ""

    def find_user(self, request: HTTPConnection) -> tuple[bool, str | None]:
        """Return whether the sender is known, and the name to record for actions."""
        options = self._options
        if options.user_header is not None:
            named = request.headers.getlist(options.user_header)
            if len(named) == 1 and named[0]:  # several: the proxy has not removed the sender's own
                return True, named[0][:200]
        if not self.needs_login:
            return options.user_header is None, options.user
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and (name := self.find_token(token.strip())) is not None:
            return True, name or API_USER
        session = self.read_session(request)
        return (session is not None), (session.user if session is not None else None)

    def find_token(self, given: str) -> str | None:
        """Return the name of a token, "" for the shared one, None if it is wrong.

        It is compared with every token, each in constant time.
        """
        shared = self._options.token
        found = "" if shared is not None and is_same(given, shared) else None
        for name, token in self._options.tokens.items():
            if is_same(given, token):
                found = name
        return found

    def may_try_login(self, client: str) -> bool:
        """Whether a client may try another log-in now: its wrong tokens are limited per minute."""
        self._forget_old_failures()
        return sum(client == each for _, each in self._failures) < LOGIN_ATTEMPTS

    def note_failed_login(self, client: str) -> None:
        self._failures.append((time.monotonic(), client))

    def _forget_old_failures(self) -> None:
        now = time.monotonic()
        while self._failures and now - self._failures[0][0] > 60:
            self._failures.popleft()

    def new_session(self, user: str) -> str:
        """Return the value of a session cookie."""
        until = int(time.time()) + SESSION_SECONDS
        body = f"{until}.{secrets.token_hex(8)}.{user.encode().hex()}"
        return f"{body}.{self._sign_session(body)}"

    def read_session(self, request: HTTPConnection) -> WebSession | None:
        """Return the session of a request, if it has one that has not ended."""
        try:
            morsel = SimpleCookie(request.headers.get("cookie", "")).get(COOKIE)
        except Exception:
            return None
        body, _, signature = (morsel.value if morsel else "").rpartition(".")
        if not body or not is_same(signature, self._sign_session(body)):
            return None
        until, _, rest = body.partition(".")
        name, _, user = rest.partition(".")
        session = WebSession(name, int(until), bytes.fromhex(user).decode())
        return None if self.has_ended(session) else session

    def has_ended(self, session: WebSession) -> bool:
        """Whether a session is over, or was logged out."""
        return session.until < time.time() or session.id in self._logged_out

    def end_session(self, session: WebSession) -> None:
        """Log a session out, wherever its cookie is still used."""
        now = time.time()
        self._logged_out = {each: at for each, at in self._logged_out.items() if at > now}
        self._logged_out[session.id] = session.until

    def _sign_session(self, body: str) -> str:
        """Sign a session. It ends if the tokens change, also where the secret stays the same."""
        return self._sign("session", f"{self._tokens_digest}\0{body}")

    # -- forms -----------------------------------------------------------------------------------

    def form_token(self, user: str | None) -> str:
        """Return the token for a user's forms. It holds for this and the next half day."""
        return self._sign_form(int(time.time()) // SESSION_SECONDS, user)

    def is_own_form(self, headers: Mapping[str, str], token: str, user: str | None) -> bool:
        """Whether a user's request that changes something was sent by a page of this server."""
        site = headers.get("sec-fetch-site", "same-origin")
        origin = headers.get("origin")
        if site not in ("same-origin", "none"):
            return False
        if origin is not None and origin.partition("://")[2] != headers.get("host", ""):
            return False
        period = int(time.time()) // SESSION_SECONDS
        known = [self._sign_form(each, user) for each in (period, period - 1)]
        return any(is_same(token, each) for each in known)

    def _sign_form(self, period: int, user: str | None) -> str:
        return self._sign("form", f"{period}\0{user or ''}")

    def _sign(self, purpose: str, text: str) -> str:
        message = f"{purpose}\0{text}".encode()
        return hmac.new(self._options.secret, message, hashlib.sha256).hexdigest()


def is_same(given: str, known: str) -> bool:
    """Compare texts in constant time. `given` may have any characters."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), known.encode("utf-8", "replace"))


def local_path(given: str) -> str:
    """Return an address on this server to go to; `/` if it is another site's, or malformed."""
    is_ours = given.startswith("/") and given.isprintable()
    return given if is_ours and not given.startswith("//") and "\\" not in given else "/"


def _host_name(host: str) -> str:
    """Return the name in a Host header, without its port; empty if the header is malformed."""
    found = _HOST.fullmatch(host)
    return "" if found is None else found[1].lower()
