// What the pages do beyond plain HTML: local times, keyboard, live updates, the version slider.

import { drawTimelines, redrawTimelines } from "./timeline.js";

const UNITS = [["day", 86400], ["hour", 3600], ["minute", 60]];
const ages = new Intl.RelativeTimeFormat(undefined, { numeric: "auto" });

function formatAge(at) {
  const seconds = (at.getTime() - Date.now()) / 1000;
  for (const [unit, size] of UNITS) {
    if (Math.abs(seconds) >= size) return ages.format(Math.trunc(seconds / size), unit);
  }
  return seconds > 0 ? ages.format(Math.ceil(seconds), "second") : "just now";
}

/** Show times in the reader's zone, or how long ago they were. The exact UTC time is the title. */
function showLocalTimes(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const at = new Date(time.dateTime);
    if (Number.isNaN(at.getTime())) continue;
    const isAge = time.dataset.age !== undefined;
    time.textContent = isAge ? formatAge(at) : at.toLocaleString();
    if (isAge && !time.title.includes("\n")) time.title = `${at.toLocaleString()}\n${time.title}`;
  }
}

// -- keyboard ---------------------------------------------------------------------------------

let goes = false;

function moveTo(step) {
  const items = [...document.querySelectorAll("[data-item]")];
  if (!items.length) return;
  const now = items.findIndex((item) => item.classList.contains("current"));
  const next = now < 0 && step < 0 ? items.length - 1 : Math.min(Math.max(now + step, 0), items.length - 1);
  items.forEach((item, place) => item.classList.toggle("current", place === next));
  items[next].focus({ preventScroll: true });
  items[next].scrollIntoView({ block: "nearest" });
}

function onKey(event) {
  const typing = event.target.closest("input:not([type=radio]):not([type=range]):not([type=checkbox]), textarea, select");
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (goes) {
    goes = false;
    const link = document.querySelector(`[data-key="g ${CSS.escape(event.key)}"]`);
    if (link) link.click();
    return;
  }
  if (event.key === "g") goes = true;
  else if (event.key === "j") moveTo(1);
  else if (event.key === "k") moveTo(-1);
  else if (event.key === "x") document.querySelector("[data-item].current input[type=checkbox]")?.click();
  else if (event.key === "?") document.getElementById("keys").showModal();
  else if (event.key === "/") {
    const search = document.querySelector("[data-search]");
    if (search) { search.focus(); event.preventDefault(); }
  } else if (event.key === "Enter" && event.target.matches("[data-item]")) {
    const link = event.target.querySelector("a");
    if (link) link.click();
  }
}

// -- live updates: load the page again, and exchange the parts that changed ---------------------

function isInUse(part) {
  const focus = document.activeElement;
  if (part.querySelector("input[type=checkbox]:checked")) return true; // tasks chosen for an action
  return part.contains(focus) && focus.matches("input, textarea, select, button");
}

function openDetails(root) {
  return [...root.querySelectorAll("details")].map((each) => each.open);
}

let loading = false;
let again = false;

async function refresh() {
  if (loading) { again = true; return; }
  loading = true;
  try {
    const answer = await fetch(location.href, { headers: { accept: "text/html" } });
    if (answer.redirected) { location.reload(); return; } // to the log-in
    if (!answer.ok) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    document.title = fresh.title;
    for (const part of document.querySelectorAll("[data-part]")) {
      const found = fresh.getElementById(part.id);
      if (!found || isInUse(part) || "searched" in part.dataset || part.dataset.source === found.innerHTML) continue;
      const source = found.innerHTML;
      const opened = openDetails(part);
      const current = part.querySelector("[data-item].current")?.id;
      const focused = document.activeElement?.matches("[data-item].current");
      const drawn = part.querySelector("[data-timeline]");
      if (drawn) found.querySelector("[data-timeline]")?.replaceWith(drawn); // it is drawn again in place
      part.replaceChildren(...found.childNodes);
      part.dataset.source = source;
      [...part.querySelectorAll("details")].forEach((each, place) => { each.open = opened[place] ?? each.open; });
      const kept = current && document.getElementById(current);
      if (kept) kept.classList.add("current");
      if (kept && focused) kept.focus({ preventScroll: true });
      part.classList.remove("fresh");
      requestAnimationFrame(() => part.classList.add("fresh"));
      showLocalTimes(part);
    }
    drawTimelines();
    lookFurther();
  } finally {
    loading = false;
    if (again) { again = false; refresh(); }
  }
}

function listen() {
  const { live, liveId } = document.body.dataset;
  if (!live || new URLSearchParams(location.search).has("version")) return;
  let seen = null;
  const query = new URLSearchParams({ topic: live, id: liveId ?? "" });
  const source = new EventSource(`/live?${query}`);
  source.onerror = () => {
    if (source.readyState !== EventSource.CLOSED) return; // it tries again
    const note = document.createElement("p");
    note.className = "notice";
    note.textContent = "This page is no longer updated. Load it again to continue.";
    document.getElementById("notice").replaceChildren(note);
  };
  source.onmessage = (event) => {
    if (seen !== null && seen !== event.data) refresh();
    seen = event.data;
  };
  addEventListener("pagehide", () => source.close());
}

/** Continue a search that the server stopped: in a store with very many tasks it comes in parts. */
async function lookFurther() {
  const list = document.querySelector("#inbox, #tasks");
  for (let part = 0; list && part < 50; part += 1) {
    const link = list.querySelector("[data-more]");
    if (!link || list.querySelectorAll("[data-item]").length >= 100) return;
    const answer = await fetch(link.href, { headers: { accept: "text/html" } });
    if (!answer.ok || !link.isConnected) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    const found = fresh.getElementById(list.id);
    const next = found.querySelector("[data-more]");
    const items = [...found.querySelectorAll("[data-item]")];
    showLocalTimes(fresh);
    const last = [...list.querySelectorAll("[data-item]")].at(-1);
    const table = found.querySelector("table");
    if (items.length && last) last.after(...items);
    else if (items.length) list.querySelector(".empty")?.replaceWith(...(table ? [table] : items));
    const count = list.querySelectorAll("[data-item]").length;
    const more = found.querySelector("a.more");
    if (more) link.closest("p").replaceWith(more.closest("p"));
    else if (count) link.closest("p").remove();
    else list.replaceChildren(...found.childNodes);
    if (list.id === "inbox") document.title = `${count ? `(${count}${next ? "+" : ""}) ` : ""}Inbox · Holdfast`;
    else list.dataset.searched = ""; // an update would search from the beginning
    if (!next) return;
  }
}

/** Move the slider to see another version. The form may be replaced by an update of the page. */
function travel() {
  let waiting;
  addEventListener("input", ({ target }) => {
    if (target.matches("[data-travel]")) target.form.querySelector("output").value = target.value;
  });
  addEventListener("change", ({ target }) => {
    if (!target.matches("[data-travel]")) return;
    clearTimeout(waiting); // arrow keys change it step by step
    waiting = setTimeout(() => target.form.requestSubmit(), 400);
  });
}

for (const part of document.querySelectorAll("[data-part]")) part.dataset.source = part.innerHTML;
showLocalTimes(document);
addEventListener("keydown", onKey);
travel();
drawTimelines();
lookFurther();
listen();
setInterval(() => showLocalTimes(document), 30_000);
addEventListener("resize", () => redrawTimelines());
