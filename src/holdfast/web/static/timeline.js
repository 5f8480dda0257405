// The timeline of a task as SVG: a lane for each process, idle time collapsed, only visible rows.

const NS = "http://www.w3.org/2000/svg";
const ROW = 22;
const LANE = 30;
const AXIS = 22;

function make(name, attributes, text) {
  const node = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

function withTitle(node, text) {
  node.append(make("title", {}, text));
  return node;
}

function formatDuration(milliseconds) {
  const seconds = milliseconds / 1000;
  if (seconds < 0.1) return milliseconds >= 1 ? `${Math.round(milliseconds)} ms` : "under 1 ms";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} days`;
}

/** Map times to places: time between runs takes the same short width, however long it was. */
function makeScale(runs, width) {
  const gap = width < 400 ? 36 : 72; // the width of collapsed idle time
  const spans = [];
  for (const run of runs) {
    const start = Date.parse(run.start);
    const end = Math.max(Date.parse(run.end), start + 1);
    const last = spans[spans.length - 1];
    if (last && start <= last.end + 200) last.end = Math.max(last.end, end);
    else spans.push({ start, end });
  }
  const busy = spans.reduce((sum, span) => sum + span.end - span.start, 0) || 1;
  const room = Math.max(width - gap * (spans.length - 1), 28 * spans.length);
  let x = 0;
  for (const span of spans) {
    span.x = x;
    span.scale = room / busy;
    span.width = (span.end - span.start) * span.scale;
    x += span.width + gap;
  }
  const place = (time) => {
    const at = Date.parse(time);
    let span = spans[0];
    for (const each of spans) if (each.start <= at) span = each;
    const inside = Math.min(Math.max(at, span.start), span.end);
    return span.x + (inside - span.start) * span.scale;
  };
  return { place, spans, gap, width: x - gap };
}

function cut(text, width) {
  const most = Math.floor(width / 6.6);
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

/** About how wide a small label is. */
function measure(text) {
  return text.length * 5.9;
}

function drawLanes(svg, { runs, lanes, gaps }, scale, left) {
  lanes.forEach((name, lane) => {
    svg.append(withTitle(make("text", { x: 10, y: AXIS + lane * LANE + 17 }, cut(name, left - 16)), name));
  });
  for (const run of runs) {
    const x = left + scale.place(run.start);
    const y = AXIS + run.lane * LANE + 3;
    const end = left + scale.place(run.end);
    const width = Math.max(end - x, 3);
    const took = formatDuration(Date.parse(run.end) - Date.parse(run.start));
    const label = `run ${run.number}: ${run.how} after ${took}`;
    svg.append(withTitle(make("rect", { class: `lane ${run.how.replace(" ", "-")}`, x, y, width, height: LANE - 10, rx: 4 }), label));
    const inside = [`run ${run.number}, ${took}`, `run ${run.number}`, `${run.number}`].find((text) => measure(text) + 16 < width);
    if (inside) svg.append(make("text", { class: "faint", x: x + 8, y: y + 14 }, inside));
    if (run.how === "killed" || run.how === "taken over") {
      const middle = y + (LANE - 10) / 2;
      svg.append(withTitle(make("path", { class: "kill", d: `M${end - 5} ${middle - 5}l10 10m0 -10l-10 10` }), run.how));
      if (scale.spans.length > 1) svg.append(make("text", { class: "faint", x: end + 10, y: middle + 4 }, run.how));
    }
  }
  scale.spans.slice(0, -1).forEach((span, number) => {
    const x = left + span.x + span.width;
    const idle = scale.spans[number + 1].start - span.end;
    const gap = gaps.find((each) => Math.abs(Date.parse(each.start) - span.end) < 1000);
    const why = gap && gap.why === "suspended" ? "waited" : "idle";
    svg.append(make("path", { class: "idle", d: `M${x + 6} ${AXIS - 6}h${scale.gap - 12}` }));
    const label = scale.gap < 60 ? formatDuration(idle) : `${why} ${formatDuration(idle)}`;
    svg.append(withTitle(make("text", { class: "faint", x: x + scale.gap / 2, y: AXIS - 10, "text-anchor": "middle" }, label), `${why} ${formatDuration(idle)}`));
  });
}

/** Draw what happened at one instant. Each leads to the task as it was then. */
function drawMarks(svg, { marks, lanes }, scale, left, id) {
  const y = AXIS + lanes.length * LANE + 4;
  let last = -10;
  for (const mark of marks) {
    const x = left + scale.place(mark.at);
    if (x - last < 4 && marks.length > 200) continue; // they would cover each other
    last = x;
    const refused = mark.what === "late write refused" && mark.lane !== null;
    const middle = AXIS + mark.lane * LANE + 12; // on the lane of the process that came too late
    const tick = refused
      ? make("path", { class: "refused", d: `M${x - 5} ${middle - 5}l10 10m0 -10l-10 10` })
      : make("path", { class: "tick", d: `M${x} ${y - 5}l5 5l-5 5l-5 -5z` });
    const said = [mark.what, mark.name, mark.by && `by ${mark.by}`].filter(Boolean).join(" ");
    const link = make("a", { href: `/task?${new URLSearchParams({ id, version: mark.version })}`, tabindex: -1, "aria-label": said });
    link.append(withTitle(tick, said));
    svg.append(link);
  }
}

function draw(box, timeline) {
  const { runs, steps, lanes } = timeline;
  const scrolled = box.scrollTop;
  box.replaceChildren();
  if (!runs.length) return;
  const left = Math.min(230, Math.max(box.clientWidth * 0.34, 90));
  const scale = makeScale(runs, Math.max(box.clientWidth - left - 40, 160));
  const width = left + scale.width + 36;
  const top = AXIS + lanes.length * LANE + 18;
  const height = top + steps.length * ROW + 8;
  const svg = make("svg", { width, height, role: "group", "aria-label": describe(timeline) });
  drawLanes(svg, timeline, scale, left);
  drawMarks(svg, timeline, scale, left, box.dataset.id);
  const rows = make("g", {});
  svg.append(make("path", { class: "axis", d: `M0 ${top - 4}h${width}` }), rows);
  const base = new URLSearchParams({ id: box.dataset.id });
  if (box.dataset.version) base.set("version", box.dataset.version);
  const showRows = () => {
    const first = Math.max(Math.floor((box.scrollTop - top) / ROW) - 5, 0);
    const last = Math.min(first + Math.ceil(box.clientHeight / ROW) + 15, steps.length);
    rows.replaceChildren();
    for (let number = first; number < last; number += 1) {
      const step = steps[number];
      const y = top + number * ROW;
      const x = left + scale.place(step.start);
      const end = left + scale.place(step.end);
      const took = formatDuration(Date.parse(step.end) - Date.parse(step.start));
      const link = make("a", { href: `/task?${base}&step=${encodeURIComponent(step.path)}#step`, "aria-label": `step ${step.path}: ${step.status}` });
      const bar = make("rect", { class: `bar ${step.status}`, x, y: y + 5, width: Math.max(end - x, 3), height: ROW - 10, rx: 3 });
      withTitle(bar, `${step.path}: ${step.status} after ${took}, run ${step.run}, attempt ${step.attempt}`);
      const note = step.status === "completed" ? took : `${took}, ${step.status}`;
      link.append(make("text", { x: 10, y: y + 15 }, cut(step.path, left - 16)), bar);
      const room = measure(note) + 12;
      if (end + room < width) link.append(make("text", { class: "faint", x: Math.max(end, x + 3) + 6, y: y + 15 }, note));
      else if (end - x > room) link.append(make("text", { class: "inside", x: x + 6, y: y + 15 }, note));
      else if (x - room > left) link.append(make("text", { class: "faint", x: x - 6, y: y + 15, "text-anchor": "end" }, note));
      rows.append(link);
    }
  };
  box.append(svg);
  const legend = box.parentElement.querySelector("[data-legend]");
  if (legend) legend.hidden = !timeline.marks.length;
  box.scrollTop = scrolled;
  box.onscroll = showRows;
  showRows();
}

function describe({ runs, steps }) {
  const killed = runs.filter((run) => run.how === "killed").length;
  const count = (number, name) => `${number} ${name}${number === 1 ? "" : "s"}`;
  return `${count(runs.length, "run")}, ${killed} of them killed, ${count(steps.length, "step")}`;
}

const shown = new WeakMap();

export function redrawTimelines() {
  for (const box of document.querySelectorAll("[data-timeline]")) {
    if (shown.has(box)) draw(box, shown.get(box));
  }
}

export async function drawTimelines() {
  for (const box of document.querySelectorAll("[data-timeline]")) {
    const query = new URLSearchParams({ id: box.dataset.id });
    if (box.dataset.version) query.set("version", box.dataset.version);
    const answer = await fetch(`/api/v1/task/timeline?${query}`);
    if (!answer.ok) continue;
    shown.set(box, (await answer.json()).timeline);
    draw(box, shown.get(box));
  }
}
