"""What the pages and the API show beyond lists: arguments, history, growth, replay tests."""

from __future__ import annotations

import html
import io
import json
import re
import subprocess
import sys
import time
import zipfile
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Literal

import httpx
import msgspec
import pytest

import holdfast
from helpers.web import HOSTILE, client, fill
from holdfast import Store
from holdfast.backends import StreamKey
from holdfast.errors import NotFound, StepFailed, Unavailable
from holdfast.web import store_facts, timeline_cache
from holdfast.web.api import Actor, show_two_versions
from holdfast.web.pages import format_duration
from holdfast.web.savings import count_savings
from holdfast.web.store_facts import SizeSample, StoreMonitor, draw_growth
from holdfast.web.timeline import build_timeline
from holdfast.web.timeline_cache import TimelineCache


def get(web: httpx.Client, path: str, **params: Any) -> Any:
    answer = web.get(f"/api/v1/{path}", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


def post(web: httpx.Client, path: str, **body: Any) -> Any:
    answer = web.post(f"/api/v1/{path}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


# -- steps in doubt --------------------------------------------------------------------------------


@pytest.mark.every_engine
def test_the_inbox_shows_the_arguments_the_key_and_what_the_check_found(store: Store) -> None:
    def find(to: str) -> str:
        raise TimeoutError(f"closed {HOSTILE}")

    @holdfast.step(check=find, check_after=0)
    def send(to: str) -> str:
        raise ConnectionError("lost")

    @holdfast.agent(name="letters", max_attempts=1)
    def letters(task: Any) -> Any:
        return task.step("send", send, HOSTILE)

    store.submit("letters", "l-1")
    store.run_due()
    store.retry("l-1")
    store.run_due()
    with client(store) as web:
        [item] = get(web, "inbox")["items"]
        assert item["kind"] == "in doubt" and item["arguments"] == {"to": HOSTILE}
        assert len(item["idempotency_key"]) == 64
        assert item["check"].startswith("it failed with TimeoutError: closed")
        for page in ("/", "/task?id=l-1", "/task?id=l-1&step=send"):
            text = web.get(page).text
            assert item["idempotency_key"] in text and "it failed with TimeoutError" in text
            assert "&lt;script&gt;" in text and "<script>alert" not in text and "\x1b" not in text


def test_a_task_over_its_budget_is_retried_with_a_larger_one(store: Store) -> None:
    @holdfast.step(kind="model")
    def ask(number: int) -> str:
        holdfast.current_step().use(input_tokens=60, output_tokens=0)
        return "ok"

    @holdfast.agent(name="thrifty", max_attempts=1)
    def thrifty(task: Any) -> Any:
        return [task.step(f"ask {number}", ask, number) for number in range(3)]

    store.submit("thrifty", "t", budget=holdfast.Budget(tokens=100))
    store.run_due()
    with client(store, allow_write=True, user="ann") as web:
        [item] = get(web, "inbox")["items"]
        assert (item["kind"], item["budget"]) == ("over budget", {"tokens": 100})
        page = web.get("/").text
        assert 'name="tokens"' in page and 'value="200"' in page
        token = page.partition('name="holdfast-form" content="')[2].partition('"')[0]
        form = {"id": "t", "form_token": token, "next": "/", "tokens": "a lot"}
        refused = web.post("/act/task/retry", data=form)
        assert "Not+done" in refused.headers["location"]
        assert web.post("/act/task/retry", data={**form, "tokens": "200"}).status_code == 303
    store.run_due()
    view = store.get_task("t")
    assert view is not None and view.status == "finished"


# -- tasks -----------------------------------------------------------------------------------------


@pytest.mark.every_engine
def test_tasks_are_filtered_by_error_and_time(store: Store) -> None:
    fill(store)
    with client(store) as web:
        assert [task["id"] for task in get(web, "tasks", error="keyerror")["tasks"]] == ["broken-1"]
        now = datetime.now(timezone.utc)
        for since, count in ((now - timedelta(hours=1), 4), (now + timedelta(hours=1), 0)):
            assert len(get(web, "tasks", since=since.isoformat())["tasks"]) == count
        page = web.get("/tasks?error=keyerror&within=24").text
        assert 'id="row-broken-1"' in page and 'id="row-mail-1"' not in page
        assert web.get("/tasks?within=never").status_code == 422
        assert web.get("/api/v1/tasks?since=2026-01-01T00:00").status_code == 422


def test_a_kept_timeline_is_the_same_as_one_from_the_start(store: Store) -> None:
    cache = TimelineCache(store)
    for run in range(4):
        with store.task("t") as task:
            for number in range(run + 2):
                task.step(f"step {number}", lambda: "ok")
            if run == 2:
                task.decide("go on")
        view = store.get_task("t")
        assert view is not None
        kept, saved = cache.read(view, past=False)
        events = store.task("t").history()
        fresh = build_timeline(events, kept.runs[-1].end)
        assert (kept.steps, kept.marks, kept.runs) == (fresh.steps, fresh.marks, fresh.runs)
        assert saved == count_savings(view, fresh)
        assert (saved.resumes, saved.steps) == (run, sum(n + 1 for n in range(1, run + 1)))
    store.task("t").delete()
    with store.task("t") as task:
        task.step("other", lambda: 1)
    view = store.get_task("t")
    assert view is not None
    assert [step.path for step in cache.read(view, past=False)[0].steps] == ["other"]


def test_two_versions_of_a_task_are_the_same_together_as_each_alone(store: Store) -> None:
    make_versions(store)
    for name in ("t", "again"):
        newest = store.task(name).version()
        actor = Actor(store, None, TimelineCache(store), StoreMonitor(store))
        views = {number: store.task(name).view(version=number) for number in range(1, newest + 1)}
        for one in views:
            for other in views:
                assert show_two_versions(actor, name, one, other) == (views[one], views[other])
            assert show_two_versions(actor, name, one, None) == (views[one], store.get_task(name))
        for wrong in (0, newest + 1):
            with pytest.raises(NotFound):
                show_two_versions(actor, name, 1, wrong)


def make_versions(store: Store) -> None:
    """A task whose step fails until its third run, and a fork that continues from its second."""
    failures = 2

    def write() -> str:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise KeyError("oops")
        return "ok"

    for run in range(3):
        with suppress(StepFailed), store.task("t", goal="Many versions") as task:
            task.make_plan(["read", "write"])
            task.step("read", lambda: {"sum": 41})
            task.decide(f"go on {run}")
            task.step("write", write)
    store.task("t").fork("again", version=8)
    with store.task("again") as task:
        task.step("read", lambda: {"sum": 41})
        task.step("more", lambda: "done")


def test_an_earlier_version_is_shown_without_reading_what_came_later(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store.task("long") as task:
        for number in range(300):
            task.step(f"step {number}", lambda: "ok")
    backend = store._log.backend
    read, seen = backend.read, []

    def watch(stream: StreamKey, **how: Any) -> Any:
        page = read(stream, **how)
        seen.extend(record.version for record in page if stream.kind == "task")
        return page

    monkeypatch.setattr(backend, "read", watch)
    with client(store) as web:
        assert web.get("/task?id=long&version=20&compare=10").status_code == 200
        assert set(seen) == set(range(1, 21))
        assert max(map(seen.count, set(seen))) <= 4, "views, timeline, events and where they meet"
        seen.clear()
        events = get(web, "task/events", id="long", after=100, limit=5)
        assert [event["version"] for event in events["events"]] == [101, 102, 103, 104, 105]
        assert events["after"] == 105 and set(seen) <= set(range(100, 107))
        last = get(web, "task/events", id="long", after=events["after"], limit=1000)
        assert last["events"][-1]["version"] == store.task("long").version()
        assert last["after"] == 0
        assert web.get("/api/v1/task/events?id=long&after=9999").status_code == 404


def test_kept_timelines_are_limited(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline_cache, "MAX_STEPS", 3)
    cache = TimelineCache(store)
    for name in ("a", "b", "c"):
        with store.task(name) as task:
            task.step("one", lambda: 1)
            task.step("two", lambda: 2)
        view = store.get_task(name)
        assert view is not None and len(cache.read(view, past=False)[0].steps) == 2
        assert len(cache._kept) == 1


def test_a_fork_with_changes_is_queued_for_a_worker_with_the_name_of_who_did_it(
    store: Store,
) -> None:
    @holdfast.agent(name="settle")
    def settle(task: Any) -> Any:
        return task.step("pay", lambda amount: f"paid {amount}", task.step("assess", lambda: 30))

    store.run("settle", "t", input={"claim": 1})
    view = store.get_task("t")
    assert view is not None
    with client(store, allow_write=True, user="ann") as web:
        post(
            web, "task/fork", id="t", new_id="u", version=view.steps[0].version,
            results={"assess": 50}, input={"claim": 2}, queue=True,
        )  # fmt: skip
        wrong = {"id": "t", "new_id": "w", "results": {"nothing": 1}}
        assert web.post("/api/v1/task/fork", json=wrong).status_code == 404
    store.run_due()
    forked = store.get_task("u")
    assert forked is not None and (forked.result, forked.input) == ("paid 50", {"claim": 2})
    assert {event.by for event in store.task("u").history()[:2]} == {"ann"}


# -- conversations ---------------------------------------------------------------------------------


def test_the_window_of_an_earlier_version_is_shown(store: Store) -> None:
    chat = store.conversation("c")
    for number in range(4):
        chat.append({"role": "user", "content": f"question {number}"})
        chat.append({"role": "assistant", "content": f"answer {number}"})
    chat.fork("branch", version=2)
    with client(store) as web:
        assert "/conversation?id=branch" in web.get("/conversation?id=c").text
        then = get(web, "conversation/window", id="c", version=4)
        assert [each["content"] for each in then["messages"]] == [
            "question 0", "answer 0", "question 1", "answer 1",
        ]  # fmt: skip
        assert 0 < then["tokens"] < get(web, "conversation/window", id="c")["tokens"]
        page = web.get("/conversation?id=c&version=2").text
        assert "answer 0" in page and "question 1" not in page
        assert web.get("/conversation?id=c&version=99").status_code == 404


# -- memories --------------------------------------------------------------------------------------


@pytest.mark.every_engine
def test_memories_come_in_pages_and_show_what_they_superseded(store: Store) -> None:
    memory = store.memory("people")
    ids = [memory.remember(f"Person {n} signs for shop {n}", source="task/t") for n in range(7)]
    with client(store, allow_write=True, user="ann") as web:
        first = get(web, "memory", namespace="people", limit=5)
        rest = get(web, "memory", namespace="people", limit=5, after=first["after"])
        assert len(first["memories"]) == 5 and len(rest["memories"]) == 2 and not rest["after"]
        edit = {"namespace": "people", "id": ids[3]}
        post(web, "memory/supersede", text=f"Ann signs for shop 3 {HOSTILE}", **edit)
        [hit] = [h for h in memory.all() if h.text.startswith("Ann signs")]
        post(web, "memory/pin", namespace="people", id=hit.id)
        [pinned] = [h for h in memory.all() if h.text.startswith("Ann signs")]
        assert (pinned.importance, pinned.author, pinned.source) == (1.0, "ann", "task/t")
        chain = get(web, "memory/chain", namespace="people", id=pinned.id)
        assert chain["complete"] and chain["memory"]["id"] == pinned.id
        assert [each["text"] for each in chain["earlier"]] == [
            f"Ann signs for shop 3 {HOSTILE}", "Person 3 signs for shop 3",
        ]  # fmt: skip
        assert chain["earlier"][0]["by"] == "ann"
        old = get(web, "memory/chain", namespace="people", id=ids[3])
        assert old["memory"] is None and old["earlier"][0]["text"] == "Person 3 signs for shop 3"
        page = web.get(f"/memory?namespace=people&id={pinned.id}").text
        assert "Person 3 signs" in page and "/task?id=t" in page and "<script>alert" not in page
        post(web, "memory/pin", namespace="people", id=pinned.id, pinned=False)
        assert web.get("/api/v1/memory/chain?namespace=people&id=none").status_code == 404


# -- what pages show -------------------------------------------------------------------------------


class Payout(msgspec.Struct):
    approve: bool
    amount: float
    speed: Literal["normal", "express"]


def test_the_form_of_a_question_is_filled_with_what_the_agent_proposes(store: Store) -> None:
    @holdfast.agent(name="payer")
    def payer(task: Any) -> Any:
        proposed = {"approve": False, "amount": 4100, "speed": "express"}
        return task.ask("payout", "Pay?", returns=Payout, payload=proposed)

    @holdfast.agent(name="writer")
    def writer(task: Any) -> Any:
        return task.ask("name", "Who?", returns=str, payload={"known": "nobody"})

    store.submit("payer", "p-1")
    store.submit("writer", "w-1")
    store.run_due()
    with client(store, allow_write=True) as web:
        page = web.get("/task?id=p-1").text
        assert re.search(r'name="value.amount"[^>]*value="4100"', page)
        assert '<option value="&#34;express&#34;" selected>' in page
        assert not re.search(r'name="value.approve"[^>]*checked', page), "people have to choose"
        assert '<textarea name="value" rows="2"></textarea>' in web.get("/task?id=w-1").text


def test_a_task_page_says_each_thing_once(store: Store) -> None:
    fill(store)
    with client(store, allow_write=True) as web:
        page = web.get("/task?id=broken-1").text
        assert page.count('<div class="failure">') == 1
        assert '<a href="/task?id=broken-1">' not in page, "it is this page"
        assert '<a href="/task?id=broken-1">' in web.get("/").text
        assert page.count('action="/act/task/cancel"') == 1
        assert web.get("/task?id=broken-1&version=3").text.count('<div class="failure">') == 0


def test_a_task_that_waits_for_nobody_can_be_cancelled_until_it_ends(store: Store) -> None:
    store.submit("elsewhere", "queued", goal="Wait for a worker")
    with client(store) as web:
        assert "/act/task/cancel" not in web.get("/task?id=queued").text, "it is read-only"
    with client(store, allow_write=True, user="ann") as web:
        page = web.get("/task?id=queued").text
        assert "No process has run it yet" in page and 'action="/act/task/cancel"' in page
        assert "/act/task/cancel" not in web.get("/task?id=queued&version=1").text
        token = re.findall(r'name="holdfast-form" content="([^"]*)"', page)[0]
        form = {"form_token": token, "id": "queued", "reason": "a mistake"}
        assert web.post("/act/task/cancel", data=form).status_code == 303
        page = web.get("/task?id=queued").text
        assert "by ann: a mistake" in page and "/act/task/cancel" not in page


def test_a_plan_says_how_far_each_step_is(store: Store) -> None:
    with suppress(StepFailed), store.task("t") as task:
        task.make_plan(["one", "two", "three"])
        task.step("one", lambda: 1)
        task.step("two", lambda: 1 / 0)
    with client(store) as web:
        marks = re.findall(r'<span class="mark">([^<]*)</span>', web.get("/task?id=t").text)
        assert marks == ["done", "retrying", "to do"]


def test_a_step_that_was_added_is_compared_without_its_inner_facts(store: Store) -> None:
    with store.task("t") as task:
        task.step("one", lambda: {"code": "kept", "name": "kept too"})
    with client(store) as web:
        newest = store.task("t").version()
        changes = get(web, "task/diff", id="t", before=1, after=newest)
        [added] = [change["after"] for change in changes if change["path"] == "steps.one"]
        assert {"code", "path", "version"} <= added.keys(), "the API returns all of it"
        page = web.get(f"/task?id=t&version={newest}&compare=1").text
        shown = re.findall(
            r'<code>steps.one</code></td><td></td><td><pre class="value">([^<]*)', page
        )
        value = json.loads(html.unescape(shown[0]))
        assert value.keys() == {"status", "started_at", "ended_at", "result"}
        assert value["result"] == {"code": "kept", "name": "kept too"}


def test_tasks_have_to_be_chosen_before_an_action_on_several(store: Store) -> None:
    with client(store, allow_write=True) as web:
        refused = web.get("/confirm?action=retry")
        assert refused.status_code == 422 and "choose at least one" in refused.text


def test_tool_calls_are_shown_by_name(store: Store) -> None:
    call = {"id": "1", "type": "function", "function": {"name": f"track{HOSTILE}"}}
    store.conversation("c").append(
        {"role": "assistant", "content": None, "tool_calls": [call, {"id": "2"}, 7]}
    )
    with client(store) as web:
        page = web.get("/conversation?id=c").text
        assert "3 tool calls: track&lt;script" in page and "<script>alert" not in page


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0, "under 1 ms"), (0.0004, "under 1 ms"), (0.012, "12 ms"), (0.44, "0.4 s"),
        (9.96, "10.0 s"), (59.4, "59 s"), (200, "3 min 20 s"), (7500, "2 h 5 min"),
        (180_000, "2 d 2 h"),
    ],
)  # fmt: skip
def test_durations_are_shown_as_people_write_them(seconds: float, shown: str) -> None:
    assert format_duration(seconds) == shown


# -- the store -------------------------------------------------------------------------------------


def test_the_store_page_shows_growth_workers_and_deletions(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_facts, "SAMPLE_SECONDS", 0.0)
    fill(store)
    store.task("broken-1").delete(reason=f"no longer needed {HOSTILE}", by="ann")
    with client(store) as web:
        web.get("/")
        page = web.get("/store").text
        facts = get(web, "store")
        assert "no longer needed" in page and "<script>alert" not in page
        assert "No worker is running" in page
        assert facts["deletions"][0]["id"] == "broken-1"
        if facts["health"]["sizes"]:
            assert '<path class="line"' in page and len(facts["growth"]) >= 2


def test_the_store_page_shows_the_lease_of_a_task_that_runs(store: Store) -> None:
    with store.task("t<i>"), client(store) as web:
        page = web.get("/store")
        assert page.status_code == 200
        assert re.search(r"Oldest lease</dt><dd>t&lt;i&gt;, process \d+ on ", page.text)


def test_the_growth_curve_starts_left_and_ends_at_its_height() -> None:
    start = datetime(2026, 11, 18, tzinfo=timezone.utc)
    samples = [SizeSample(start + timedelta(minutes=n), 1000 * n) for n in range(3)]
    assert draw_growth(samples, 640, 120) == ["0.0,120.0", "320.0,64.0", "640.0,8.0"]
    assert draw_growth(samples[:1]) == []


def test_the_store_is_verified_on_demand(store: Store) -> None:
    fill(store)
    with client(store, allow_write=True, user="ann") as web:
        assert get(web, "store")["verification"]["status"] == "never"
        assert post(web, "store/verify") == {"done": "verifying"}
        while (found := get(web, "store")["verification"])["status"] == "running":
            time.sleep(0.05)
        assert (found["status"], found["by"], found["problems"]) == ("ok", "ann", [])
        assert found["records"] > 10
        assert "no problem" in web.get("/store").text
    with client(store) as web:
        assert web.post("/api/v1/store/verify", json={}).status_code == 403


def test_a_verification_that_cannot_be_done_says_so(tmp_path: Path) -> None:
    store = holdfast.open(str(tmp_path / "a.db"))
    monitor = StoreMonitor(store)
    store.close()
    monitor._verify("ann")
    assert monitor._verification.status == "failed" and monitor._verification.problems


def test_a_store_that_is_unreachable_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> Any:
        raise Unavailable("the database is unreachable")

    with holdfast.open("memory://", timeout=0.2) as store, client(store) as web:
        backend = store._log.backend
        monkeypatch.setattr(backend, "describe", refuse)
        assert web.get("/tasks").status_code == 200, "only the growth is not noted"
        monkeypatch.setattr(backend, "heads", refuse)
        page = web.get("/tasks")
        assert page.status_code == 503 and "unreachable" in page.text


# -- replay tests ----------------------------------------------------------------------------------

APP = """
import holdfast

@holdfast.agent("claims")
def claims(task):
    amount = task.step("assess", lambda claim: {"large": "x" * 100_000, "sum": 30}, task.input)
    task.attach("letter.txt", b"Dear Ann")
    return task.step("pay", lambda sum: f"paid {sum}", amount["sum"])
"""


@pytest.mark.parametrize("tenant", ["default", "acme"])
def test_a_replay_test_runs_as_it_is_downloaded(tmp_path: Path, tenant: str) -> None:
    (tmp_path / "app.py").write_text(APP)
    space: dict[str, Any] = {}
    exec(compile(APP, "app.py", "exec"), space)
    name = "claim 42\n\"\"\"; raise SystemExit('''"
    with holdfast.open(str(tmp_path / "agents.db")) as whole:
        store = whole.for_tenant(tenant)
        store.run("claims", name, input="C-42")
        store.run("claims", "other", input="C-1")
        with client(store) as web:
            packed = web.get("/replay-test", params={"id": name})
            assert packed.headers["content-type"] == "application/zip"
            assert web.get("/replay-test?id=nobody").status_code == 404
    with zipfile.ZipFile(io.BytesIO(packed.content)) as archive:
        archive.extractall(tmp_path)
        [test, file] = archive.namelist()
    with holdfast.open(str(tmp_path / file)) as copy:
        assert [task.id for task in copy.for_tenant(tenant).tasks()] == [name]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (tmp_path / "app.py").write_text(APP.replace('"pay"', '"refund"'))
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and "diverges in" in done.stdout


def test_a_task_without_an_agent_or_an_encrypted_one_is_no_replay_test(tmp_path: Path) -> None:
    with holdfast.open("memory://") as store:
        with store.task("t") as task:
            task.finish()
        with client(store) as web:
            page = web.get("/replay-test?id=t")
            assert page.status_code == 422 and "no agent" in page.text
            assert "replay test" not in web.get("/task?id=t").text
    with holdfast.open(str(tmp_path / "a.db"), key=holdfast.keys.generate()) as store:
        with store.task("t", agent="a") as task:
            task.finish()
        with client(store) as web:
            page = web.get("/replay-test?id=t")
            assert page.status_code == 422 and "encrypted" in page.text


# -- what the model would read ---------------------------------------------------------------------


def test_the_context_of_an_earlier_version_has_the_memories_of_that_time_and_why(
    store: Store,
) -> None:
    memory = store.memory("claims")
    memory.remember("Water damage is covered up to 5000 euros", author="person")
    with store.task("t", goal="Settle the water damage claim", agent="claims") as task:
        task.step("read", lambda: "ok")
    version = store.task("t").version()
    with store.task("t") as task:
        task.step("read", lambda: "ok")
        task.step("assess", lambda: "ok")
    memory.remember("Water damage by floods is not covered", author="person")
    with client(store) as web:
        then = get(web, "task/context", id="t", version=version)
        now = get(web, "task/context", id="t")
        assert [hit["text"] for hit in then["memories"]] == [
            "Water damage is covered up to 5000 euros"
        ]
        assert then["memories"][0]["why"]["words"] > 0
        assert len(now["memories"]) == 2 and "floods" in now["text"]
        assert "floods" not in then["text"] and "5000 euros" in then["text"]
        page = web.get(f"/task?id=t&version={version}").text
        assert "Memories in it, and why" in page and "floods" not in page


def test_the_names_of_a_memory_lead_to_what_mentions_them(store: Store) -> None:
    store.memory("people").remember(f"Then Ann signs for {HOSTILE} and Acme")
    store.memory("people").remember("Bo signs for nobody")
    store.memory("others").remember("Cem met Xenia")
    with client(store) as web:
        listed = get(web, "memory/entities", namespace="people")["entities"]
        assert {"Ann", "Acme", "Bo"} <= {one["name"] for one in listed}
        assert "Xenia" not in {one["name"] for one in listed}
        [found] = get(web, "memory", namespace="people", about="Acme")["memories"]
        assert found["text"].startswith("Then Ann signs")
        assert get(web, "memory", namespace="people", about="Xenia")["memories"] == []
        page = web.get("/memory?namespace=people&view=names").text
        assert "about=Acme" in page
        assert HOSTILE not in page
        assert "No memory mentions" in web.get("/memory?namespace=people&about=Xenia").text
