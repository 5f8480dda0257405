"""S3: names, opening, and what failures of the service mean; with the real client against moto's
server."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from helpers import servers
from holdfast.backends.objects.aws import _format_address
from holdfast.backends.s3 import space as s3_space
from holdfast.backends.s3.backend import S3Backend, open_space
from holdfast.backends.s3.space import ALPHABET, S3Space, decode_name, encode_name
from holdfast.conformance.build import StreamTracker, all_heads, bodies, ids, read_all
from holdfast.errors import (
    AccessDenied,
    HoldfastError,
    InvalidURL,
    NotSetUp,
    OutcomeUnknown,
    StorageFull,
    Unavailable,
    UnsupportedServer,
    UnsupportedVersion,
)

# -- names -----------------------------------------------------------------------------------------


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_names_as_text_are_ordered_like_the_names(one: bytes, other: bytes) -> None:
    assert (one < other) == (encode_name(one) < encode_name(other))
    assert decode_name(encode_name(one)) == one


@given(st.binary(max_size=20), st.binary(max_size=20))
def test_a_name_that_begins_another_sorts_before_it(one: bytes, more: bytes) -> None:
    assert (encode_name(one) < encode_name(one + more)) == bool(more)


def test_the_alphabet_is_in_order_and_harmless_in_a_key() -> None:
    assert list(ALPHABET) == sorted(set(ALPHABET))
    assert len(ALPHABET) == 64
    assert len(encode_name(b"x" * 600)) == 800


@pytest.mark.parametrize("text", ["a", "!", "a/b", "zz", "--é", "-1"])
def test_text_that_is_no_name_is_told_apart(text: str) -> None:
    assert decode_name(text) is None


# -- URLs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "s3://",
        "s3:///prefix",
        "s3://a",
        "s3://key:secret@bucket",
        "s3://bucket/a//b",
        "s3://bucket/../x",
        "s3://bucket/a/./b",
        "s3://bucket/ä",
        "s3://bucket/" + "x" * 201,
        "s3://bucket?speed=fast",
        "s3://bucket?region=a&region=b",
        "s3://bucket?region=eu-central-1&endpoint=ftp://x",
        "s3://bucket?region=eu-central-1&endpoint=http://me:secret@localhost",
        "s3://bucket?region=not a region!",
    ],
)
def test_a_url_that_names_no_bucket_is_refused_and_no_secret_shown(url: str) -> None:
    with pytest.raises(InvalidURL) as caught:
        S3Backend(url)
    assert "secret" not in str(caught.value)


# -- a server between ------------------------------------------------------------------------------


class Between:
    """Passes requests on to moto. `meddle` may change a request's headers, answer in its place, or
    change the answer."""

    def __init__(self) -> None:
        self.headers: Callable[[str, dict[str, str]], None] = lambda method, headers: None
        self.answer: Callable[[str, str], tuple[int, str] | None] = lambda method, path: None
        self.after: Callable[[str, str, bytes], bytes | None] = lambda method, path, body: body
        self.requests: list[str] = []
        between, target = self, servers.aws().removeprefix("http://")

        class Handler(BaseHTTPRequestHandler):
            protocol_version = (
                "HTTP/1.1"  # or the client waits a second for leave to send each body
            )

            def handle_any(self) -> None:
                between.requests.append(f"{self.command} {self.path}")
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                said = between.answer(self.command, self.path)
                if said is not None:
                    text = f"<Error><Code>{said[1]}</Code><Message>m</Message></Error>".encode()
                    self._send(
                        said[0], {"x-amz-request-id": "1", "Content-Type": "application/xml"}, text
                    )
                    return
                headers = {
                    name: value for name, value in self.headers.items() if name.lower() != "expect"
                }
                between.headers(self.command, headers)
                connection = http.client.HTTPConnection(target, timeout=30)
                connection.request(self.command, self.path, body, headers)
                answer = connection.getresponse()
                found = between.after(self.command, self.path, answer.read())
                connection.close()
                if found is None:
                    self.close_connection = True  # the answer is lost on the way
                    return
                self._send(answer.status, dict(answer.getheaders()), found)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any

            def _send(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
                self.send_response_only(status)
                for name, value in headers.items():
                    if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body if self.command != "HEAD" else b"")

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), daemon=True
        )
        self._thread.start()
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def between() -> Iterator[Between]:
    one = Between()
    yield one
    one.close()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return servers.url_on("s3", tmp_path)


@pytest.fixture
def through(url: str, between: Between) -> str:
    """The same store, by way of the server between."""
    return url.replace(servers.aws(), between.endpoint)


@pytest.fixture
def space(url: str) -> Iterator[S3Space]:
    space = open_space(url)
    yield space
    space.close()


# -- the space -------------------------------------------------------------------------------------


def test_a_put_with_a_condition_happens_only_if_it_holds(space: S3Space) -> None:
    assert space.create("p", b"n", b"1")
    assert not space.create("p", b"n", b"2")
    first = space.get("p", b"n")
    assert first is not None
    assert first.data == b"1"
    assert space.replace("p", b"n", b"2", first.tag)
    assert not space.replace("p", b"n", b"3", first.tag)
    assert not space.replace("p", b"other", b"3", first.tag)
    second = space.get("p", b"n")
    assert second is not None
    assert (second.data, second.tag != first.tag) == (b"2", True)
    space.put("p", b"n", b"")
    third = space.get("p", b"n")
    assert third is not None
    assert third.data == b""
    space.remove("p", [b"n", b"never there"])
    assert space.get("p", b"n") is None
    space.remove("p", [b"n"])
    space.remove("p", [])


def test_names_are_listed_in_order_within_their_partition(
    space: S3Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = sorted(
        [b"a", b"ab", b"\x00", b"\xff" * 600, b"b", b"~", b"\x00\x00", b"a\x00", b"A", b"_"]
    )
    for name in names[::-1]:
        space.put("p", name, name)
        space.put("p2", b"x" + name[:599], b"")
    monkeypatch.setattr(s3_space, "KEYS_PER_REQUEST", 3)
    monkeypatch.setattr(s3_space, "PARALLEL_READS", 2)
    for limit in (1, 4, 100):
        assert list(space.list("p", limit=limit)) == names[:limit]
        assert [named.data for named in space.scan("p", limit=limit)] == names[:limit]
        assert (
            list(space.list("p", after=b"A", until=b"b", limit=limit))
            == [b"_", b"a", b"a\x00", b"ab", b"b"][:limit]
        )
        found = space.scan("p", after=b"A", until=b"b", limit=limit, reverse=True)
        assert [named.name for named in found] == [b"b", b"ab", b"a\x00", b"a", b"_"][:limit]
    assert list(space.list("none", limit=9)) == []
    space.remove("p", names[:7])
    assert list(space.list("p", limit=9)) == names[7:]


def test_a_page_with_bytes_is_bounded(space: S3Space) -> None:
    for number in range(40):
        space.put("p", b"%02d" % number, bytes(512 * 1024))
    assert 16 <= len(space.scan("p", limit=40)) < 40
    assert 16 <= len(space.scan("p", after=b"0", until=b"9", limit=40, reverse=True)) < 40


# -- opening ---------------------------------------------------------------------------------------


def test_the_store_is_tried_out_once_and_cheap_to_open_again(
    between: Between, through: str
) -> None:
    S3Backend(through).close()
    assert len(between.requests) > 10
    between.requests.clear()
    S3Backend(through, durability="process").close()
    assert [request.split("?")[0].rpartition("/")[2] for request in between.requests] == [
        "holdfast-schema"
    ]


def test_many_may_open_an_empty_prefix_at_once(url: str) -> None:
    gate, opened = threading.Barrier(16), []

    def start() -> None:
        gate.wait()
        opened.append(S3Backend(url))

    threads = [threading.Thread(target=start) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == 16
    for backend in opened:
        backend.close()


def _without(name: str, value: str | None = None) -> Callable[[str, dict[str, str]], None]:
    def change(method: str, headers: dict[str, str]) -> None:
        for header in [header for header in headers if header.lower() == name]:
            if method == "PUT" and value in (None, headers[header]):
                del headers[header]

    return change


@pytest.mark.parametrize("header", ["if-none-match", "if-match"])
def test_a_store_that_ignores_a_condition_is_refused(
    between: Between, through: str, header: str
) -> None:
    between.headers = _without(header)
    with pytest.raises(UnsupportedServer, match="-Match"):
        S3Backend(through)
    between.headers = _without("nothing")
    S3Backend(through).close()


def test_a_store_that_lists_without_order_is_refused(between: Between, through: str) -> None:
    def shuffled(method: str, path: str, body: bytes) -> bytes:
        if "list-type" not in path or body.count(b"<Contents>") < 2:
            return body
        front, *items = body.split(b"<Contents>")
        last, back = items[-1].split(b"</Contents>")
        whole = [b"<Contents>" + item for item in items[:-1]] + [
            b"<Contents>" + last + b"</Contents>"
        ]
        return front + b"".join(whole[::-1]) + back

    between.after = shuffled
    with pytest.raises(UnsupportedServer, match="order"):
        S3Backend(through)


def test_a_store_of_a_newer_holdfast_is_refused(url: str, space: S3Space) -> None:
    space._put(space._prefix + s3_space.MARKER, b"holdfast 2\n")
    with pytest.raises(UnsupportedVersion, match="newer"):
        S3Backend(url)


def test_a_missing_bucket_is_said_to_be_missing() -> None:
    with pytest.raises(
        NotSetUp, match=r"the bucket of s3://no-such-bucket/x.* does not exist .*; create it, or"
    ):
        S3Backend(f"s3://no-such-bucket/x?region=eu-central-1&endpoint={servers.aws()}")


def test_where_nobody_listens_it_is_unavailable() -> None:
    endpoint = f"http://127.0.0.1:{servers.free_port()}"
    with pytest.raises(Unavailable) as caught:
        S3Backend(f"s3://bucket/x?region=eu-central-1&endpoint={endpoint}")
    assert f"s3://bucket/x?endpoint={endpoint} cannot be reached" in str(caught.value)


def test_without_credentials_it_is_said_what_to_set(
    url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    with pytest.raises(AccessDenied, match="AWS_ACCESS_KEY_ID"):
        S3Backend(url)


@pytest.mark.parametrize(
    ("profile", "says"),
    [
        (
            "credential_process=/nonexistent/program",
            "cannot be read: FileNotFoundError /nonexistent/program",
        ),
        ("credential_process=/bin/echo hello", "cannot be read: JSONDecodeError"),
        ("role_arn=arn:aws:iam::1:role/x\nsource_profile=nobody", "InvalidConfigError"),
        (
            "role_arn=arn:aws:iam::1:role/x\nweb_identity_token_file=/nonexistent/token",
            "cannot be read: FileNotFoundError /nonexistent/token",
        ),
    ],
)
def test_credentials_that_cannot_be_had_are_said_to_be_the_trouble(
    url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, profile: str, says: str
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "config").write_text(f"[default]\n{profile}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    with pytest.raises(AccessDenied) as caught:
        S3Backend(url)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("trouble", "raised"),
    [
        (FileNotFoundError(2, "no such file", "/run/token"), AccessDenied),
        (PermissionError(13, "not for you", "/run/token"), AccessDenied),
        (ConnectionResetError(104, "reset"), OutcomeUnknown),
        (ValueError("no text"), OutcomeUnknown),
    ],
)
def test_credentials_that_cannot_be_renewed_are_not_taken_for_a_lost_answer(
    space: S3Space, trouble: Exception, raised: type[HoldfastError]
) -> None:
    def renew(**request: object) -> None:
        raise trouble

    events = space._service.client.meta.events
    events.register("before-sign", renew)
    with pytest.raises(raised):
        space.put("p", b"n", b"1")
    with pytest.raises((AccessDenied, Unavailable)):
        space.get("p", b"n")
    events.unregister("before-sign", renew)
    assert space.get("p", b"n") is None


@pytest.mark.parametrize(
    ("status", "code", "error", "says"),
    [
        (403, "AccessDenied", AccessDenied, "GetObject"),
        (403, "InvalidAccessKeyId", AccessDenied, "credentials"),
        (403, "RequestTimeTooSkewed", AccessDenied, "clock"),
        (503, "SlowDown", Unavailable, "busy"),
        (500, "InternalError", Unavailable, "failed"),
        (301, "PermanentRedirect", InvalidURL, "region"),
        (400, "AuthorizationHeaderMalformed", InvalidURL, "region"),
        (404, "NoSuchBucket", NotSetUp, "the bucket of .* does not exist"),
        (
            400,
            "400",
            UnsupportedServer,
            "refuses GetObject .*; check the name, the region and the endpoint",
        ),
    ],
)
def test_a_refusal_at_opening_is_one_clear_error(
    between: Between, through: str, status: int, code: str, error: type[HoldfastError], says: str
) -> None:
    # Asked where the bucket is (HEAD), the server does not know: or the client would go there by
    # itself.
    between.answer = lambda method, path: (status, code) if method != "HEAD" else (404, "NotFound")
    with pytest.raises(error, match=says) as caught:
        S3Backend(through)
    assert "testing" not in str(caught.value)
    assert caught.value.__cause__ is None


# -- failures --------------------------------------------------------------------------------------


def _commits(method: str, path: str) -> bool:
    return method == "PUT" and "/c/" in path


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (503, "SlowDown", Unavailable),
        (403, "AccessDenied", AccessDenied),
        (507, "XMinioStorageFull", StorageFull),
        (409, "ConditionalRequestConflict", Unavailable),
        (501, "NotImplemented", UnsupportedServer),
        (500, "InternalError", OutcomeUnknown),
    ],
)
def test_a_refused_put_says_whether_it_may_have_been_stored(
    between: Between, through: str, status: int, code: str, error: type[HoldfastError]
) -> None:
    backend, tracker = S3Backend(through), StreamTracker()
    tracker.write(backend, b"a")
    between.answer = lambda method, path: (status, code) if _commits(method, path) else None
    with pytest.raises(error) as caught:
        backend.append([tracker.next(b"b")])
    assert type(caught.value) is error
    between.answer = lambda method, path: None
    tracker.write(backend, b"b")
    assert bodies(read_all(backend, tracker.stream)) == [b"a", b"b"]
    backend.close()


def test_a_conflict_of_two_puts_at_once_is_tried_again(between: Between, through: str) -> None:
    backend, tracker = S3Backend(through), StreamTracker()
    tracker.write(backend, b"a")
    left = [(409, "ConditionalRequestConflict"), (409, "OperationAborted")]
    between.answer = lambda method, path: left.pop() if _commits(method, path) and left else None
    tracker.write(backend, b"b")
    assert left == []
    backend.close()


def test_an_append_whose_answer_is_lost_is_stored_once_and_acknowledged(
    between: Between, through: str
) -> None:
    backend, tracker = S3Backend(through), StreamTracker()
    lost: list[str] = []

    def lose(method: str, path: str, body: bytes) -> bytes | None:
        if method == "PUT" and path not in lost:
            lost.append(path)
            return None
        return body

    between.after = lose
    for number in range(3):
        tracker.write(backend, b"%d" % number, indexed=number == 1)
    assert sum("/c/" in path for path in lost) == 2
    assert bodies(read_all(backend, tracker.stream)) == [b"0", b"1", b"2"]
    assert ids(all_heads(backend)) == ["s"]
    backend.close()


def test_every_put_carries_a_checksum_for_the_server_to_compare(
    between: Between, through: str
) -> None:
    other = open_space(through)
    sent: list[Mapping[str, str]] = []
    between.headers = lambda method, headers: sent.append(headers) if method == "PUT" else None
    other.create("p", b"n", b"data")
    assert any(name.lower() == "x-amz-checksum-sha256" for name in sent[-1])
    other.close()


# -- the whole -------------------------------------------------------------------------------------


def test_a_store_says_what_it_is(url: str) -> None:
    backend = S3Backend(url, durability="memory")
    described = backend.describe()
    assert (described.engine, described.durability) == ("s3", "disk")
    assert described.location.startswith("s3://holdfast-t")
    assert "testing" not in repr(described)
    assert described.location == url
    assert described.warnings == []
    backend.close()


def test_of_an_endpoint_only_its_address_is_shown(url: str) -> None:
    space = open_space(f"{url}/")
    assert space.describe().location == url
    space.close()
    assert _format_address("https://me:secret@[::1]:9000/path?query") == "https://[::1]:9000"
    assert _format_address("http://[") == _format_address("") == ""


def test_a_program_runs_on_a_bucket(url: str) -> None:
    with holdfast.open(url) as store:
        chat = store.conversation("support-42")
        chat.append({"role": "user", "content": "Hello"}, id="req-1")
        chat.append({"role": "user", "content": "Hello"}, id="req-1")
        chat.append({"role": "assistant", "content": "Hi"})
    with holdfast.open(url) as store:
        assert [message["content"] for message in store.conversation("support-42").messages()] == [
            "Hello",
            "Hi",
        ]
        store.conversation("support-42").delete()
        assert store.conversation("support-42").count() == 0
