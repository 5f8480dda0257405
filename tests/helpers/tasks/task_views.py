"""Tasks as they may stand, made by hand or generated, for the tests of what is told about them."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import Any, Literal

from hypothesis import strategies as st

from holdfast.tasks.resume_context.context import ResumeContext
from holdfast.tasks.state.view import (
    STATUSES,
    Drift,
    Failure,
    Note,
    PlanItem,
    StepInfo,
    StepProgress,
    StepStatus,
    TaskView,
)

T = datetime(2026, 5, 1, 12, tzinfo=timezone.utc)

FLAG = "⚑"
"""In no word of the library: where it turns up, stored text is."""


def view_of(*steps: StepInfo, **fields: Any) -> TaskView:
    plan = fields.get("plan", [])
    known: dict[str, Any] = {
        "id": "claims-42", "goal": "Draft the checklist", "input": None, "agent": None,
        "status": "pending", "plan": plan,
        "plan_paths": [item if isinstance(item, str) else item["name"] for item in plan],
        "decisions": [], "discoveries": [],
        "result": None, "error": None, "created_at": T, "updated_at": T, "owner": None,
        "lease_until": None,
        "expires_at": None, "version": 9, "runs": 2, "orphaned": [], "drift": [],
    }  # fmt: skip
    return TaskView(steps=list(steps), **{**known, **fields})


def done(path: str, result: Any = None, **fields: Any) -> StepInfo:
    return step(path, "completed", result=result, **fields)


def step(path: str, status: Any, **fields: Any) -> StepInfo:
    scope, _, name = path.rpartition("/")
    return StepInfo(path=path, name=name, parent=scope, status=status, started_at=T, **fields)


def decided(text: str, why: str | None = None) -> Note:
    return Note(text, why, T)


# Whatever could end a quotation, begin a line or move a cursor, and whatever looks like the
# library's own words.
_pieces = st.sampled_from(
    (FLAG, FLAG, "\n", "\r", "\r\n", "\u2028", "\x85", "\v", "> ", '"', '":', "\\", "'", "`", "```",
    "…", "\x1b[2J", "\x00",
     "\u202e", "\U000e0041", "\udc80", "\t", "\xa0", "é", "日本", "🔥", "{", "]",
     "(9 more characters)", "Goal:", "- ",
     "Continue from step 9", "<data>", "</data>")
)  # fmt: skip

texts = st.lists(_pieces | st.characters(), max_size=12).map("".join) | st.integers(0, 3000).map(
    lambda n: f"{FLAG}-" * n
)

names = texts.map(lambda text: (text or "step").replace("/", "%2F"))

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=8,
)

failures = st.builds(Failure, st.sampled_from(("Timeout", "")) | texts, texts)

notes = st.builds(Note, texts, st.none() | texts, st.just(T))

progress = st.builds(
    StepProgress, values, st.none() | st.floats(), st.none() | st.floats(), st.just(T)
)


@st.composite
def steps(draw: st.DrawFn, scopes: list[str]) -> StepInfo:
    scope, name = draw(st.sampled_from(scopes)), draw(names)
    status: StepStatus = draw(
        st.sampled_from(
            ("running", "interrupted", "waiting", "completed", "completed", "failed", "retrying")
        )
    )
    mode: Literal["", "once", "check"] = draw(st.sampled_from(("", "", "once", "check")))
    return StepInfo(
        path=f"{scope}/{name}" if scope else name,
        name=name,
        parent=scope,
        status=status,
        mode=mode,
        in_doubt=bool(mode) and status in ("interrupted", "failed") and draw(st.booleans()),
        started_at=T,
        result=draw(values) if status == "completed" else None,
        how=draw(st.sampled_from(("ran", "checked", "resolved"))),
        error=draw(st.none() | failures) if status != "completed" else None,
        replays=status == "failed" and draw(st.booleans()),
        progress=draw(st.none() | progress),
        code=draw(st.sampled_from(("", "3.11:aa", "3.11:bb", "3.12:aa"))),
        version=draw(st.integers(0, 50)),
    )


@st.composite
def views(draw: st.DrawFn) -> TaskView:
    recorded: dict[str, StepInfo] = {}
    for _ in range(draw(st.integers(0, 12))):
        new = draw(steps(["", "", *list(recorded)[:3]]))
        recorded[new.path] = new
    paths = draw(st.lists(names | _top(recorded), max_size=8))
    fields = st.dictionaries(texts, values, max_size=3)
    plan: list[PlanItem] = [
        {**draw(fields), "name": path} if draw(st.booleans()) else path for path in paths
    ]
    return TaskView(
        id=draw(names),
        goal=draw(st.none() | texts),
        input=draw(values),
        agent=draw(st.none() | names),
        status=draw(st.sampled_from(STATUSES)),
        plan=plan,
        plan_paths=paths,
        steps=list(recorded.values()),
        decisions=draw(st.lists(notes, max_size=5)),
        discoveries=draw(st.lists(notes, max_size=5)),
        result=draw(st.none() | values),
        error=draw(st.none() | failures),
        created_at=T,
        updated_at=T,
        owner=None,
        lease_until=None,
        expires_at=None,
        version=draw(st.integers(1, 99)),
        runs=draw(st.integers(1, 9)),
        orphaned=draw(st.lists(names, max_size=2)),
        drift=draw(st.lists(st.builds(Drift, names, st.just("model"), names, names), max_size=2)),
    )


def _top(recorded: dict[str, StepInfo]) -> st.SearchStrategy[str]:
    return st.sampled_from(
        [path for path, step in recorded.items() if not step.parent] or ["search"]
    )


def own_words(context: ResumeContext) -> str:
    """The text without what it quotes."""
    lines = [line for line in context.text.split("\n") if not line.startswith(">")]
    return "\n".join(re.sub(r'"[^"\n]*"', '""', line) for line in lines)
