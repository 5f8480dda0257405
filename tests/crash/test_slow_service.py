"""A process dies, or is stopped beyond its lease, while its request is under way in a slow service:
the check is not asked before the service can know."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import holdfast

from .crew import program

pytestmark = [pytest.mark.unencrypted("about processes and a service"), pytest.mark.slow]

LONG_ENOUGH, TOO_SHORT = 3.0, 0.0
SHORT_LEASE, LONG_LEASE = 0.4, 3600.0
PATIENCE_SECONDS = 60.0


class MailService:
    """A service on loopback. What it has taken it sends, whoever has died, when it is told to."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.checks: list[bool] = []
        self.under_way, self.go_on = threading.Semaphore(0), threading.Event()
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                service.under_way.release()
                assert service.go_on.wait(PATIENCE_SECONDS)
                service.sent.append(body["key"])
                self.answer("sent")

            def do_GET(self) -> None:
                found = self.path.rpartition("/")[2] in service.sent
                service.checks.append(found)
                self.answer("sent" if found else None)

            def answer(self, value: object) -> None:
                raw = json.dumps(value).encode()
                try:
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(raw)))
                    self.end_headers()
                    self.wfile.write(raw)
                except OSError:
                    pass  # the client is dead

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}/mails"

    def wait_for_request(self) -> None:
        assert self.under_way.acquire(timeout=PATIENCE_SECONDS)

    def close(self) -> None:
        self.go_on.set()
        self._server.shutdown()
        self._server.server_close()  # waits for requests that are under way
        self._thread.join()


@pytest.fixture
def mails() -> Iterator[MailService]:
    service = MailService()
    yield service
    service.close()


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(durable_url: str, mails: MailService) -> Iterator[Start]:
    """Starts mailers, that are gone when the test is over."""
    started: list[subprocess.Popen[str]] = []

    def run(how: str, check_after: float, lease: float) -> subprocess.Popen[str]:
        started.append(
            subprocess.Popen(
                program("mailer", durable_url, mails.address, how, check_after, lease),
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


def check_finished(url: str) -> str:
    """See that the task is finished; how its step was come by."""
    with holdfast.open(url) as store:
        view = store.get_task("t")
        assert view is not None
        assert (view.status, view.result) == ("finished", "sent")
        return view.steps[0].how


def wait_for_takeover(url: str) -> None:
    """Wait until the second run has started."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    with holdfast.open(url) as store:
        while time.monotonic() < deadline:
            view = store.get_task("t")
            if view is not None and view.runs == 2:
                return
            time.sleep(0.02)
    raise AssertionError("the task was not taken over")


def see_one_mail(url: str, mails: MailService, second: subprocess.Popen[str]) -> None:
    wait_for_takeover(url)
    assert mails.checks == []
    mails.go_on.set()
    assert second.wait(PATIENCE_SECONDS) == 0
    assert (len(mails.sent), mails.checks) == (1, [True])
    assert check_finished(url) == "checked"


def see_two_mails(mails: MailService, second: subprocess.Popen[str]) -> None:
    """Without the wait, the check is asked too early: the fault that the tests are about."""
    mails.wait_for_request()
    mails.go_on.set()
    assert second.wait(PATIENCE_SECONDS) == 0
    assert mails.checks == [False]


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    assert process.wait(PATIENCE_SECONDS) == -signal.SIGKILL


@pytest.mark.parametrize("how", ["plain", "async", "worker"])
def test_a_mail_is_sent_once_although_its_process_is_killed_and_started_again_at_once(
    durable_url: str, start: Start, mails: MailService, how: str
) -> None:
    first = start(how, LONG_ENOUGH, LONG_LEASE)
    mails.wait_for_request()
    kill(first)
    see_one_mail(durable_url, mails, start(how, LONG_ENOUGH, LONG_LEASE))


def test_a_check_that_does_not_wait_comes_too_early_after_a_kill(
    start: Start, mails: MailService
) -> None:
    first = start("plain", TOO_SHORT, LONG_LEASE)
    mails.wait_for_request()
    kill(first)
    see_two_mails(mails, start("plain", TOO_SHORT, LONG_LEASE))
    assert len(mails.sent) == 2


def stop(process: subprocess.Popen[str]) -> None:
    """Suspend it, and see that it is."""
    process.send_signal(signal.SIGSTOP)
    assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])


def wake(process: subprocess.Popen[str]) -> None:
    """Wake it, and see that it may not record anything."""
    process.send_signal(signal.SIGCONT)
    assert process.communicate(timeout=PATIENCE_SECONDS)[0] == "LeaseLost\n"


def test_a_mail_is_sent_once_although_its_process_is_stopped_beyond_its_lease(
    durable_url: str, start: Start, mails: MailService
) -> None:
    stopped = start("plain", LONG_ENOUGH, SHORT_LEASE)
    mails.wait_for_request()
    stop(stopped)
    see_one_mail(durable_url, mails, start("plain", LONG_ENOUGH, SHORT_LEASE))
    wake(stopped)
    assert len(mails.sent) == 1


def test_a_check_that_does_not_wait_comes_too_early_after_a_takeover(
    start: Start, mails: MailService
) -> None:
    stopped = start("plain", TOO_SHORT, SHORT_LEASE)
    mails.wait_for_request()
    stop(stopped)
    see_two_mails(mails, start("plain", TOO_SHORT, SHORT_LEASE))
    wake(stopped)
    assert len(mails.sent) == 2
