"""Opening a table of DynamoDB: what is made, what is refused, and which error says what to do. And
the clock of the server."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore import exceptions as boto

import holdfast
from helpers.engines.aws_proxy import AwsProxy, Reply, Request, proxy_to
from helpers.servers import aws, free_port, url_on
from holdfast.backends.dynamodb.backend import create_table_json, open_space, parse_table_name
from holdfast.backends.dynamodb.space import SCHEMA_KEY
from holdfast.backends.objects import aws as _aws
from holdfast.backends.objects.aws import ServerClock
from holdfast.errors import (
    AccessDenied,
    HoldfastError,
    InvalidURL,
    NotSetUp,
    OutcomeUnknown,
    Unavailable,
    UnsupportedServer,
    UnsupportedVersion,
)

SECRET = "very+secret/key"


@pytest.fixture
def proxy() -> Iterator[AwsProxy]:
    with proxy_to(aws()) as proxy:
        yield proxy


@pytest.fixture
def url(proxy: AwsProxy, tmp_path: Path) -> str:
    return url_on("dynamodb", tmp_path).replace(aws(), proxy.endpoint)


@pytest.fixture
def client() -> Iterator[Any]:
    client = boto3.session.Session().client(
        "dynamodb", region_name="eu-central-1", endpoint_url=aws()
    )
    yield client
    client.close()


def refused(url: str) -> HoldfastError:
    """The error that opening ends with, through the front door. It never shows a secret."""
    with pytest.raises(HoldfastError) as caught:
        holdfast.open(url)
    assert caught.value.__cause__ is None
    assert SECRET not in str(caught.value)
    return caught.value


def opens(url: str) -> bool:
    space = open_space(url)
    try:
        return space.create("p", b"a", b"1") or space.get("p", b"a") is not None
    finally:
        space.close()


# -- making the table ------------------------------------------------------------------------------


def test_sixteen_who_start_at_once_make_one_table(url: str, client: Any) -> None:
    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(lambda _: opens(url), range(16)))
    table = client.describe_table(TableName=parse_table_name(url))["Table"]
    assert table["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
    assert not client.describe_time_to_live(TableName=parse_table_name(url))[
        "TimeToLiveDescription"
    ].get("AttributeName")


def test_a_table_that_is_being_made_is_waited_for(url: str, proxy: AwsProxy) -> None:
    def not_yet(request: Request) -> Reply:
        reply = request.pass_on()
        if (
            request.operation == "DescribeTable"
            and reply.status == 200
            and proxy.faults["not yet"] < 3
        ):
            proxy.faults["not yet"] += 1
            return reply.changed(Table={**reply.json()["Table"], "TableStatus": "CREATING"})
        return reply

    proxy.rule = not_yet
    assert opens(url)
    assert proxy.faults["not yet"] == 3
    assert proxy.operations().count("CreateTable") == 1


def test_who_lost_the_race_to_create_it_waits_with_the_others(url: str, proxy: AwsProxy) -> None:
    def somebody_else(request: Request) -> Reply:
        if request.operation == "CreateTable":
            proxy.rule = Request.pass_on
            request.pass_on()
        return request.pass_on()

    proxy.rule = somebody_else
    assert opens(url)
    assert proxy.operations().count("CreateTable") == 1


def test_the_printed_definition_makes_a_table_that_is_taken_as_it_is(
    url: str, client: Any, proxy: AwsProxy
) -> None:
    client.create_table(**json.loads(create_table_json(parse_table_name(url))))
    assert opens(url)
    assert "CreateTable" not in proxy.operations()


def test_an_open_that_needs_nothing_writes_nothing(url: str, proxy: AwsProxy) -> None:
    assert opens(url)
    proxy.seen.clear()
    open_space(url).close()
    assert proxy.operations() == ["DescribeTable", "GetItem"]


def test_it_says_what_it_is_and_where(url: str, proxy: AwsProxy) -> None:
    space = open_space(url)
    described = space.describe()
    space.close()
    assert (described.engine, described.durability) == ("dynamodb", "disk")
    assert (
        described.location
        == f"dynamodb://{parse_table_name(url)}?region=eu-central-1&endpoint={proxy.endpoint}"
    )
    assert described.warnings == []
    assert described.limits["record"] == space.max_bytes > 20_000_000


# -- tables that are not ours ----------------------------------------------------------------------


def test_a_table_with_other_keys_is_refused_and_left_alone(url: str, client: Any) -> None:
    client.create_table(
        TableName=parse_table_name(url),
        AttributeDefinitions=[
            {"AttributeName": "p", "AttributeType": "S"},
            {"AttributeName": "n", "AttributeType": "S"},
        ],
        KeySchema=[
            {"AttributeName": "p", "KeyType": "HASH"},
            {"AttributeName": "n", "KeyType": "RANGE"},
        ],
        BillingMode="PAY_PER_REQUEST",
    )
    assert isinstance(refused(url), UnsupportedVersion)
    assert client.scan(TableName=parse_table_name(url))["Items"] == []


def test_a_store_of_a_newer_holdfast_is_refused(url: str) -> None:
    space = open_space(url)
    space.put(*SCHEMA_KEY, b"2")
    space.close()
    error = refused(url)
    assert isinstance(error, UnsupportedVersion)
    assert "newer" in str(error)


@pytest.mark.parametrize(
    "sign", [{"Replicas": [{"RegionName": "us-east-1"}]}, {"GlobalTableVersion": "2017.11.29"}]
)
def test_a_table_with_replicas_in_other_regions_is_refused(
    sign: dict[str, Any], url: str, proxy: AwsProxy
) -> None:
    assert opens(url)

    def replicated(request: Request) -> Reply:
        reply = request.pass_on()
        return (
            reply.changed(Table={**reply.json()["Table"], **sign})
            if "Table" in reply.json()
            else reply
        )

    proxy.rule = replicated
    error = refused(url)
    assert isinstance(error, UnsupportedServer)
    assert "global table" in str(error)


# -- rights, regions, addresses --------------------------------------------------------------------


def test_without_the_right_to_create_it_a_missing_table_is_not_set_up(
    url: str, proxy: AwsProxy
) -> None:
    proxy.rule = lambda request: (
        request.refuse("AccessDeniedException")
        if request.operation == "CreateTable"
        else request.pass_on()
    )
    error = refused(url)
    assert isinstance(error, NotSetUp)
    assert "dynamodb:CreateTable" in str(error)
    assert "holdfast schema" in str(error)


@pytest.mark.parametrize(
    ("code", "expected", "says"),
    [
        ("AccessDeniedException", AccessDenied, "DescribeTable"),
        ("UnrecognizedClientException", AccessDenied, "credentials"),
        ("ExpiredTokenException", AccessDenied, "credentials"),
        ("InvalidSignatureException", AccessDenied, "clock"),
        ("ThrottlingException", Unavailable, "busy"),
        (
            "ValidationException",
            UnsupportedServer,
            "(ValidationException); check the name, the region and the endpoint",
        ),
    ],
)
def test_each_refusal_of_the_service_has_its_error(
    code: str, expected: type[HoldfastError], says: str, url: str, proxy: AwsProxy
) -> None:
    proxy.rule = lambda request: request.refuse(code)
    error = refused(url)
    assert isinstance(error, expected)
    assert says in str(error)


def test_a_table_that_vanishes_is_not_set_up(url: str, client: Any) -> None:
    space = open_space(url)
    client.delete_table(TableName=parse_table_name(url))
    for call in (
        lambda: space.create("p", b"a", b""),
        lambda: space.get("p", b"a"),
        lambda: space.remove("p", [b"a"]),
    ):
        with pytest.raises(
            NotSetUp,
            match=r"the table of dynamodb://.* does not exist .*; create it, or correct its name",
        ):
            call()
    space.close()


def test_nobody_there_is_unavailable(tmp_path: Path) -> None:
    aws()
    endpoint = f"http://127.0.0.1:{free_port()}"
    error = refused(f"dynamodb://table?region=eu-central-1&endpoint={endpoint}/some/path")
    assert isinstance(error, Unavailable)
    assert (
        f"dynamodb://table?endpoint={endpoint} cannot be reached; check the region or the endpoint"
        in str(error)
    )
    assert "path" not in str(error)


def test_the_address_of_aws_is_shown_if_nobody_is_there() -> None:
    address = "https://bucket.s3.eu-central-1.amazonaws.com"
    for kind in (boto.EndpointConnectionError, boto.ConnectTimeoutError):
        error = _aws.translate_error(
            kind(endpoint_url=f"{address}/agents/name-of-it?x=y"), "s3://bucket/agents"
        ).error
        assert f"s3://bucket/agents cannot be reached at {address}" in str(error)
        assert "name-of-it" not in str(error)
    proxy = boto.ProxyConnectionError(proxy_url=f"http://me:{SECRET}@proxy:3128")
    assert "check HTTPS_PROXY" in str(_aws.translate_error(proxy, "s3://bucket").error)
    assert SECRET not in str(_aws.translate_error(proxy, "s3://bucket").error)


def test_a_host_that_never_answers_is_unavailable_in_time(
    url: str, proxy: AwsProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_aws, "READ_SECONDS", 0.2)
    space = open_space(url)

    given_up = threading.Event()

    def too_late(request: Request) -> None:
        request.lose()
        given_up.wait(30)

    proxy.rule = too_late
    proxy.seen.clear()
    try:
        with pytest.raises(Unavailable, match=r"did not answer in time; try again later"):
            space.get("p", b"a")
        assert proxy.operations() == ["GetItem"] * 4
        with pytest.raises(OutcomeUnknown):
            space.create("p", b"a", b"1")
    finally:
        given_up.set()
    proxy.rule = Request.pass_on
    assert space.get("p", b"a") is not None
    space.close()


@pytest.mark.timeout(40)
@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux leaves a caller waiting when nobody accepts"
)
def test_a_host_that_lets_nobody_in_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    aws()
    monkeypatch.setattr(_aws, "CONNECT_SECONDS", 0.5)
    with socket.socket() as full, socket.socket() as waiting, socket.socket() as next_one:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting.connect(full.getsockname())
        next_one.setblocking(False)
        next_one.connect_ex(full.getsockname())
        error = refused(
            "dynamodb://table?region=eu-central-1&endpoint=http:/"
            f"/127.0.0.1:{full.getsockname()[1]}"
        )
        assert isinstance(error, Unavailable)
        assert "in time" in str(error)


def test_without_credentials_it_says_which_to_set(
    url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    aws()
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    error = refused(url)
    assert isinstance(error, AccessDenied)
    assert "AWS_ACCESS_KEY_ID" in str(error)


def test_a_profile_that_is_not_there_is_said_without_a_traceback_of_the_driver(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    error = refused(url)
    assert isinstance(error, AccessDenied)
    assert "there is no AWS profile 'nobody'" in str(error)
    assert "~/.aws/config" in str(error)


def test_a_profile_that_is_not_signed_in_is_said_to_be_so(
    url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "config").write_text(
        "[default]\nsso_start_url=http:/"
        "/127.0.0.1:1\nsso_region=eu-central-1\nsso_account_id=1\nsso_role_name=x\n"
    )
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    error = refused(url)
    assert isinstance(error, AccessDenied)
    assert "run aws sso login" in str(error)


def test_without_a_region_it_says_what_to_add(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    aws()
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    error = refused("dynamodb://table")
    assert isinstance(error, InvalidURL)
    assert "?region=" in str(error)


@pytest.mark.parametrize(
    "url",
    [
        "dynamodb://",
        "dynamodb://ab",
        "dynamodb://a b c",
        "dynamodb://table/more?region=eu-central-1",
        "dynamodb://table?region=eu-central-1&bucket=x",
        "dynamodb://table?region=no region",
        "dynamodb://table?region=eu-central-1&endpoint=localhost:8000",
        "dynamodb://table?region=eu-central-1&endpoint=ftp://localhost",
        f"dynamodb://table?region=eu-central-1&endpoint=http://user:{SECRET}@localhost",
        "dynamodb://table?region=eu-central-1&endpoint=http://user@localhost",
        f"dynamodb://key:{SECRET}@table?region=eu-central-1",
        "dynamodb://table?region=eu-central-1#x",
    ],
)
def test_a_url_that_names_no_table_is_refused(url: str) -> None:
    aws()
    assert isinstance(refused(url), InvalidURL)


def test_without_boto3_it_says_what_to_install() -> None:
    script = (
        "import sys; sys.modules['boto3'] = None; import holdfast; "
        "holdfast.open('dynamodb://table?region=x')"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "MissingExtra" in ended.stderr
    [error] = [line for line in ended.stderr.splitlines() if "MissingExtra: " in line]
    assert "pip install '.[aws]'" in error


def test_no_error_shows_what_was_stored_or_the_driver_s_words(url: str, proxy: AwsProxy) -> None:
    space = open_space(url)
    proxy.rule = lambda request: request.refuse("ValidationException")
    with pytest.raises(UnsupportedServer) as caught:
        space.create("p", b"name-of-it", b"content-of-it")
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert "of-it" not in str(caught.value)
    space.close()


# -- the clock -------------------------------------------------------------------------------------


def answer(clock: ServerClock, ahead: float, *, sent: float, took: float, at: float) -> None:
    """An answer by a server whose clock is `ahead` of ours, that looked at it after the part `at`
    of the time it took."""
    clock.set(formatdate(ahead + sent + took * at, usegmt=True), sent=sent, received=sent + took)


def test_the_clock_of_the_server_is_found_from_whole_seconds() -> None:
    random.seed(7)
    for ahead in (1_700_000_000.25, 1_800_000_000.999):
        clock, local = ServerClock(), time.perf_counter()
        for _ in range(300):
            local += random.uniform(0, 0.4)
            answer(clock, ahead, sent=local, took=random.uniform(0.001, 0.02), at=random.random())
        earliest, now, latest = time.perf_counter(), clock.now(), time.perf_counter()
        assert earliest + ahead - 0.05 < now < latest + ahead + 0.05


def test_the_clock_never_goes_back_as_answers_come_in() -> None:
    random.seed(8)
    clock, local, before = ServerClock(), time.perf_counter(), 0.0
    for _ in range(300):
        local += random.uniform(0, 0.4)
        answer(
            clock, 1_700_000_000.5, sent=local, took=random.uniform(0.001, 2), at=random.random()
        )
        now = clock.now()
        assert now >= before
        before = now


def test_a_clock_that_was_wrong_is_corrected_by_the_next_answer() -> None:
    clock, local = ServerClock(), time.perf_counter()
    answer(clock, 1_700_000_000.5 + 3600, sent=local, took=0.01, at=0.5)
    answer(clock, 1_700_000_000.5, sent=local + 1, took=0.01, at=0.5)
    earliest, now, latest = time.perf_counter(), clock.now(), time.perf_counter()
    assert earliest + 1_700_000_000.5 - 1.1 < now < latest + 1_700_000_000.5 + 1.1


@pytest.mark.parametrize("date", [None, "", "yesterday", "Mon, 99 Nov 2026 99:00:00 GMT"])
def test_a_date_that_is_none_is_ignored(date: str | None) -> None:
    clock = ServerClock()
    clock.set(date, sent=0.0, received=0.0)
    assert abs(clock.now() - time.time()) < 60


def test_the_time_of_a_space_is_that_of_its_server(url: str, proxy: AwsProxy) -> None:
    def in_another_age(request: Request) -> Reply:
        reply = request.pass_on()
        headers = {name: value for name, value in reply.headers.items() if name.lower() != "date"}
        return Reply(
            reply.status, {**headers, "Date": formatdate(1_600_000_000.0, usegmt=True)}, reply.body
        )

    proxy.rule = in_another_age
    space = open_space(url)
    assert 1_599_999_990 < space.now() < 1_600_000_100
    space.close()
