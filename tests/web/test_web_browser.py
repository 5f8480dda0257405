"""The dashboard in a real browser: Debian's Chromium, driven by Playwright.

Without a browser these tests fail on continuous integration, and elsewhere say what they left out.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect, sync_playwright

import holdfast
from helpers.web import fill
from holdfast import Store
from holdfast.web import WebOptions, api
from holdfast.web.server import serve_in_background

CHROMIUM = os.environ.get("HOLDFAST_CHROMIUM") or shutil.which("chromium") or ""

expect.set_options(timeout=60_000)

pytestmark = [pytest.mark.slow]

KILLED = """
import os, sys, time, holdfast
with holdfast.open(sys.argv[1]).task("live", goal="Watch me", lease=2) as task:
    for name in ("one", "two", "three"):
        task.step(name, lambda: "ok")
        if name == "two" and len(sys.argv) > 2:
            print("ready", flush=True)
            while True:
                time.sleep(0.1)
    task.finish("done")
"""


class Server:
    """`holdfast serve` in a process of its own."""

    def __init__(self, path: Path, *options: str) -> None:
        command = [
            sys.executable,
            "-m",
            "holdfast.cli",
            "serve",
            str(path),
            "--port",
            "0",
            *options,
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().removeprefix("dashboard: ").strip().rstrip("/")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if not CHROMIUM:
        message = "LEFT OUT: the browser tests need Chromium (apt-get install chromium)"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        browser.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "agents.db"
    with holdfast.open(str(found)) as store:
        fill(store)
    return found


@pytest.fixture
def server(path: Path) -> Iterator[Server]:
    server = Server(path, "--allow-write")
    yield server
    server.stop()


@pytest.fixture
def page(browser: Any, server: Server) -> Iterator[Page]:
    """A page. Errors on its console, dialogs and requests to other machines fail the test."""
    wrong: list[str] = []
    context = browser.new_context()
    page = context.new_page()
    page.on("console", lambda found: wrong.append(found.text) if found.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: (wrong.append(dialog.message), dialog.dismiss()))
    page.on(
        "request",
        lambda found: None if found.url.startswith(server.url) else wrong.append(found.url),
    )
    page.set_default_timeout(60_000)
    yield page
    context.close()
    assert not wrong, wrong


def start_killable(path: Path) -> subprocess.Popen[str]:
    """A process that waits to be killed after two of three steps."""
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path), "stop"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.stdout.close()
    return process


def run_killed(path: Path) -> None:
    """A process that is killed after two of three steps."""
    process = start_killable(path)
    process.send_signal(signal.SIGKILL)
    process.wait()


def choose_item(page: Page, task: str) -> Locator:
    """Go to an item of a list with the key `j`."""
    item = page.locator("[data-item]", has_text=task)
    expect(item).to_be_visible()
    for _ in range(page.locator("[data-item]").count()):
        page.keyboard.press("j")
        if "current" in (item.get_attribute("class") or "").split():
            break
    expect(item).to_be_focused()
    return item


def tab_to(page: Page, selector: str) -> None:
    """Press Tab until the focus is on such an element."""
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
    raise AssertionError(f"no {selector} can be reached with the keyboard")


def test_a_task_that_is_killed_and_resumed_is_seen_without_a_reload(
    page: Page, server: Server, path: Path
) -> None:
    page.goto(f"{server.url}/tasks")
    page.evaluate("window.loadedOnce = true")
    run_killed(path)
    row = page.locator("tr", has_text="live")
    expect(row).to_contain_text("process died")
    page.goto(f"{server.url}/task?id=live")
    page.evaluate("window.loadedOnce = true")
    subprocess.run([sys.executable, "-c", KILLED, str(path)], check=True)
    expect(page.locator("#task-head")).to_contain_text("finished")
    expect(page.locator(".runs")).to_contain_text("killed")
    expect(page.locator("#task-head .saved")).to_contain_text("not spent again")
    assert page.evaluate("window.loadedOnce") is True
    expect(page.locator("[data-timeline] svg")).to_have_attribute(
        "aria-label", "2 runs, 1 of them killed, 3 steps"
    )


def test_the_death_of_a_process_is_seen_though_nothing_is_written(
    page: Page, server: Server, path: Path
) -> None:
    process = start_killable(path)
    page.goto(f"{server.url}/task?id=live")
    page.evaluate("window.loadedOnce = true")
    expect(page.locator(".runs")).to_contain_text("running")
    process.kill()
    process.wait()
    expect(page.locator("#task-head")).to_contain_text("process died")
    expect(page.locator(".runs")).to_contain_text("killed")
    expect(page.locator("[data-timeline] svg")).to_have_attribute(
        "aria-label", "1 run, 1 of them killed, 2 steps"
    )
    assert page.evaluate("window.loadedOnce") is True


def test_a_question_is_answered_and_a_doubt_resolved_by_keyboard_alone(
    page: Page, server: Server, path: Path
) -> None:
    page.goto(server.url)
    expect(page).to_have_title("(3) Inbox · Holdfast")
    for task in ("mail-1", "claim/42"):
        choose_item(page, task)
        tab_to(page, "input[type=radio]")
        page.keyboard.press("Space")
        if task == "mail-1":
            tab_to(page, "textarea")
            page.keyboard.type('"sent"')
        tab_to(page, "button.main")
        page.keyboard.press("Enter")
        expect(page.locator("#notice")).to_contain_text(
            "resolved send" if task == "mail-1" else "answered payout"
        )
    with holdfast.open(str(path)) as store:
        mail, claim = store.get_task("mail-1"), store.get_task("claim/42")
        assert mail is not None and not mail.in_doubt
        assert claim is not None and claim.questions[0].status == "answered"
        assert claim.questions[0].by


def test_the_slider_shows_what_the_model_would_have_read_and_a_fork_runs(
    page: Page, server: Server, path: Path
) -> None:
    page.goto(f"{server.url}/task?id=done-1")
    slider = page.locator("[data-travel]")
    slider.press("Home")
    page.wait_for_url("**version=1*")
    page.goto(f"{server.url}/task?id=done-1&version=4")
    expect(page.locator("#context")).to_contain_text("Continue from step")
    page.get_by_label("Id of the new task").fill("again")
    page.get_by_role("button", name="Fork").click()
    expect(page.locator("#notice")).to_contain_text("forked done-1 to again")
    with holdfast.open(str(path)) as store, store.task("again") as task:
        for item in task.remaining():
            task.step(item, lambda: "again")
        task.finish("forked")
    page.goto(f"{server.url}/task?id=again")
    expect(page.locator("#task-head")).to_contain_text("finished")


def test_a_fork_with_another_result_and_one_with_another_input_run(
    page: Page, server: Server, path: Path
) -> None:
    with holdfast.open(str(path)) as store:
        settle(store, "t", input=30)
    page.goto(f"{server.url}/task?id=t&step=assess")
    page.get_by_text("Fork with another result").click()
    page.get_by_label("Result, as JSON").fill("50")
    page.get_by_label("Id of the fork").fill("other-result")
    page.get_by_role("button", name="Fork after this step").click()
    expect(page.locator("#notice")).to_contain_text("forked t to other-result")
    page.goto(f"{server.url}/task?id=t&version=1")
    page.get_by_text("Change the input").click()
    page.get_by_label("Input, as JSON").fill("9")
    page.get_by_label("Id of the new task").fill("other-input")
    page.get_by_role("button", name="Fork", exact=True).click()
    expect(page.locator("#notice")).to_contain_text("forked t to other-input")
    with holdfast.open(str(path)) as store:
        assert settle(store, "other-result") == "paid 50"
        assert settle(store, "other-input") == "paid 9"
    page.goto(f"{server.url}/task?id=t")
    expect(page.locator("#related")).to_contain_text("other-result")
    with page.expect_download() as download:
        page.goto(f"{server.url}/task?id=done-1")
        page.get_by_role("link", name="as a replay test").click()
    assert download.value.suggested_filename == "done-1-replay.zip"


def settle(store: Store, name: str, **options: Any) -> str:
    with store.task(name, **options) as task:
        amount = task.step("assess", lambda claim: claim, task.input)
        return str(task.finish(task.step("pay", lambda amount: f"paid {amount}", amount)))


def test_a_memory_is_pinned_edited_and_forgotten_and_its_history_shown(
    page: Page, server: Server, path: Path
) -> None:
    with holdfast.open(str(path)) as store:
        for number in range(25):
            store.memory("people").remember(f"Person {number} signs the orders of shop {number}")
    page.goto(f"{server.url}/memory?namespace=people")
    expect(page.locator("[data-item]")).to_have_count(20)
    page.get_by_role("link", name="More").click()
    expect(page.locator("[data-item]")).to_have_count(5)
    item = page.locator("[data-item]", has_text="Person 24 ")
    item.get_by_text("Edit", exact=True).click()
    item.get_by_label("Text").fill("Ann signs the orders of shop 24")
    item.get_by_role("button", name="Replace").click()
    expect(page.locator("#notice")).to_contain_text("superseded")
    page.goto(f"{server.url}/memory?namespace=people&query=who+signs+for+shop+24")
    item = page.locator("[data-item]", has_text="Ann signs")
    expect(item.locator(".why")).to_contain_text("words")
    item.get_by_role("button", name="Pin").click()
    expect(page.locator("#notice")).to_contain_text("pinned")
    item = page.locator("[data-item]", has_text="Ann signs")
    item.get_by_role("link", name="History").click()
    expect(page.locator(".chain")).to_contain_text("Person 24 signs the orders of shop 24")
    page.get_by_text("Forget", exact=True).click()
    page.get_by_role("button", name="Forget it").click()
    expect(page.locator("#notice")).to_contain_text("forgotten")
    with holdfast.open(str(path)) as store:
        assert not store.memory("people").recall("Ann")


def test_a_page_says_that_it_is_no_longer_updated_once_its_session_is_logged_out(
    browser: Any, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_WEB_TOKEN", "ann:s3cret")
    server = Server(path)
    context = browser.new_context()
    try:
        page, other = context.new_page(), context.new_page()
        page.goto(server.url)
        page.get_by_label("Token").fill("s3cret")
        page.get_by_role("button", name="Log in").click()
        expect(page.locator(".who")).to_contain_text("ann")
        other.goto(f"{server.url}/tasks")
        other.get_by_role("button", name="Log out").click()
        expect(other).to_have_title("Log in · Holdfast")
        expect(page.locator("#notice")).to_contain_text("no longer updated")
    finally:
        context.close()
        server.stop()


def test_an_update_of_the_page_leaves_the_keyboard_where_it_was(
    page: Page, server: Server, path: Path
) -> None:
    page.goto(server.url)
    item = choose_item(page, "mail-1")
    with holdfast.open(str(path)) as store:
        store.answer("claim/42", "payout", True, by="bob")
    expect(page).to_have_title("(2) Inbox · Holdfast")
    expect(item).to_be_focused()
    expect(item).to_contain_class("current")


def test_several_tasks_are_cancelled_by_keyboard_alone(
    page: Page, server: Server, path: Path
) -> None:
    page.goto(server.url)
    expect(page.locator("[data-item]")).to_have_count(3)
    for number in range(3):
        page.keyboard.press("j")
        expect(page.locator("[data-item]").nth(number)).to_contain_class("current")
        page.keyboard.press("x")
        expect(page.locator("input[type=checkbox]:checked")).to_have_count(number + 1)
    page.locator("#batch button[value=cancel]").press("Enter")
    page.get_by_role("button", name="Cancel them").press("Enter")
    expect(page.locator("#notice")).to_contain_text("Cancelled 3 tasks")
    with holdfast.open(str(path)) as store:
        assert len(list(store.tasks(status="cancelled"))) == 3


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_has_a_serious_accessibility_issue(
    browser: Any, server: Server, scheme: str
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    context = browser.new_context(color_scheme=scheme, bypass_csp=True)
    page = context.new_page()
    for place in (
        "/", "/confirm?action=cancel&task=mail-1", "/tasks", "/task?id=claim%2F42",
        "/task?id=done-1&version=4&compare=2&step=one",
        "/conversation?id=support-42", "/memory?namespace=support&query=who", "/store",
        "/streams", "/stream?id=orders", "/conversations", "/memory", "/tasks?query=nothing",
    ):  # fmt: skip
        page.goto(server.url + place)
        found = Axe().run(page)
        serious = [
            (each["id"], [node["target"] for node in each["nodes"]][:3])
            for each in found.response["violations"]
            if each["impact"] in ("serious", "critical")
        ]
        assert not serious, (place, serious)
    context.close()


def test_pages_work_on_a_phone(browser: Any, server: Server) -> None:
    context = browser.new_context(viewport={"width": 360, "height": 740})
    page = context.new_page()
    for place in (
        "/", "/tasks", "/task?id=claim%2F42", "/task?id=done-1&version=4&compare=2&step=one",
        "/conversation?id=support-42", "/memory?namespace=support&query=who", "/store", "/streams",
    ):  # fmt: skip
        page.goto(server.url + place)
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 360, (place, wide)
    context.close()


def test_a_long_task_shows_only_the_rows_in_view(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "long.db"
    with holdfast.open(str(path), durability="process") as store:
        _run_long(store)
    server = Server(path)
    try:
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"{server.url}/task?id=long")
        expect(page.locator("[data-timeline] svg")).to_have_count(1)
        assert page.locator("[data-timeline] a").count() < 100
        context.close()
    finally:
        server.stop()


def _run_long(store: Store) -> None:
    with store.task("long") as task:
        for number in range(1000):
            task.step(f"step {number}", lambda: "ok")


def test_a_search_that_the_server_stops_continues_by_itself(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "LOOK_SECONDS", -1.0)  # each part reads one page of tasks
    with holdfast.open(str(tmp_path / "many.db"), durability="process") as store:
        for number in range(1300):
            store.submit("claims", f"claim-{number:04}", goal=f"Settle {number}")
        with serve_in_background(store, WebOptions()) as address:
            context = browser.new_context()
            page = context.new_page()
            for query, found in (("claim-1299", 1), ("settle 12", 111), ("nothing", 0)):
                page.goto(f"{address}tasks?query={query}")
                expect(page.locator("#tasks [data-more]")).to_have_count(0)
                expect(page.locator("#tasks [data-item]")).to_have_count(found)
            expect(page.locator("#tasks")).to_contain_text("No task matches")
            context.close()
