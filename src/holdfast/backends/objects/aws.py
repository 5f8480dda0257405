"""What DynamoDB and S3 have in common as services of AWS: a client, the clock of the server, and what a failure means.

The client never repeats a request by itself. Whether a write may have been stored is known only to who sees the outcome of
every attempt: a timeout followed by a refused connection is not "nothing was written".
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
from .. import clock
from .aws_logs import hide_bodies

try:
    import boto3  # type: ignore[import-untyped]
    from botocore import exceptions as boto  # type: ignore[import-untyped]
    from botocore.config import Config  # type: ignore[import-untyped]
    from botocore.parsers import ResponseParserError  # type: ignore[import-untyped]
except ModuleNotFoundError:
    raise MissingExtra("dynamodb:// and s3://", "aws") from None

CONNECT_SECONDS: Final = 5
READ_SECONDS: Final = 10
RETRY_DEADLINE_SECONDS: Final = 20
"""No attempt is begun after this long."""

_CODES_BY_MEANING: Final = {
    "busy": """LimitExceededException ProvisionedThroughputExceededException RequestLimitExceeded RequestThrottled
        RequestThrottledException SlowDown Throttling ThrottledException ThrottlingException TooManyRequestsException""",
    "signature": """InvalidSignatureException RequestExpired RequestTimeTooSkewed SignatureDoesNotMatch""",
    "permissions": """AccessDenied AccessDeniedException AllAccessDisabled ExpiredToken ExpiredTokenException
        IncompleteSignature IncompleteSignatureException InvalidAccessKeyId InvalidClientTokenId InvalidToken
        KMSAccessDeniedException MissingAuthenticationToken MissingAuthenticationTokenException OptInRequired
        TokenRefreshRequired UnrecognizedClientException 403""",
    "missing": "NoSuchBucket ResourceNotFoundException",
    "size": "EntityTooLarge MaxMessageLengthExceeded RequestEntityTooLarge",
}
_MEANING_OF_CODE: Final = {
    code: meant for meant, codes in _CODES_BY_MEANING.items() for code in codes.split()
}

_PROFILES: Final = "~/.aws/config and ~/.aws/credentials (or where AWS_CONFIG_FILE and AWS_SHARED_CREDENTIALS_FILE say)"

_FILE_ERRORS: Final = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
"""Errors of a file with credentials, or of a program that prints them: nothing of the network, so nothing was sent."""

Response = Mapping[str, Any]
BotoCoreError: Final = boto.BotoCoreError
"""The client's own trouble: no answer, or half of one."""


class AWSResponse(NamedTuple):
    """What the service said. `code` is that of an error which the caller had asked to see; `in_doubt`: an earlier attempt
    of the same request was lost, and may have been carried out."""

    response: Response
    code: str | None = None
    in_doubt: bool = False


class TranslatedError(NamedTuple):
    """What a failure means: the error for the caller, whether surely nothing was written, and how many attempts it is worth."""

    error: HoldfastError
    certain: bool
    attempts: int


class ServerClock:
    """The time by the clock of a server that tells it in whole seconds, with every answer.

    An answer dated D that was asked for at `sent` and came at `heard` (local) says: server - local lies between
    D - heard and D + 1 - sent. What all answers agree on is soon within a few milliseconds.
    """

    def __init__(self) -> None:
        self._ahead: float | None = None

    def set(self, date: str | None, *, sent: float, received: float) -> None:
        """Learn from an answer; the times are of `perf_counter`."""
        try:
            stamp = parsedate_to_datetime(date or "").timestamp()
        except (ValueError, TypeError, OverflowError):
            return
        ahead = stamp - received if self._ahead is None else max(self._ahead, stamp - received)
        # Only a clock that was set back, here or there, makes it go back.
        self._ahead = min(ahead, stamp + 1 - sent)

    def now(self) -> float:
        return clock.time() if self._ahead is None else time.perf_counter() + self._ahead


class AWSClient:
    """A client of one service, for all threads. `where` names the store in errors, with the endpoint if one was given."""

    def __init__(
        self, name: str, *, region: str | None, endpoint: str | None, where: str, **config: Any
    ) -> None:
        self.clock = ServerClock()
        self._name, self._region, self._endpoint = name, region, check_endpoint(endpoint)
        self._place, self._address = (
            where,
            "" if endpoint is None else f"endpoint={_format_address(endpoint)}",
        )
        self.where = f"{where}?{self._address}" if self._address else where
        self._config = Config(
            connect_timeout=CONNECT_SECONDS,
            read_timeout=READ_SECONDS,
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
        """The store for people: its place and region, and the endpoint if one was given."""
        return f"{self._place}?region={self.region}" + (
            f"&{self._address}" if self._address else ""
        )

    @property
    def client(self) -> Any:
        with self._lock:
            if self._closing.is_set():
                raise StoreClosed(f"the store {self.where} was closed")
            if self._client is None:
                self._client = self._connect()
            return self._client

    def _connect(self) -> Any:
        try:
            session = boto3.session.Session()
            self._load_credentials(session)
            return session.client(
                self._name,
                region_name=self._region,
                endpoint_url=self._endpoint,
                config=self._config,
            )
        except boto.NoRegionError:
            raise InvalidURL(
                f"{self.where} names no region; add ?region=eu-central-1, or the one it is in"
            ) from None
        except ValueError:
            raise InvalidURL(
                f"the region or the endpoint of {self.where} cannot be one; a region is like eu-central-1"
            ) from None
        except boto.BotoCoreError as error:
            raise translate_error(error, self.where).error from None

    def _load_credentials(self, session: Any) -> None:
        """As the client would, but apart from it: what goes wrong here is not about a region."""
        try:
            session.get_credentials()
        except ValueError as error:
            raise _credentials_unreadable(
                error, self.where
            ) from None  # what a program prints is not what it should be
        except OSError as error:
            raise translate_error(error, self.where).error from None

    def call(
        self, operation: str, *, writes: bool, expected: Collection[str] = (), **arguments: Any
    ) -> AWSResponse:
        """Send a request, again if it may help. It must be one that can be repeated without harm.

        Error codes in `see` are answers. If a write was lost on the way, and later attempts failed too, it is `OutcomeUnknown`.
        """
        deadline = time.monotonic() + RETRY_DEADLINE_SECONDS
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
                # The last two come from credentials that are renewed, or from an answer that is no text.
                error, certain, attempts = translate_error(failure, self.where)
            in_doubt = in_doubt or (writes and not certain)
            over = attempt >= attempts or time.monotonic() > deadline
            closed = not over and self.pause(attempt)
            if in_doubt and (over or closed):
                raise OutcomeUnknown(f"nobody knows whether it was stored: {error}")
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
                "a page of some proxy: the client would take it for an empty answer"
            )
        self.clock.set(headers.get("date"), sent=sent, received=time.perf_counter())
        return AWSResponse(response, code, in_doubt)

    def pause(self, attempt: int) -> bool:
        """Wait before the next attempt, for a random part of a time that doubles. True if the store was closed meanwhile."""
        return self._closing.wait(random.uniform(0, min(1.0, 0.05 * 2**attempt)))  # noqa: S311  jitter, not a secret

    def close(self) -> None:
        with self._lock:
            self._closing.set()
            if self._client is not None:
                # Connections in use are closed when their request has its answer.
                self._client.close()

    def reset_after_fork(self) -> None:
        """In the child of a fork: the connections, and whatever lock another thread may have held, are the parent's."""
        closed = self._closing.is_set()
        self._lock, self._closing, self._client = threading.Lock(), threading.Event(), None
        if closed:
            self._closing.set()


def translate_error(error: Exception, where: str) -> TranslatedError:
    """What a failure of the client means. Its text is never passed on: it may quote a request."""
    if isinstance(error, boto.ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return _translate_refusal(_code(error), status, error.operation_name, where)
    if isinstance(error, boto.ConnectTimeoutError):
        text = f"{where} cannot be reached{_at(error, where)} within {CONNECT_SECONDS} s"
        return TranslatedError(
            Unavailable(f"{text}; check the region or the endpoint, and the network"), True, 1
        )
    if isinstance(error, boto.ProxyConnectionError):
        text = f"{where} cannot be reached: the proxy does not answer; check HTTPS_PROXY and HTTP_PROXY"
        return TranslatedError(Unavailable(text), True, 3)
    if isinstance(error, boto.EndpointConnectionError):
        text = f"{where} cannot be reached{_at(error, where)}"
        return TranslatedError(
            Unavailable(f"{text}; is the region or the endpoint right, and does it run?"), True, 3
        )
    if isinstance(error, boto.SSLError):
        return TranslatedError(
            Unavailable(f"{where}: no secure connection; is its certificate trusted here?"),
            False,
            3,
        )
    if isinstance(
        error,
        (boto.NoCredentialsError, boto.PartialCredentialsError, boto.CredentialRetrievalError),
    ):
        text = f"no credentials for {where}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile or a role"
        return TranslatedError(AccessDenied(text), True, 1)
    if isinstance(error, boto.ProfileNotFound):
        text = f"there is no AWS profile {error.kwargs.get('profile')!r} for {where}"
        return TranslatedError(
            AccessDenied(f"{text}; correct AWS_PROFILE, or add the profile to {_PROFILES}"), True, 1
        )
    if isinstance(error, (boto.ConfigParseError, boto.InvalidConfigError)):
        text = f"the AWS profile for {where} cannot be used: {type(error).__name__}"
        return TranslatedError(AccessDenied(f"{text}; correct it in {_PROFILES}"), True, 1)
    if isinstance(error, (boto.NoAuthTokenError, boto.TokenRetrievalError, boto.SSOError)):
        text = f"the AWS profile for {where} is not signed in ({type(error).__name__}); run aws sso login"
        return TranslatedError(AccessDenied(text), True, 1)
    if isinstance(error, _FILE_ERRORS):
        return TranslatedError(_credentials_unreadable(error, where), True, 1)
    if isinstance(error, boto.ReadTimeoutError):
        text = f"{where} did not answer within {READ_SECONDS} s; try again later, and check the network if it stays"
        return TranslatedError(Unavailable(text), False, 4)
    text = f"{where} gave no answer that can be used ({type(error).__name__}); try again later, and check the endpoint"
    return TranslatedError(Unavailable(f"{text} if it stays"), False, 4)


def _at(error: Any, where: str) -> str:
    """At which address it was tried, if that was not said already."""
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
    match _MEANING_OF_CODE.get(code):
        case "busy":
            return TranslatedError(
                Unavailable(f"{where} is busy and refuses {operation} for now ({code})"), True, 8
            )
        case "signature":
            why = f"{where} refuses the signature ({code}): the secret key is wrong, or the clock of this machine is"
            return TranslatedError(AccessDenied(why), True, 1)
        case "permissions":
            why = f"{where} does not allow {operation} ({code}): check the credentials and their rights"
            return TranslatedError(AccessDenied(why), True, 1)
        case "missing":
            what = "bucket" if code == "NoSuchBucket" else "table"
            why = f"the {what} of {where} does not exist ({code}); create it, or correct its name in the URL"
            return TranslatedError(NotSetUp(why), True, 1)
        case "size":
            return TranslatedError(
                TooLarge(f"{where} takes nothing of this size ({code})"), True, 1
            )
    if not 400 <= status < 500:
        return TranslatedError(Unavailable(f"{where} failed at {operation} ({code})"), False, 4)
    why = f"{where} refuses {operation} ({code}); check the name, the region and the endpoint in the URL"
    return TranslatedError(
        UnsupportedServer(f"{why}, and that what answers there is this service"), True, 1
    )


def check_endpoint(endpoint: str | None) -> str | None:
    """The endpoint of a URL, if it is one."""
    if endpoint is None:
        return None
    try:
        parts = urlsplit(endpoint)
        sound = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        sound = False
    if not sound or parts.username or parts.password or parts.query or parts.fragment:
        raise InvalidURL("the option 'endpoint' of the URL is like http://localhost:8000") from None
    return endpoint


def _format_address(address: str) -> str:
    """The address of a service for people and logs: scheme, host and port. The rest may name what is stored."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return ""
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}" if parts.hostname else ""
