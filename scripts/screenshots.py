"""Make the pictures of the dashboard in docs/images: python scripts/screenshots.py.

Chromium (HOLDFAST_CHROMIUM, or `chromium` on the PATH) shows a store whose contents are the same
each time. An agent in a process of its own is killed, so that the timeline has something to show.
`dashboard-demo.png` is animated: it shows `holdfast demo --serve` while its agent is killed.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import sync_playwright

import holdfast
from holdfast import Store, Usage
from holdfast.web import WebOptions
from holdfast.web.server import serve_in_background

IMAGES: Final = Path(__file__).parent.parent / "docs" / "images"

WIDE: Final = {"width": 1100, "height": 760}
PHONE: Final = {"width": 390, "height": 760}
FILM: Final = {"width": 820, "height": 640}
MAX_FRAMES: Final = 40

PICTURES: Final[tuple[tuple[str, str, Any, dict[str, int]], ...]] = (
    ("dashboard-inbox", "/", "light", WIDE),
    ("dashboard-task", "/task?id=claim-42", "light", WIDE),
    ("dashboard-task-dark", "/task?id=claim-42", "dark", WIDE),
    ("dashboard-memory", "/memory?namespace=claims&query=is+water+damage+covered", "light", WIDE),
    ("dashboard-phone", "/", "light", PHONE),
)

STEPS: Final = ("read the claim", "read the receipts", "compare with the policy", "pay")


def main() -> None:
    if len(sys.argv) == 3:
        work(sys.argv[1], sys.argv[2])
        return
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "agents.db")
        for last in ("read the receipts", "compare with the policy", ""):
            run_and_kill(path, last)
        with holdfast.open(path) as store:
            fill(store)
            with serve_in_background(store, WebOptions(allow_write=True, user="ann")) as address:
                take_pictures(address)
    record_demo()


def run_and_kill(path: str, last: str) -> None:
    """Run the agent in a process that is killed after its step `last`."""
    command = [sys.executable, __file__, path, last]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603
    if process.stdout is not None and last and process.stdout.readline():
        process.send_signal(signal.SIGKILL)
    process.communicate()


def work(path: str, last: str) -> None:
    """Settle the claim, and wait to be killed after the step `last`."""
    with holdfast.open(path) as store:
        goal = "Settle claim 42: pay what the policy covers, and tell the customer."
        with store.task("claim-42", goal=goal, agent="claims", lease=2) as task:
            task.make_plan(list(STEPS))
            for number, name in enumerate(STEPS):
                task.step(name, ask_model, number)
                if name == last:
                    print("done", flush=True)
                    signal.pause()
            task.decide("pay 1,900 EUR", why="water damage is covered, furniture is not")
            task.finish({"paid": 1900})


def ask_model(number: int) -> dict[str, int]:
    usage = Usage(calls=1, input_tokens=4000 + number, output_tokens=120, cost=0.02)
    holdfast.current_step().set_usage(usage)
    time.sleep(0.4 + number / 5)  # so that the bars of the timeline have a length
    return {"covered": 1900 + number}


def fill(store: Store) -> None:
    """Tasks that wait for a person in each way."""

    @holdfast.agent(name="payouts")
    def payouts(task: Any) -> Any:
        quote = {"to": "Ann Meyer", "amount": 1900, "account": "DE02 1203 0000 0000 2020 51"}
        return task.ask("payout", "Pay this amount to the customer?", quote, returns=bool)

    @holdfast.agent(name="letters", max_attempts=1)
    def letters(task: Any) -> Any:
        letter = "Dear Ann Meyer, we have paid 1,900 EUR to your account."
        return task.step("mail the customer", send_letter, "ann@example.com", letter)

    @holdfast.agent(name="reports", max_attempts=1)
    def reports(task: Any) -> None:
        raise ValueError("the policy is missing")

    store.submit(payouts, "payout-7", goal="Pay claim 7")
    store.submit(letters, "letter-9", goal="Tell the customer of claim 9")
    store.submit(reports, "report-3", goal="Write the monthly report")
    logging.getLogger("holdfast").setLevel(logging.CRITICAL)  # two of them are to fail
    store.run_due()
    memory = store.memory("claims")
    memory.remember("Damage by water is covered up to 5,000 EUR, furniture is not", source="policy")
    memory.remember("Ann Meyer prefers to be called before noon", author="person")
    old = memory.remember("The repair shop of claim 7 charges 80 EUR an hour", author="tool")
    memory.supersede(old, "The repair shop of claim 7 charges 95 EUR an hour", author="person")


@holdfast.step(once=True)
def send_letter(to: str, text: str) -> str:
    raise ConnectionError("the mail server closed the connection")


def take_pictures(address: str) -> None:
    with open_browser() as browser:
        for name, place, scheme, size in PICTURES:
            context = browser.new_context(
                color_scheme=scheme,
                viewport={"width": size["width"], "height": size["height"]},
                timezone_id="UTC",
                locale="en-GB",
            )
            page = context.new_page()
            page.goto(address.rstrip("/") + place)
            if place.startswith("/task"):
                page.locator("[data-timeline] svg").wait_for()
            page.screenshot(path=IMAGES / f"{name}.png")
            context.close()


@contextmanager
def open_browser() -> Iterator[Any]:
    chromium = os.environ.get("HOLDFAST_CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        browser.close()


# -- the recording ---------------------------------------------------------------------------------

CHANGED: Final = """
() => new Promise((changed) => {
  const watch = new MutationObserver(() => { watch.disconnect(); setTimeout(changed, 150); });
  watch.observe(document.getElementById("main"), { childList: true, subtree: true });
  setTimeout(changed, 2000);
})
"""


def record_demo() -> None:
    """Show the demo on the dashboard, and take a picture whenever the page changes."""
    command = [sys.executable, "-m", "holdfast.cli", "demo", "--serve", "--kills", "3", "--seed"]
    demo = subprocess.Popen([*command, "7"], stdout=subprocess.PIPE, text=True)  # noqa: S603
    assert demo.stdout is not None
    try:
        address = demo.stdout.readline().removeprefix("dashboard: ").strip()
        with open_browser() as browser:
            page = browser.new_page(
                viewport={"width": FILM["width"], "height": FILM["height"]},
                timezone_id="UTC",
                locale="en-GB",
            )
            page.goto(address)
            frames: list[bytes] = []
            while len(frames) < MAX_FRAMES:
                frame = page.screenshot(animations="disabled")
                if not frames or frame != frames[-1]:
                    frames.append(frame)
                if page.locator("#task-head .status.finished").count() and len(frames) > 2:
                    break
                page.evaluate(CHANGED)
            page.evaluate(CHANGED)
            frames.append(page.screenshot(animations="disabled"))
    finally:
        demo.terminate()
        demo.communicate()
    (IMAGES / "dashboard-demo.png").write_bytes(join_frames(frames))


def join_frames(frames: Sequence[bytes]) -> bytes:
    """Return an animated PNG of PNG pictures of the same size: 0.5 seconds each, the last 4."""
    chunks = [list(_read_chunks(frame)) for frame in frames]
    [head] = [data for name, data in chunks[0] if name == b"IHDR"]
    width, height = struct.unpack(">II", head[:8])
    out = [b"\x89PNG\r\n\x1a\n", _chunk(b"IHDR", head)]
    out.append(_chunk(b"acTL", struct.pack(">II", len(frames), 0)))
    number = 0
    for place, frame in enumerate(chunks):
        seconds = 4.0 if place == len(chunks) - 1 else 0.5
        control = (number, width, height, 0, 0, int(seconds * 1000), 1000, 0, 0)
        out.append(_chunk(b"fcTL", struct.pack(">IIIIIHHBB", *control)))
        number += 1
        pixels = b"".join(data for name, data in frame if name == b"IDAT")
        if place == 0:
            out.append(_chunk(b"IDAT", pixels))
        else:
            out.append(_chunk(b"fdAT", struct.pack(">I", number) + pixels))
            number += 1
    return b"".join([*out, _chunk(b"IEND", b"")])


def _read_chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = 8
    while at < len(png):
        (size,) = struct.unpack(">I", png[at : at + 4])
        yield png[at + 4 : at + 8], png[at + 8 : at + 8 + size]
        at += size + 12


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


if __name__ == "__main__":
    main()
