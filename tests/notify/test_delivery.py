"""Deliveries: signed, retried in order while the receiver is down, and given up at last."""

from __future__ import annotations

import base64
import hashlib
import hmac
import threading

import pytest

import holdfast
from helpers.receiver import Receiver
from helpers.tasks.needy_agents import register_needy_agents, submit_needy
from holdfast import Store, Task, notify, testing

SECRET = "a secret"


def deliver_for(
    store: Store, clock: testing.FakeClock, hook: notify.Hook, seconds: float, every: float = 10.0
) -> None:
    """Deliver again and again while time passes, as a worker would."""
    for _ in range(int(seconds / every)):
        notify.deliver_due(store, [hook])
        clock.advance(every)


# -- webhooks --------------------------------------------------------------------------------------


def test_a_webhook_is_signed(store: Store, receiver: Receiver) -> None:
    register_needy_agents()
    submit_needy(store, "failed")
    store.run_due()
    notify.deliver_due(store, [notify.Webhook(receiver.url, secret=SECRET)])
    [got] = receiver.all
    told = notify.verify_webhook(got.headers, got.body, SECRET)
    assert (told.task, told.kind, told.id) == ("failed", "failed", got.data["id"])
    headers = {name.lower(): value for name, value in got.headers.items()}
    assert headers["webhook-id"] == told.id
    signed = f"{told.id}.{headers['webhook-timestamp']}.".encode() + got.body
    digest = hmac.new(SECRET.encode(), signed, hashlib.sha256).digest()
    assert headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"


def test_a_wrong_signature_is_refused(store: Store, receiver: Receiver) -> None:
    register_needy_agents()
    submit_needy(store, "failed")
    store.run_due()
    key = "whsec_" + base64.b64encode(b"k" * 32).decode()
    notify.deliver_due(store, [notify.Webhook(receiver.url, secret=key)])
    [got] = receiver.all
    headers = {name.lower(): value for name, value in got.headers.items()}
    assert notify.verify_webhook(headers, got.body, key).task == "failed"
    later = {**headers, "webhook-timestamp": str(int(headers["webhook-timestamp"]) + 1)}
    unsigned = {name: value for name, value in headers.items() if "signature" not in name}
    for given, body, secret in (
        (headers, got.body, SECRET),
        (headers, got.body + b" ", key),
        (later, got.body, key),
        (unsigned, got.body, key),
        ({}, got.body, key),
    ):
        with pytest.raises(ValueError, match="no valid signature"):
            notify.verify_webhook(given, body, secret)
    with testing.fake_clock() as clock:
        clock.advance(400)
        with pytest.raises(ValueError, match="too old"):
            notify.verify_webhook(headers, got.body, key)


def test_a_redirect_is_not_followed(store: Store, receiver: Receiver) -> None:
    other = Receiver()
    try:
        register_needy_agents()
        submit_needy(store, "failed")
        store.run_due()
        for status in (301, 302, 303, 307, 308):
            receiver.status, receiver.headers = status, {"location": other.url}
            notify.deliver_due(store, [notify.Webhook(receiver.url, name=f"hook {status}")])
        assert (receiver.attempts, other.attempts) == (5, 0)
        assert {left.error for left in store.notifications()} == {
            f"HTTP {status}" for status in (301, 302, 303, 307, 308)
        }
    finally:
        other.close()


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://host/x", "hook", "http://", ""])
def test_only_http_urls_are_accepted(url: str) -> None:
    with pytest.raises(ValueError, match="must start with http"):
        notify.Webhook(url)


def test_two_hooks_of_one_name_are_refused(store: Store) -> None:
    with pytest.raises(ValueError, match="different names"):
        holdfast.Worker(store, notify=[notify.Webhook("http://a/"), notify.Webhook("http://a/")])
    with pytest.raises(ValueError, match="kinds must be"):
        notify.Webhook("http://a/", kinds=["question", "answer"])  # type: ignore[list-item]


def test_a_url_and_a_secret_are_not_shown() -> None:
    hook = notify.Webhook("https://host/token-canary", secret="secret-canary")
    assert "canary" not in repr(hook)


# -- a receiver that is down -----------------------------------------------------------------------


@pytest.mark.every_engine
@pytest.mark.long("dynamodb", "s3")
def test_a_receiver_that_was_down_for_an_hour_gets_everything_in_order(
    store: Store, receiver: Receiver, clock: testing.FakeClock
) -> None:
    @holdfast.agent("asking")
    def asking(task: Task) -> None:
        for number in range(3):
            task.ask(f"question-{number}", "?")

    receiver.status = 503
    hook = notify.Webhook(receiver.url)
    notify.deliver_due(store, [hook])
    for name in ("a", "b"):
        store.submit("asking", name)
    for number in range(3):
        store.run_due()
        deliver_for(store, clock, hook, 1210, every=121)
        for name in ("a", "b"):  # somebody who looked at the store himself
            store.answer(name, f"question-{number}", "yes")
    assert receiver.all == []
    assert receiver.attempts > 6
    assert {(left.task, left.status, left.error) for left in store.notifications()} == {
        ("a", "retrying", "HTTP 503"),
        ("b", "retrying", "HTTP 503"),
    }
    receiver.status = 204
    deliver_for(store, clock, hook, 900, every=100)
    for name in ("a", "b"):
        got = [each.data["question"] for each in receiver.all if each.data["task"] == name]
        assert got == ["question-0", "question-1", "question-2"]
    assert list(store.notifications()) == []


def test_a_receiver_that_is_down_is_not_tried_for_each_task(
    store: Store, receiver: Receiver, clock: testing.FakeClock
) -> None:
    register_needy_agents()
    for number in range(20):
        submit_needy(store, "failed", f"t{number}")
    store.run_due()
    receiver.status = 500
    notify.deliver_due(store, [notify.Webhook(receiver.url)])
    assert receiver.attempts == 1
    receiver.status = 200
    clock.advance(1000)
    notify.deliver_due(store, [notify.Webhook(receiver.url)])
    assert len(receiver.all) == 20


def test_a_dead_letter_is_listed_and_delivered_again(
    store: Store, receiver: Receiver, clock: testing.FakeClock
) -> None:
    register_needy_agents()
    hook = notify.Webhook(receiver.url, give_up_after=3600, name="pager")
    notify.deliver_due(store, [hook])
    submit_needy(store, "failed")
    store.run_due()
    receiver.status = 500
    deliver_for(store, clock, hook, 7200, every=301)
    [dead] = store.notifications()
    assert (dead.status, dead.task, dead.kind, dead.hook) == ("dead", "failed", "failed", "pager")
    assert (dead.error, dead.next_at) == ("HTTP 500", None)
    assert dead.attempts > 3
    receiver.status = 200
    deliver_for(store, clock, hook, 3600, every=301)
    assert receiver.all == []  # it was given up
    submit_needy(store, "failed")  # what comes later is told
    store.run_due()
    notify.deliver_due(store, [hook])
    assert len(receiver.all) == 1 and receiver.all[0].data["id"] != dead.id
    assert store.redeliver("unknown") == 0
    assert store.redeliver(dead.id, task="other") == 0
    assert store.redeliver(dead.id) == 1
    notify.deliver_due(store, [hook])
    assert [each.data["id"] for each in receiver.all[1:]] == [dead.id]
    assert list(store.notifications()) == []


def test_a_hook_that_fails_does_not_hold_up_another(
    store: Store, receiver: Receiver, clock: testing.FakeClock
) -> None:
    register_needy_agents()
    told: list[str] = []
    fine = notify.Callback(lambda each: told.append(each.task), name="fine")
    down = notify.Webhook(receiver.url, name="down")
    receiver.status = 500
    for name in ("a", "b"):
        submit_needy(store, "failed", name)
    store.run_due()
    notify.deliver_due(store, [down, fine])
    assert sorted(told) == ["a", "b"]
    receiver.status = 200
    clock.advance(600)
    notify.deliver_due(store, [down, fine])
    assert sorted(told) == ["a", "b"]
    assert sorted(task for task, _ in receiver.told) == ["a", "b"]


def test_several_notifications_of_one_event_survive_a_failure_between_them(
    store: Store, clock: testing.FakeClock
) -> None:
    @holdfast.step(once=True)
    def pay() -> None:
        raise OSError

    @holdfast.agent("careless", max_attempts=1)
    def careless(task: Task) -> None:
        for name in ("first", "second"):
            try:
                task.step(name, pay)
            except holdfast.StepInDoubt:
                pass
        raise ValueError

    store.submit("careless", "t")
    store.run_due()
    told: list[str] = []
    fails = threading.Event()

    def hook(each: notify.Notification) -> None:
        if each.step == "first" and not fails.is_set():
            fails.set()
            raise OSError
        told.append(each.step or each.kind)

    notify.deliver_due(store, [hook])
    assert told == ["failed"]
    clock.advance(60)
    notify.deliver_due(store, [hook])
    assert told == ["failed", "first", "second"]
