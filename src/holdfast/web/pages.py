"""The pages, rendered by the server. Every page is complete without JavaScript.

A form posts to `/act/<endpoint>`, which runs the same endpoint as the API and returns to the page.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, get_args
from urllib.parse import parse_qsl, quote, urlencode

import jinja2
import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from .. import Budget, HoldfastError, StepInfo, TaskView
from ..cli.text import format_size, printable_lines
from ..errors import BudgetExceeded, NotFound, Unavailable, format_owner
from ..log import operations as ops
from ..log.ids import stream_key
from ..log.operations.forks import list_forks
from ..types import ConversationView
from . import api
from .api import to_plain
from .auth import COOKIE, SESSION_SECONDS, Guard, is_same, local_path
from .diff import Change
from .forms import FormError, is_fillable, make_fields, read_form
from .inbox import find_items
from .options import WebOptions
from .replay_test import make_replay_test
from .store_facts import draw_growth

TEMPLATES: Final = Path(__file__).parent / "templates"
STATUSES: Final = (
    "pending",
    "running",
    "suspended",
    "retrying",
    "failed",
    "stuck",
    "finished",
    "cancelled",
)
Hours = Annotated[int, msgspec.Meta(ge=1, le=87_600)]
SHOWN_STEPS: Final = 200
SHOWN_EVENTS: Final = 100
MAX_FORKS_READ: Final = 2000
SHOWN_CHARACTERS: Final = 20_000
"""How much of one value a page shows. The API returns all of it."""


class Pages:
    """Renders the pages of one store."""

    def __init__(
        self, options: WebOptions, guard: Guard, make_actor: Callable[[Request], api.Actor]
    ) -> None:
        self._options, self._guard, self._actor = options, guard, make_actor
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(TEMPLATES),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        filters: dict[str, Callable[..., Any]] = {
            "pretty": show_value,
            "text": show_text,
            "size": format_size,
            "iso": lambda at: at.isoformat(timespec="milliseconds"),
            "utc": lambda at: f"{at.isoformat(' ')[:19]} UTC",
            "duration": format_duration,
            "brief": show_brief,
            "called": name_called_tools,
            "owner": format_owner,
            "shown": shorten_change,
        }
        self._templates.filters |= filters
        self._templates.tests |= {"flat": is_flat, "fillable": is_fillable}
        self._templates.globals |= {
            "url": make_url,
            "fields": make_fields,
            "to_json": json.dumps,
            "statuses": STATUSES,
            "kinds": get_args(api.StreamKind),
        }

    def routes(self) -> list[Route]:
        pages: dict[str, Callable[[api.Actor, QueryParams], dict[str, Any]]] = {
            "/": self._inbox,
            "/confirm": self._confirm,
            "/tasks": self._tasks,
            "/task": self._task,
            "/conversations": self._conversations,
            "/conversation": self._conversation,
            "/memory": self._memory,
            "/streams": self._streams,
            "/stream": self._stream,
            "/store": self._show_store,
        }
        sections = {"/task": "/tasks", "/conversation": "/conversations", "/stream": "/streams"}
        self._sections = {path: sections.get(path, path) for path in pages}
        return [
            *(Route(path, partial(self._serve, path, make)) for path, make in pages.items()),
            Route("/artifact", self._download_artifact),
            Route("/history", self._download_history),
            Route("/replay-test", self._download_replay_test),
            Route("/act/{endpoint:path}", self._act, methods=["POST"]),
            Route("/login", self._login, methods=["GET", "POST"]),
            Route("/logout", self._logout, methods=["POST"]),
        ]

    # -- pages -----------------------------------------------------------------------------------

    def _inbox(self, actor: api.Actor, query: QueryParams) -> dict[str, Any]:
        page = api.list_inbox(actor, api.InboxParams(after=query.get("after", "")))
        return {"page": page, "live": "tasks", "title": "Inbox"}

    def _confirm(self, actor: api.Actor, query: QueryParams) -> dict[str, Any]:
        """Ask whether to act on the tasks that were chosen in the inbox."""
        given = {"action": query.get("action", ""), "ids": query.getlist("task")}
        if not given["ids"]:
            raise ValueError("no task is chosen; choose at least one in the inbox")
        params = msgspec.convert(given, api.BatchParams)
        return {"params": params, "title": f"{params.action.title()} tasks"}

    def _tasks(self, actor: api.Actor, query: QueryParams) -> dict[str, Any]:
        given = _pick(query, "status", "agent", "query", "error", "after")
        params = msgspec.convert(given, api.TasksParams, strict=False)
        within = query.get("within", "")
        if within:
            hours = msgspec.convert(within, Hours, strict=False)
            params.since = datetime.now(timezone.utc) - timedelta(hours=hours)
        page = api.list_tasks(actor, params)
        return {
            "page": page,
            "partial": bool(page.after) and len(page.tasks) < params.limit,
            "params": params,
            "within": within,
            "filtered": bool(given or within),
            "live": "tasks",
            "title": "Tasks",
        }

    def _task(self, actor: api.Actor, query: QueryParams) -> dict[str, Any]:
        params = msgspec.convert(_pick(query, "id", "version"), api.TaskParams, strict=False)
        past = params.version is not None
        compared, changes = query.get("compare"), None
        if compared:
            number = msgspec.convert(compared, api.Version, strict=False)
            before, view = api.show_two_versions(actor, params.id, number, params.version)
            changes = api.diff_views(before, view)
        else:
            view = api.show_task(actor, params)
        budget = _pick(query, "id", "version", "max_tokens")
        asked = msgspec.convert(budget, api.ContextParams, strict=False)
        try:
            context = api.make_context(actor, view, asked)
        except BudgetExceeded:
            context = None
        shown = api.TimelineAndSavings(*actor.timelines.read(view, past=past))
        step = _find_step(view, query.get("step"))
        version = view.version if past else None
        return {
            "view": view,
            "statuses_of": defaultdict(str, {step.path: step.status for step in view.steps}),
            "steps": view.steps if query.get("steps") == "all" else view.steps[-SHOWN_STEPS:],
            "step_url": make_url("/task", id=params.id, version=version) + "&step=",
            "version_url": make_url("/task", id=params.id) + "&version=",
            "children": list(view.children.items()),
            "forks": [mark.name for mark in shown.timeline.marks if mark.what == "forked"],
            "model_input": _read_model_input(actor, view, step),
            "newest": actor.store.task(params.id).version() if past else view.version,
            "shown": shown,
            "context": context,
            "budget": asked.max_tokens,
            "changes": changes,
            "compared": compared,
            "past": past,
            "items": [] if past else list(find_items(view)),
            "step": step,
            "events": _read_events(actor, view, query.get("before", "")),
            "live": "task",
            "live_id": params.id,
            "title": f"Task {params.id}",
        }

    def _conversations(self, actor: api.Actor, query: QueryParams) -> dict[str, Any]:
        found = api.list_conversations(actor, api.PageParams(query.get("after", "")))
        return {"page": found, "title": "Conversations"}

    def _conversation(self, actor: api.Actor, query: QueryParams) -> dict[str, Any]:
        given = _pick(query, "id", "max_tokens", "version")
        params = msgspec.convert(given, api.WindowParams, strict=False)
        name, budget, version = params.id, params.max_tokens, params.version
        facts = api.show_conversation(actor, api.ConversationParams(name))
        if version is not None:
            facts.messages[:] = [each for each in facts.messages if each.version <= version]
        try:
            window = api.show_window(actor, params)
        except NotFound:
            raise
        except HoldfastError:  # the newest exchange alone is larger
            window = None
        return {
            "facts": facts,
            "window": window,
            "budget": budget,
            "past": version is not None,
            "version": version or facts.conversation.version,
            "forks": _list_forks(actor, facts.conversation),
            "live": "conversation",
            "live_id": name,
            "title": f"Conversation {name}",
        }

    def _memory(self, actor: api.Actor, query: QueryParams) -> dict[str, Any]:
        names = api.list_namespaces(actor, api.PageParams(query.get("names_after", "")))
        namespace, asked = query.get("namespace") or "", query.get("query") or ""
        about = "" if asked else query.get("about") or ""
        found = chain = entities = None
        if namespace and query.get("id"):
            chain = api.show_memory(actor, api.ForgetParams(namespace, query["id"]))
        elif namespace and query.get("view") == "names":
            entities = api.list_entities(actor, api.EntitiesParams(namespace)).entities
        elif namespace:
            given = _pick(query, "namespace", "query", "about", "after")
            params = msgspec.convert(given, api.RecallParams, strict=False)
            found = api.recall_memories(actor, params)
        if namespace and namespace not in names.names:
            names.names.insert(0, namespace)
        title = f"Memory {namespace}" if namespace else "Memory"
        return {
            "names": names,
            "namespace": namespace,
            "query": asked,
            "about_name": about,
            "entities": entities,
            "found": found,
            "chain": chain,
            "back": make_url("/memory", namespace=namespace, query=asked, about=about),
            "title": title,
        }

    def _streams(self, actor: api.Actor, query: QueryParams) -> dict[str, Any]:
        params = msgspec.convert(_pick(query, "kind", "after"), api.StreamsParams, strict=False)
        return {"page": api.list_streams(actor, params), "kind": params.kind, "title": "Streams"}

    def _stream(self, actor: api.Actor, query: QueryParams) -> dict[str, Any]:
        name = _need(query, "id")
        facts = api.show_stream(actor, api.StreamParams(name))
        if not facts.version:
            raise NotFound(f"there is no stream {name!r}")
        return {"facts": facts, "id": name, "title": f"Stream {name}"}

    def _show_store(self, actor: api.Actor, query: QueryParams) -> dict[str, Any]:
        facts = api.show_store(actor, api.Nothing())
        return {"facts": facts, "points": draw_growth(facts.growth), "title": "Store"}

    async def _serve(
        self, path: str, make: Callable[[api.Actor, QueryParams], dict[str, Any]], request: Request
    ) -> Response:
        actor = self._actor(request)
        try:
            facts = await run_in_threadpool(make, actor, request.query_params)
            await run_in_threadpool(actor.monitor.sample)
        except NotFound as error:
            return self._render(request, "problem.html", 404, message=str(error), title="Not found")
        except (HoldfastError, ValueError, TypeError) as error:
            status = 503 if isinstance(error, Unavailable) else 422
            return self._render(
                request, "problem.html", status, message=str(error), title="Problem"
            )
        name = "inbox" if path == "/" else path[1:]
        return self._render(request, f"{name}.html", 200, **facts)

    def _render(self, request: Request, template: str, status: int, **facts: Any) -> Response:
        user, is_known = request.scope.get("holdfast_user"), "holdfast_user" in request.scope
        html = self._templates.get_template(template).render(
            {
                "now": datetime.now(timezone.utc),
                "writable": self._options.allow_write,
                "user": user,
                "form_token": self._guard.form_token(user) if is_known else "",
                "here": _path_of(request),
                "section": self._sections.get(request.url.path, ""),
                "notice": self._read_notice(request.query_params.get("notice", "")),
                "can_log_out": self._guard.needs_login,
                "tenant": self._actor(request).store.tenant if is_known else "default",
                "live": None,
                "live_id": "",
                **facts,
            }
        )
        return HTMLResponse(html, status)

    # -- downloads -------------------------------------------------------------------------------

    async def _download_artifact(self, request: Request) -> Response:
        query = request.query_params
        try:
            task, name = _need(query, "id"), _need(query, "name")
            found = await run_in_threadpool(self._actor(request).store.artifact, task, name)
        except (HoldfastError, ValueError) as error:
            return self._render(request, "problem.html", 404, message=str(error), title="Not found")
        return StreamingResponse(
            found.chunks(), media_type="application/octet-stream", headers=_attachment(name)
        )

    async def _download_history(self, request: Request) -> Response:
        """Send all events of a task, one JSON object per line."""
        query = request.query_params
        actor = self._actor(request)
        try:
            params = msgspec.convert(_pick(query, "id"), api.TaskParams, strict=False)
            await run_in_threadpool(api.show_task, actor, params)
            events = await run_in_threadpool(actor.store.task(params.id).history)
        except (HoldfastError, ValueError) as error:
            return self._render(request, "problem.html", 404, message=str(error), title="Not found")
        encoder = msgspec.json.Encoder(enc_hook=to_plain)
        lines = encoder.encode_lines(list(map(api.event_facts, events)))
        headers = _attachment(f"{params.id}.jsonl")
        return Response(lines, media_type="application/octet-stream", headers=headers)

    async def _download_replay_test(self, request: Request) -> Response:
        """Send a zip file with a test that replays a task, and the store that it reads."""
        actor = self._actor(request)
        try:
            given = _pick(request.query_params, "id")
            params = msgspec.convert(given, api.TaskParams, strict=False)
            view = await run_in_threadpool(api.show_task, actor, params)
            packed = await run_in_threadpool(make_replay_test, actor.store, view)
        except NotFound as error:
            return self._render(request, "problem.html", 404, message=str(error), title="Not found")
        except (HoldfastError, ValueError) as error:
            return self._render(request, "problem.html", 422, message=str(error), title="Problem")
        headers = _attachment(f"{params.id}-replay.zip")
        return Response(packed, media_type="application/zip", headers=headers)

    # -- actions ---------------------------------------------------------------------------------

    async def _act(self, request: Request) -> Response:
        """Run an action that a form asks for, and return to the page."""
        form = await _read_urlencoded(request)
        token, user = form.get("form_token", ""), request.scope["holdfast_user"]
        if not self._guard.is_own_form(request.headers, token, user):
            return self._render(
                request, "problem.html", 403, title="Refused",
                message="the form is too old, or another site sent it; load the page again",
            )  # fmt: skip
        actor = self._actor(request)
        act = _ACTIONS.get(request.path_params["endpoint"])
        if act is None:
            return self._render(
                request, "problem.html", 404, message="no such action", title="Not found"
            )
        try:
            done = await run_in_threadpool(act, actor, form)
        except (HoldfastError, FormError, ValueError, TypeError, RecursionError) as error:
            done = f"Not done: {error}"
        done = done.encode("utf-8", "replace").decode()  # JSON may have half characters
        back = local_path(form.get("next", "/"))
        mark = "&" if "?" in back else "?"
        return RedirectResponse(f"{back}{mark}{urlencode({'notice': self._sign(done)})}", 303)

    def _sign(self, notice: str) -> str:
        digest = hmac.new(self._options.secret, f"notice\0{notice}".encode(), hashlib.sha256)
        return f"{digest.hexdigest()[:32]}.{notice}"

    def _read_notice(self, given: str) -> str:
        """Return the notice of a redirect. Links by others can't make the page say things."""
        signature, _, notice = given.partition(".")
        return notice if is_same(self._sign(notice), f"{signature}.{notice}") else ""

    # -- log-in ----------------------------------------------------------------------------------

    async def _login(self, request: Request) -> Response:
        back = local_path(request.query_params.get("next", "/"))
        if request.method != "POST" or not self._guard.needs_login:
            return self._render_login(request, 200, "")
        client = request.client.host if request.client else ""
        form = await _read_urlencoded(request)  # first: from here on, nothing is awaited
        if not self._guard.may_try_login(client):
            return self._render(
                request, "problem.html", 429, title="Too many attempts",
                message="too many wrong tokens; wait a minute",
            )  # fmt: skip
        name = self._guard.find_token(form.get("token", "").strip())
        chosen = form.get("name", "").strip()[:200]
        if name is None:
            self._guard.note_failed_login(client)
            return self._render_login(request, 401, "That is not a token of this server.", chosen)
        if not name and not chosen:
            return self._render_login(request, 422, "Please give your name.")
        if not name and chosen in self._options.tokens:
            return self._render_login(request, 422, "That name has a token of its own.", chosen)
        response = RedirectResponse(back, 303)
        response.set_cookie(
            COOKIE,
            self._guard.new_session(name or chosen),
            max_age=SESSION_SECONDS,
            httponly=True,
            samesite="strict",
            secure=_is_over_tls(request),
        )
        return response

    def _render_login(
        self, request: Request, status: int, problem: str, name: str = ""
    ) -> Response:
        facts = {
            "title": "Log in",
            "problem": problem,
            "name": name,
            "asks_name": self._options.token is not None,
        }
        return self._render(request, "login.html", status, **facts)

    async def _logout(self, request: Request) -> Response:
        session = self._guard.read_session(request)
        if session is not None:
            self._guard.end_session(session)
        response = RedirectResponse("/login", 303)
        response.delete_cookie(COOKIE)
        return response


def page_routes(
    options: WebOptions, guard: Guard, make_actor: Callable[[Request], api.Actor]
) -> list[Route]:
    """Return the routes of all pages."""
    return Pages(options, guard, make_actor).routes()


# -- actions from forms ----------------------------------------------------------------------------


def _answer(actor: api.Actor, form: Mapping[str, str]) -> str:
    schema = json.loads(form.get("schema", "null"))
    params = api.AnswerParams(
        _need(form, "id"), _need(form, "name"), read_form(schema, form), form.get("question")
    )
    return api.answer_question(actor, params).done


def _resolve(actor: api.Actor, form: Mapping[str, str]) -> str:
    params = api.ResolveParams(_need(form, "id"), _need(form, "step"))
    outcome = form.get("outcome")
    if outcome == "not done":
        params.retry = True
    elif outcome == "done":
        params.result = read_form(json.loads(form.get("schema", "null")), form, "Its result")
    else:
        raise FormError("Was it done?: choose whether the step was done")
    return api.resolve_step(actor, params).done


def _retry(actor: api.Actor, form: Mapping[str, str]) -> str:
    limits = {
        name: read_form({"type": "number"}, {"value": form[name]}, f"New limit of {name}")
        for name in _LIMITS
        if form.get(name)
    }
    budget = msgspec.convert(limits, Budget) if limits else None
    return api.retry_task(actor, api.RetryParams(_need(form, "id"), budget)).done


def _cancel(actor: api.Actor, form: Mapping[str, str]) -> str:
    params = api.CancelParams(_need(form, "id"), form.get("reason") or None)
    return api.cancel_task(actor, params).done


def _batch(actor: api.Actor, form: Mapping[str, str]) -> str:
    given = {
        "action": form.get("action"),
        "ids": json.loads(form.get("ids", "[]")),
        "reason": form.get("reason") or None,
    }
    result = api.act_on_tasks(actor, msgspec.convert(given, api.BatchParams))
    word = {"retry": "Queued", "cancel": "Cancelled"}[str(given["action"])]
    failed = "".join(f"; {task}: {why}" for task, why in list(result.failed.items())[:5])
    more = f"; {len(result.failed)} not done{failed}" if result.failed else ""
    return f"{word} {len(result.done)} task{'s' if len(result.done) != 1 else ''}{more}"


def _signal(actor: api.Actor, form: Mapping[str, str]) -> str:
    payload = read_form(None, form, "Payload") if form.get("value") else None
    return api.signal_task(
        actor, api.SignalParams(_need(form, "id"), _need(form, "name"), payload)
    ).done


def _supersede(actor: api.Actor, form: Mapping[str, str]) -> str:
    given = _pick(form, "namespace", "id", "text")
    return api.supersede_memory(actor, msgspec.convert(given, api.SupersedeParams)).done


def _fork(actor: api.Actor, form: Mapping[str, str]) -> str:
    given = _pick(form, "id", "new_id", "version")
    params = msgspec.convert(given, api.ForkParams, strict=False)
    params.queue = form.get("queue") == "yes"
    if form.get("input", "").strip():
        params.input = read_form(None, {"value": form["input"]}, "Input")
    if form.get("step"):
        result = read_form(json.loads(form.get("schema", "null")), form, "Result")
        params.results = {form["step"]: result}
    return api.fork_task(actor, params).done


def _pin(actor: api.Actor, form: Mapping[str, str]) -> str:
    params = api.PinParams(_need(form, "namespace"), _need(form, "id"), form.get("pinned") != "no")
    return api.pin_memory(actor, params).done


def _verify(actor: api.Actor, form: Mapping[str, str]) -> str:
    return api.verify_store(actor, api.Nothing()).done


def _forget(actor: api.Actor, form: Mapping[str, str]) -> str:
    params = api.ForgetParams(_need(form, "namespace"), _need(form, "id"))
    return api.forget_memory(actor, params).done


_LIMITS: Final = ("tokens", "cost", "calls")
_ACTIONS: Final[dict[str, Callable[[api.Actor, Mapping[str, str]], str]]] = {
    "task/answer": _answer,
    "task/resolve": _resolve,
    "task/retry": _retry,
    "task/cancel": _cancel,
    "task/fork": _fork,
    "task/signal": _signal,
    "tasks/batch": _batch,
    "memory/forget": _forget,
    "memory/pin": _pin,
    "store/verify": _verify,
    "memory/supersede": _supersede,
}


# -- text ------------------------------------------------------------------------------------------


def show_value(value: Any) -> str:
    """Return a value as indented JSON, or text as it is. No character in it controls the page."""
    if not isinstance(value, str):
        plain = msgspec.to_builtins(value, str_keys=True, enc_hook=to_plain)
        value = json.dumps(plain, ensure_ascii=False, indent=2)
    return show_text(value)


def show_text(text: Any) -> str:
    """Return text with control and direction characters written out, shortened if very long."""
    shown = printable_lines(str(text).replace("\r\n", "\n").replace("\t", "    "))
    if len(shown) > SHOWN_CHARACTERS:
        return f"{shown[:SHOWN_CHARACTERS]}… ({len(shown):,} characters)"
    return shown


def show_brief(value: Any) -> str:
    """Return the start of a value on one line."""
    if not isinstance(value, str):
        plain = msgspec.to_builtins(value, str_keys=True, enc_hook=to_plain)
        value = msgspec.json.encode(plain).decode()
    return show_text(value if len(value) <= 120 else f"{value[:119]}…")


_USUAL: Final = {"kind": "tool", "how": "ran", "attempts": 1}


def shorten_change(change: Change, value: Any) -> Any:
    """Return a changed value; of a whole step, only what one would look for."""
    is_step = isinstance(value, dict) and {"path", "status", "started_at"} <= value.keys()
    if not is_step or not change.path.startswith("steps."):
        return value
    return {
        name: each
        for name, each in value.items()
        if name not in ("path", "name", "key", "code", "version") and _USUAL.get(name) != each
    }


def name_called_tools(calls: Any) -> str:
    """Return the names of the tools that a message calls, after a colon; empty if it has none."""
    names = [
        part["function"].get("name")
        for part in (calls if isinstance(calls, list) else [])
        if isinstance(part, dict) and isinstance(part.get("function"), dict)
    ]
    known = [name for name in names if isinstance(name, str)]
    return show_text(f": {', '.join(known[:5])}{', …' if len(known) > 5 else ''}") if known else ""


def is_flat(value: Any) -> bool:
    """Whether a value is an object with a few plain values, to be shown as a list."""
    if not isinstance(value, dict) or not 0 < len(value) <= 20:
        return False
    plain = (str, int, float, bool, type(None))
    return all(
        type(name) is str and isinstance(each, plain) and len(str(each)) <= 500
        for name, each in value.items()
    )


def format_duration(seconds: float) -> str:
    """Return a duration as people write it: `12 ms`, `0.4 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds < 0.1:
        return f"{seconds * 1000:.0f} ms" if seconds >= 0.001 else "under 1 ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def make_url(path: str, **query: Any) -> str:
    """Return the address of a page, without the parameters that are None or empty."""
    given = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(given)}" if given else path


def _find_step(view: TaskView, path: str | None) -> StepInfo | None:
    return next((step for step in view.steps if step.path == path), None)


def _read_events(actor: api.Actor, view: TaskView, before: str) -> list[api.EventFacts]:
    """Return the newest events, or those before a version."""
    last = view.version
    if before:
        last = min(last, msgspec.convert(before, api.Version, strict=False) - 1)
    first = max(last - SHOWN_EVENTS, 0)
    if first >= last:
        return []
    return api.list_events(actor, api.EventsParams(view.id, first, last - first)).events


def _list_forks(actor: api.Actor, chat: ConversationView) -> list[str]:
    """Return the forks of a conversation. A long one would have to be read as a whole."""
    if chat.version > MAX_FORKS_READ:
        return []
    key = stream_key(actor.store.tenant, "conversation", chat.id)
    head = ops.run(actor.store._log, ops.head(key))
    return [] if head is None else ops.run(actor.store._log, list_forks(head))


def _read_model_input(
    actor: api.Actor, view: TaskView, step: StepInfo | None
) -> api.WindowFacts | None:
    if step is None or step.kind != "model":
        return None
    try:
        return api.show_model_input(actor, api.StepParams(view.id, step.path))
    except HoldfastError:  # its conversation is gone
        return None


def _pick(query: Mapping[str, str], *names: str) -> dict[str, str]:
    return {name: query[name] for name in names if query.get(name)}


def _need(given: Mapping[str, str], name: str) -> str:
    if not given.get(name):
        raise ValueError(f"{name} is missing")
    return given[name]


def _path_of(request: Request) -> str:
    """Return the address of a page without the notice that the last action left."""
    query = [(k, v) for k, v in parse_qsl(request.url.query) if k != "notice"]
    return f"{request.url.path}?{urlencode(query)}" if query else request.url.path


def _attachment(name: str) -> dict[str, str]:
    """Return the header that makes a browser save a response as a file, and never show it."""
    return {"content-disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}"}


def _is_over_tls(request: Request) -> bool:
    """Whether the browser uses TLS, perhaps to a proxy before this server."""
    origin = request.headers.get("origin", "")
    return request.url.scheme == "https" or origin.startswith("https://")


async def _read_urlencoded(request: Request) -> dict[str, str]:
    body = await request.body()
    return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
