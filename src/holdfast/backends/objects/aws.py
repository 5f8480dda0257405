"""The AWS client for DynamoDB and S3, the clock of the server, and the translation of AWS errors.

botocore's own retries are off. Only a caller that sees the outcome of every attempt knows whether a
write may have been stored: a timeout followed by a refused connection does not mean that nothing
was written.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Collection, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from ...errors import (
    AccessDenied,
    HoldfastError,
    InvalidURL,
    MissingExtra,
    NotSetUp,
    OutcomeUnknown,
    StoreClosed,
    TooLarge,
    Unavailable,
    UnsupportedServer,
)
from .. import clock, deadline
from .aws_logs import hide_bodies

try:
    import boto3  # type: ignore[import-untyped]
    from botocore import exceptions as boto  # type: ignore[import-untyped]
    from botocore.config import Config  # type: ignore[import-untyped]
    from botocore.parsers import ResponseParserError  # type: ignore[import-untyped]
except ModuleNotFoundError:
    raise MissingExtra("dynamodb:// and s3://", "aws") from None

CONNECT_SECONDS: Final = 5.0
READ_SECONDS: Final = 10.0
"""How long one attempt may take; less if the calls of the store have a short timeout."""
MIN_READ_SECONDS: Final = 0.05

_CODES_BY_MEANING: Final = {
    "busy": """
        LimitExceededException ProvisionedThroughputExceededException RequestLimitExceeded
        RequestThrottled RequestThrottledException SlowDown Throttling ThrottledException
        ThrottlingException TooManyRequestsException
    """,
    "signature": """
        InvalidSignatureException RequestExpired RequestTimeTooSkewed SignatureDoesNotMatch
    """,
    "permissions": """
        AccessDenied AccessDeniedException AllAccessDisabled ExpiredToken ExpiredTokenException
        IncompleteSignature IncompleteSignatureException InvalidAccessKeyId InvalidClientTokenId
        InvalidToken KMSAccessDeniedException MissingAuthenticationToken
        MissingAuthenticationTokenException OptInRequired TokenRefreshRequired
        UnrecognizedClientException 403
    """,
    "missing": "NoSuchBucket ResourceNotFoundException",
    "size": "EntityTooLarge MaxMessageLengthExceeded RequestEntityTooLarge",
}
_MEANING_OF_CODE: Final = {
    code: meant for meant, codes in _CODES_BY_MEANING.items() for code in codes.split()
}

_PROFILES: Final = (
    "~/.aws/config and ~/.aws/credentials (or the files that AWS_CONFIG_FILE and "
    "AWS_SHARED_CREDENTIALS_FILE name)"
)

_FILE_ERRORS: Final = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
"""Errors of a credentials file, or of a program that prints credentials: nothing was sent."""

Response = Mapping[str, Any]
BotoCoreError: Final = boto.BotoCoreError
"""An error of the client itself: no answer, or part of one."""


class AWSResponse(NamedTuple):
    """The answer of the service.

    Attributes:
        response: The response.
        code: The code of an error that the caller expected, None if there was none.
        in_doubt: Whether an earlier attempt got no answer, and may have been executed.
    """

    response: Response
    code: str | None = None
    in_doubt: bool = False


class TranslatedError(NamedTuple):
    """The error to raise.

    `certain` means that nothing was written. `attempts` is the maximum number of attempts.
    """

    error: HoldfastError
    certain: bool
    attempts: int


class ServerClock:
    """The clock of a server that sends its time, in whole seconds, with every answer.

    An answer dated D, requested at `sent` and received at `received` (local times), shows that
    server - local is between D - received and D + 1 - sent. The intersection of all answers is soon
    accurate to a few milliseconds.
    """

    def __init__(self) -> None:
        self._ahead: float | None = None

    def set(self, date: str | None, *, sent: float, received: float) -> None:
        """Adjust the clock to an answer. `sent` and `received` are values of `perf_counter`."""
        try:
            stamp = parsedate_to_datetime(date or "").timestamp()
        except (ValueError, TypeError, OverflowError):
            return
        ahead = stamp - received if self._ahead is None else max(self._ahead, stamp - received)
        # The estimate decreases only if a clock was set back, here or on the server.
        self._ahead = min(ahead, stamp + 1 - sent)

    def now(self) -> float:
        return clock.time() if self._ahead is None else time.perf_counter() + self._ahead


class AWSClient:
    """A client of one service, for all threads.

    `where` names the store in errors. The endpoint is added to it, if one is given.
    """

    def __init__(
        self,
        name: str,
        *,
        region: str | None,
        endpoint: str | None,
        where: str,
        timeout: float = deadline.DEFAULT_TIMEOUT,
        **config: Any,
    ) -> None:
        self._timeout = timeout
        # Two attempts fit into the time of a call.
        self._connect_seconds = min(CONNECT_SECONDS, timeout / 6)
        self._read_seconds = min(READ_SECONDS, timeout / 3)
        self.clock = ServerClock()
        self._name, self._region, self._endpoint = name, region, check_endpoint(endpoint)
        self._name_in_url = where
        self._address = "" if endpoint is None else f"endpoint={_format_address(endpoint)}"
        self.where = f"{where}?{self._address}" if self._address else where
        self._config = Config(
            connect_timeout=self._connect_seconds,
            read_timeout=self._read_seconds,
            retries={"total_max_attempts": 1, "mode": "standard"},
            max_pool_connections=32,
            tcp_keepalive=True,
            **config,
        )
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._client: Any = None
        self.region: str = self.client.meta.region_name

    @property
    def location(self) -> str:
        """The store for display: its name and region, and the endpoint if one was given."""
        return f"{self._name_in_url}?region={self.region}" + (
            f"&{self._address}" if self._address else ""
        )

    @property
    def client(self) -> Any:
        with self._lock:
            if self._closing.is_set():
                raise StoreClosed(f"the store {self.where} was closed; open it again")
            if self._client is None:
                self._client = self._connect()
            return self._client

    def _connect(self) -> Any:
        try:
            session = boto3.session.Session()
            self._load_credentials(session)
            client = session.client(
                self._name,
                region_name=self._region,
                endpoint_url=self._endpoint,
                config=self._config,
            )
            client.meta.events.register("before-call", self._bound_request)
            return client
        except boto.NoRegionError:
            raise InvalidURL(
                f"{self.where} has no region; add ?region= with its region, like eu-central-1"
            ) from None
        except ValueError:
            raise InvalidURL(
                f"the region or the endpoint of {self.where} is not valid; "
                "a region is like eu-central-1"
            ) from None
        except boto.BotoCoreError as error:
            raise translate_error(error, self.where).error from None

    def _bound_request(self, context: dict[str, Any], **_: Any) -> None:
        """Limit how long a request waits for its answer to the deadline of the call."""
        left = max(deadline.remaining(self._read_seconds), MIN_READ_SECONDS)
        if left < self._read_seconds:
            context["read_timeout"] = left

    def _load_credentials(self, session: Any) -> None:
        """Load the credentials before the client does, to tell their errors from a wrong region."""
        try:
            session.get_credentials()
        except ValueError as error:
            # The output of a credentials program is not valid.
            raise _credentials_unreadable(error, self.where) from None
        except OSError as error:
            raise translate_error(error, self.where).error from None

    def call(
        self, operation: str, *, writes: bool, expected: Collection[str] = (), **arguments: Any
    ) -> AWSResponse:
        """Send an idempotent request; retry it where that may help.

        Error codes in `expected` are returned as answers. If a write got no answer and later
        attempts failed too, raise `OutcomeUnknown`.
        """
        until = time.monotonic() + deadline.require(self._timeout, self.where)
        longest = self._connect_seconds + self._read_seconds
        in_doubt, attempt = False, 0
        while True:
            attempt += 1
            try:
                return self._attempt(operation, expected, arguments, in_doubt)
            except (
                boto.ClientError,
                boto.BotoCoreError,
                ResponseParserError,
                OSError,
                ValueError,
            ) as failure:
                # OSError and ValueError: renewing credentials failed, or the answer isn't text.
                error, certain, attempts = translate_error(failure, self.where)
            in_doubt = in_doubt or (writes and not certain)
            # The last attempt must end before the deadline.
            over = attempt >= attempts or time.monotonic() + longest > until
            closed = not over and self.pause(attempt)
            if in_doubt and (over or closed):
                raise OutcomeUnknown(f"it is unknown whether the write was stored: {error}")
            if over:
                raise error

    def _attempt(
        self,
        operation: str,
        expected: Collection[str],
        arguments: Mapping[str, Any],
        in_doubt: bool,
    ) -> AWSResponse:
        call = getattr(self.client, operation)
        sent = time.perf_counter()
        code = None
        try:
            with hide_bodies():
                response = call(**arguments)
        except boto.ClientError as error:
            response, code = error.response, _code(error)
            if code not in expected:
                raise
        headers = response["ResponseMetadata"]["HTTPHeaders"]
        if response["ResponseMetadata"]["HTTPStatusCode"] == 200 and not _is_aws_response(headers):
            raise ResponseParserError(
                "a page from a proxy, which the client would treat as an empty answer"
            )
        self.clock.set(headers.get("date"), sent=sent, received=time.perf_counter())
        return AWSResponse(response, code, in_doubt)

    def pause(self, attempt: int) -> bool:
        """Wait before the next attempt, with exponential backoff and jitter.

        Return True if the store was closed in the meantime.
        """
        delay = random.uniform(0, min(1.0, 0.05 * 2**attempt))  # noqa: S311  jitter, not a secret
        return self._closing.wait(delay)

    def close(self) -> None:
        with self._lock:
            self._closing.set()
            if self._client is not None:
                # A connection in use is closed after its request has been answered.
                self._client.close()

    def reset_after_fork(self) -> None:
        """Drop connections and locks in a forked child: another thread may have held the lock."""
        closed = self._closing.is_set()
        self._lock, self._closing, self._client = threading.Lock(), threading.Event(), None
        if closed:
            self._closing.set()


def translate_error(error: Exception, where: str) -> TranslatedError:
    """Translate an error of the client. Its text is dropped, because it may quote a request."""
    unreachable = f"{where} cannot be reached"
    if isinstance(error, boto.ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return _translate_refusal(_code(error), status, error.operation_name, where)
    if isinstance(error, boto.ConnectTimeoutError):
        text = f"{unreachable}{_at(error, where)} in time"
        text += "; check the region or the endpoint, and the network"
        return TranslatedError(Unavailable(text), True, 1)
    if isinstance(error, boto.ProxyConnectionError):
        text = f"{unreachable}: the proxy does not answer; check HTTPS_PROXY and HTTP_PROXY"
        return TranslatedError(Unavailable(text), True, 3)
    if isinstance(error, boto.EndpointConnectionError):
        text = f"{unreachable}{_at(error, where)}"
        text += "; check the region or the endpoint, and that the service runs"
        return TranslatedError(Unavailable(text), True, 3)
    if isinstance(error, boto.SSLError):
        text = f"{where}: no secure connection; check that this machine trusts its certificate"
        return TranslatedError(Unavailable(text), False, 3)
    if isinstance(error, boto.ReadTimeoutError):
        text = f"{where} did not answer in time; try again later"
        return TranslatedError(
            Unavailable(f"{text}, and check the network if it persists"), False, 4
        )
    denied = _translate_credentials_error(error, where)
    if denied is not None:
        return TranslatedError(denied, True, 1)
    text = f"{where} gave no usable answer ({type(error).__name__}); try again later"
    return TranslatedError(Unavailable(f"{text}, and check the endpoint if it persists"), False, 4)


def _translate_credentials_error(error: Exception, where: str) -> AccessDenied | None:
    """Translate an error about credentials or a profile; return None for any other error."""
    if isinstance(
        error,
        (boto.NoCredentialsError, boto.PartialCredentialsError, boto.CredentialRetrievalError),
    ):
        return AccessDenied(
            f"no credentials for {where}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
            "a profile or a role"
        )
    if isinstance(error, boto.ProfileNotFound):
        text = f"there is no AWS profile {error.kwargs.get('profile')!r} for {where}"
        return AccessDenied(f"{text}; correct AWS_PROFILE, or add the profile to {_PROFILES}")
    if isinstance(error, (boto.ConfigParseError, boto.InvalidConfigError)):
        text = f"the AWS profile for {where} cannot be used: {type(error).__name__}"
        return AccessDenied(f"{text}; correct it in {_PROFILES}")
    if isinstance(error, (boto.NoAuthTokenError, boto.TokenRetrievalError, boto.SSOError)):
        text = f"the AWS profile for {where} is not signed in ({type(error).__name__})"
        return AccessDenied(f"{text}; run aws sso login")
    if isinstance(error, _FILE_ERRORS):
        return _credentials_unreadable(error, where)
    return None


def _at(error: Any, where: str) -> str:
    """Return " at" and the address of a failed connection, unless `where` has it already."""
    address = _format_address(str(error.kwargs.get("endpoint_url", "")))
    return f" at {address}" if address and address not in where else ""


def _credentials_unreadable(error: OSError | ValueError, where: str) -> AccessDenied:
    name = f" {error.filename}" if isinstance(error, OSError) and error.filename else ""
    return AccessDenied(f"the credentials for {where} cannot be read: {type(error).__name__}{name}")


def _is_aws_response(headers: Mapping[str, str]) -> bool:
    marked = any(name.startswith("x-amz") or name == "etag" for name in headers)
    return marked or "xml" in headers.get("content-type", "")


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code"))


def _translate_refusal(code: str, status: int, operation: str, where: str) -> TranslatedError:
    """Translate an error response of the service."""
    match _MEANING_OF_CODE.get(code):
        case "busy":
            text = f"{where} is busy and rejects {operation} ({code}); retry later"
            return TranslatedError(Unavailable(text), True, 8)
        case "signature":
            text = f"{where} rejects the signature ({code})"
            text += "; check the secret key and the clock of this machine"
            return TranslatedError(AccessDenied(text), True, 1)
        case "permissions":
            text = f"{where} does not allow {operation} ({code})"
            text += "; check the credentials and their permissions"
            return TranslatedError(AccessDenied(text), True, 1)
        case "missing":
            kind = "bucket" if code == "NoSuchBucket" else "table"
            text = f"the {kind} of {where} does not exist ({code})"
            text += "; create it, or correct its name in the URL"
            return TranslatedError(NotSetUp(text), True, 1)
        case "size":
            text = f"{where} does not accept an object of this size ({code})"
            return TranslatedError(TooLarge(text), True, 1)
    if not 400 <= status < 500:
        return TranslatedError(Unavailable(f"{where} failed at {operation} ({code})"), False, 4)
    text = f"{where} refuses {operation} ({code}); check the name, the region and the endpoint"
    text += " in the URL, and that the expected service answers there"
    return TranslatedError(UnsupportedServer(text), True, 1)


def check_endpoint(endpoint: str | None) -> str | None:
    """Return the endpoint; raise `InvalidURL` if it is not valid."""
    if endpoint is None:
        return None
    try:
        parts = urlsplit(endpoint)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        valid = False
    if not valid or parts.username or parts.password or parts.query or parts.fragment:
        raise InvalidURL("the URL option 'endpoint' must be like http://localhost:8000") from None
    return endpoint


def _format_address(address: str) -> str:
    """Return scheme, host and port for messages and logs. The rest may contain names of objects."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return ""
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}" if parts.hostname else ""
