"use strict";

const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const SERIES_MAX = 8;
const AGGREGATES = ["TimeAverage", "TimeAverage2", "Average", "Minimum", "Maximum", "Range", "Total", "Total2", "Count", "Start",
  "End", "Delta", "Interpolative", "NumberOfTransitions", "DurationGood", "DurationBad", "PercentGood", "PercentBad",
  "StandardDeviationPopulation", "Percentile", "Rate", "Distinct"];
const CODES = {0x00000000: "Good", 0x40000000: "Uncertain", 0x40A40000: "Uncertain, sub-normal", 0x80000000: "Bad",
  0x809B0000: "Bad, no data", 0x808C0000: "Bad, sensor failure"};
const BITS = {1: "calculated", 2: "interpolated", 4: "partial", 16: "multiple values"};

// `placed`: whether the period was set by the link or by the user; until then it follows the data.
const state = {found: [], at: -1, chosen: [], start: 0, end: 0, shown: [], history: [], request: 0, drag: null, placed: false};

// ---------------------------------------------------------------- requests to the service

async function ask(path, parameters = []) {
  const query = new URLSearchParams(parameters).toString();
  const token = sessionStorage.getItem("token");
  const headers = token ? {Authorization: `Bearer ${token}`} : {};
  const answer = await fetch(query ? `${path}?${query}` : path, {headers});
  const body = await answer.json();
  if (!answer.ok) {
    if (answer.status === 401) $("token").focus();
    throw new Error(body.error.message);
  }
  return body;
}

/** Runs `work` and shows its error, if any. */
async function attempt(work) {
  try {
    await work();
    $("error").hidden = true;
  } catch (error) {
    $("error").textContent = error.message;
    $("error").hidden = false;
  }
}

const iso = (ms) => new Date(ms).toISOString();

/** Offset of the selected time zone behind UTC at a time, in milliseconds. */
const behind = (ms) => $("zone").value === "local" ? new Date(ms).getTimezoneOffset() * 60000 : 0;

/** Formats a time in the selected time zone, as 2026-01-01T00:00:00. */
const stamp = (ms) => iso(ms - behind(ms)).slice(0, 19);

/** Parses a time in the selected time zone. */
const parsed = (text) => Date.parse($("zone").value === "local" ? text : `${text}Z`);

function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  Object.assign(made, properties);
  made.append(...children);
  return made;
}

function drawn(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// ---------------------------------------------------------------- tags

async function find() {
  const typed = $("find").value.trim();
  const pattern = /[*?]/.test(typed) ? typed : `*${typed}*`;
  const answer = await ask("v1/tags", [["match", pattern], ["limit", "200"]]);
  state.found = answer.tags;
  state.at = state.found.length ? 0 : -1;
  $("found-count").textContent = answer.tags.length === 200 ? "the first 200" : `${answer.tags.length} found`;
  listFound();
}

function listFound() {
  const rows = state.found.map((tag, index) => {
    const row = element("li", {id: `tag-${index}`, role: "option"}, tag.name);
    row.append(" ", element("small", {textContent: tag.unit || tag.data_type}));
    row.setAttribute("aria-selected", String(state.chosen.some((chosen) => chosen.name === tag.name)));
    row.classList.toggle("at", index === state.at);
    row.title = tag.description;
    row.addEventListener("click", () => { state.at = index; choose(tag); });
    return row;
  });
  $("found").replaceChildren(...rows);
  if (state.at >= 0) {
    $("found").setAttribute("aria-activedescendant", `tag-${state.at}`);
    rows[state.at].scrollIntoView({block: "nearest"});
  }
}

function choose(tag) {
  const place = state.chosen.findIndex((chosen) => chosen.name === tag.name);
  if (place >= 0) state.chosen.splice(place, 1);
  else if (state.chosen.length < SERIES_MAX) state.chosen.push(tag);
  listFound();
  attempt(async () => { await Promise.all([state.placed ? load() : fit(), latest()]); });
}

/** Lengths of the displayed period, ms: a day, a month, a year. */
const VIEWS_MS = [1, 30, 365].map((days) => days * 86400000);
const POINTS_MIN = 10;

/** Sets the period to the newest data of the selected tags, long enough to include some of their points. */
async function fit() {
  const tags = state.chosen.filter(numeric).map((tag) => ["tag", tag.name]);
  const newest = tags.length ? (await ask("v1/latest", tags)).rows.map((row) => Date.parse(row.time)) : [];
  if (!newest.length) {
    await load();
    return;
  }
  const end = Math.max(...newest) + 1000;
  let best = {length: VIEWS_MS[0], count: 0};
  for (const length of VIEWS_MS) {
    const counts = await ask("v1/aggregate", [...tags, ["start", iso(end - length)], ["end", iso(end)], ["aggregate", "Count"],
      ["interval", `${length}ms`]]);
    const count = Math.max(...counts.rows.map((row) => Number(row.value)));
    if (count > best.count) best = {length, count};
    if (count >= POINTS_MIN) break;
  }
  show(end - best.length, end, state.placed);
}

function foundKeys(event) {
  const last = state.found.length - 1;
  const moves = {ArrowDown: state.at + 1, ArrowUp: state.at - 1};
  if (event.target === $("found")) Object.assign(moves, {Home: 0, End: last});
  if (event.key in moves && last >= 0) {
    state.at = Math.max(0, Math.min(last, moves[event.key]));
    listFound();
  } else if ((event.key === "Enter" || (event.key === " " && event.target === $("found"))) && state.at >= 0) {
    choose(state.found[state.at]);
  } else {
    return;
  }
  event.preventDefault();
}

// ---------------------------------------------------------------- trends

const numeric = (tag) => tag.data_type !== "string";
const severity = (status) => ["good", "uncertain", "bad", "bad"][status >>> 30];

/** Formats a value for display. */
function valueText(value) {
  if (value === null) return "—";
  return typeof value === "number" ? Number(value.toPrecision(7)).toString() : String(value);
}

function statusText(status) {
  const code = status & 0xFFFF0000;
  const words = [CODES[code >>> 0] || `0x${(code >>> 0).toString(16).toUpperCase().padStart(8, "0")}`];
  if ((status & 0xC00) === 0x400) for (const [bit, name] of Object.entries(BITS)) if (status & bit) words.push(name);
  return words.join(", ");
}

async function load() {
  const request = ++state.request;
  remember();
  const tags = state.chosen.filter(numeric);
  const width = Math.max(300, $("plot").clientWidth);
  const range = [["start", iso(state.start)], ["end", iso(state.end)]];
  const aggregate = $("aggregate").value;
  const span = state.end - state.start;
  const step = `${Math.max(1, Math.ceil(span / 200))}ms`;
  const shown = await Promise.all(tags.map(async (tag) => {
    const named = [["tag", tag.name], ...range];
    const shape = aggregate
      ? ask("v1/aggregate", [...named, ["aggregate", aggregate], ["interval", $("interval").value || step]])
      : ask("v1/plot", [...named, ["points", String(Math.round(width * 2))]]);
    const quality = ask("v1/aggregate", [...named, ["aggregate", "WorstQuality"], ["interval", step]]);
    const [points, strip] = await Promise.all([shape, quality]);
    return {
      tag,
      points: points.rows.map((row) => ({time: Date.parse(row.time), value: row.value === null ? null : Number(row.value),
        status: row.status})),
      strip: strip.rows.map((row) => ({time: Date.parse(row.time), kind: quality_of(row)})),
    };
  }));
  // Ignore responses to an outdated request.
  if (request !== state.request) return;
  state.shown = shown;
  draw();
}

function quality_of(row) {
  if (row.value === null || (row.status >>> 30) === 2) return "none";
  return severity(row.value);
}

/** Stores the view in the URL, so that it can be bookmarked, shared and reached by the back button. */
function remember() {
  const words = state.chosen.map((tag) => ["tag", tag.name]);
  if ($("live").checked) words.push(["live", String(state.end - state.start)]);
  else if (state.placed) words.push(["start", iso(state.start)], ["end", iso(state.end)]);
  for (const name of ["aggregate", "interval"]) if ($(name).value) words.push([name, $(name).value]);
  if ($("zone").value !== "UTC") words.push(["zone", $("zone").value]);
  const query = new URLSearchParams(words).toString();
  history.replaceState(null, "", query ? `?${query}${location.hash}` : location.pathname + location.hash);
}

const EDGE = {left: 64, right: 12, top: 22, strip: 8, bottom: 38};

function frame() {
  const width = $("plot").clientWidth, height = $("plot").clientHeight;
  const strips = state.shown.length * (EDGE.strip + 2);
  return {left: EDGE.left, right: width - EDGE.right, top: EDGE.top, bottom: height - EDGE.bottom - strips, height};
}

function ticks(low, high, count) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step) found.push(value);
  return found.map((value) => Math.abs(value) < step * 1e-9 ? 0 : value);
}

/** Formats an axis label so that it fits its space. */
function axisText(value) {
  const size = Math.abs(value);
  return size >= 1e6 || (size > 0 && size < 1e-4) ? value.toExponential(2) : Number(value.toPrecision(6)).toString();
}

const MINUTE_S = 60, HOUR_S = 3600, DAY_S = 86400, YEAR_S = 31536000;
/** Distances between ticks, s. Each is at most about twice the previous one, so at least half as many ticks are shown as fit. */
const STEPS_S = [1, 2, 3, 5, 10, 15, 30, ...[1, 2, 3, 5, 10, 15, 30].map((count) => count * MINUTE_S),
  ...[1, 2, 3, 6, 12].map((count) => count * HOUR_S), ...[1, 2, 3, 5, 7, 14, 28, 56, 91, 182].map((count) => count * DAY_S),
  ...[1, 2, 4, 8].map((count) => count * YEAR_S)];
/** Space of a tick with its label. */
const MARK_PX = 70;

/** Ticks of a time axis of this width, no more than there is space for their labels. */
function timeTicks(start, end, width) {
  const steps = STEPS_S.map((seconds) => seconds * 1000);
  const count = Math.min(8, Math.max(2, width / MARK_PX));
  const step = steps.find((size) => (end - start) / size <= count) || steps[steps.length - 1];
  const found = [];
  // Ticks are at round times of the selected time zone, also across a change to summer time.
  for (let wall = Math.ceil((start - behind(start)) / step) * step; ; wall += step) {
    const time = wall + behind(wall + behind(start));
    if (time >= end) break;
    if (time >= start) found.push(time);
  }
  const day_ms = DAY_S * 1000;
  const text = (time) => {
    const [date, clock] = stamp(time).split("T");
    if (step >= 28 * day_ms) return date;
    if (step >= 60000) return clock === "00:00:00" ? date.slice(5) : clock.slice(0, 5);
    return clock;
  };
  return found.map((time) => [time, text(time)]);
}

/** The label of the time axis: the period with its year and time zone. */
function periodText() {
  const text = (time) => stamp(time).replace("T", " ");
  const zone = $("zone").value === "local" ? Intl.DateTimeFormat().resolvedOptions().timeZone : "UTC";
  return `${text(state.start)} to ${text(state.end)}, ${zone}`;
}

/** Maps times and values to coordinates in the plot. */
function scales() {
  const box = frame();
  let low = Infinity, high = -Infinity;
  for (const {points} of state.shown) for (const {value} of points) {
    if (value !== null && value < low) low = value;
    if (value !== null && value > high) high = value;
  }
  if (low > high) [low, high] = [0, 1];
  const room = (high - low) * 0.05 || Math.abs(high) * 0.05 || 1;
  [low, high] = [low - room, high + room];
  const x = (time) => box.left + (time - state.start) / (state.end - state.start) * (box.right - box.left);
  const y = (value) => box.bottom - (value - low) / (high - low) * (box.bottom - box.top);
  const time = (place) => state.start + (place - box.left) / (box.right - box.left) * (state.end - state.start);
  return {box, low, high, x, y, time};
}

function draw() {
  const {box, low, high, x, y} = scales();
  const parts = [];
  for (const value of ticks(low, high, 6)) {
    parts.push(drawn("line", {class: "grid", x1: box.left, x2: box.right, y1: y(value), y2: y(value)}));
    parts.push(drawn("text", {x: box.left - 6, y: y(value) + 4, "text-anchor": "end"}, axisText(value)));
  }
  for (const [time, text] of timeTicks(state.start, state.end, box.right - box.left)) {
    parts.push(drawn("line", {class: "grid", x1: x(time), x2: x(time), y1: box.top, y2: box.bottom}));
    const anchor = x(time) + 30 > box.right + EDGE.right ? "end" : "middle";
    parts.push(drawn("text", {x: x(time), y: box.height - 22, "text-anchor": anchor}, text));
  }
  parts.push(drawn("text", {class: "period", x: box.left, y: box.height - 6}, periodText()));
  state.shown.forEach(({tag, points, strip}, place) => {
    parts.push(drawn("path", {class: `line s${place}`, d: path(points, strip, tag, x, y)}));
    for (const point of points) if (point.value !== null && (point.status >>> 30) === 1 && points.length < 2000) {
      parts.push(drawn("circle", {class: "uncertain", cx: x(point.time), cy: y(point.value), r: 2.5}));
    }
    const top = box.bottom + 4 + place * (EDGE.strip + 2);
    strip.forEach((piece, index) => {
      const next = index + 1 < strip.length ? strip[index + 1].time : state.end;
      const from = x(piece.time), to = x(next);
      parts.push(drawn("rect", {class: piece.kind, x: from, y: top, width: Math.max(0.5, to - from), height: EDGE.strip}));
    });
  });
  if (state.drag) {
    const [from, to] = [state.drag.from, state.drag.to].sort((a, b) => a - b);
    parts.push(drawn("rect", {class: "selection", x: from, y: box.top, width: to - from, height: box.bottom - box.top}));
  }
  $("plot").replaceChildren(...parts);
  const names = state.shown.map(({tag}) => tag.name).join(", ");
  $("plot").setAttribute("aria-label", names ? `${names} from ${iso(state.start)} to ${iso(state.end)}` : "No tag is chosen");
  const empty = state.shown.length > 0 && state.shown.every(({points}) => points.every(({value}) => value === null));
  $("empty").hidden = !empty;
  $("csv").disabled = $("png").disabled = !state.shown.length || empty;
  $("fit").disabled = !state.chosen.some(numeric);
  legend();
}

/** The line through the points, with gaps where a value is missing or Bad, and with steps for stepped tags. */
function path(points, strip, tag, x, y) {
  const gaps = strip.filter((piece) => piece.kind === "bad").map((piece) => piece.time);
  let gap = 0;
  const steps = tag.stepped || tag.data_type === "bool" || $("aggregate").value !== "";
  let d = "", last = null;
  for (const point of points) {
    while (last !== null && gap < gaps.length && gaps[gap] <= last.time) gap += 1;
    if (last !== null && gap < gaps.length && gaps[gap] < point.time) last = null;
    if (point.value === null) { last = null; continue; }
    const px = x(point.time).toFixed(1), py = y(point.value).toFixed(1);
    d += last === null ? `M${px},${py}` : steps ? `H${px}V${py}` : `L${px},${py}`;
    last = point;
  }
  return d;
}

function legend() {
  const rows = state.shown.map(({tag, points}, place) => {
    const swatch = element("span", {className: `swatch s${place}`});
    const drop = element("button", {textContent: "×", title: `Take ${tag.name} out`});
    drop.setAttribute("aria-label", drop.title);
    drop.addEventListener("click", () => choose(tag));
    return element("li", {}, swatch, `${tag.name}${tag.unit ? ` [${tag.unit}]` : ""} (${points.length}) `, drop);
  });
  $("legend").replaceChildren(...rows);
}

function show(start, end, keep = true) {
  if (!(end > start)) return;
  if (keep && state.end) state.history.push([state.start, state.end]);
  [state.start, state.end] = [Math.round(start), Math.round(end)];
  state.placed = true;
  fillRange();
  $("back").disabled = state.history.length === 0;
  attempt(load);
}

function fillRange() {
  $("start").value = stamp(state.start);
  $("end").value = stamp(state.end);
}

function zoom(factor, centre = (state.start + state.end) / 2) {
  const span = Math.max(1000, Math.min(30 * 31536000000, (state.end - state.start) * factor));
  const share = (centre - state.start) / (state.end - state.start);
  show(centre - span * share, centre + span * (1 - share));
}

function back() {
  const before = state.history.pop();
  if (before) show(before[0], before[1], false);
}

function plotKeys(event) {
  const span = state.end - state.start;
  const keys = {
    "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), "0": back,
    ArrowLeft: () => show(state.start - span / 4, state.end - span / 4),
    ArrowRight: () => show(state.start + span / 4, state.end + span / 4),
  };
  if (!(event.key in keys) || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  keys[event.key]();
}

const place = (event) => event.clientX - $("plot").getBoundingClientRect().left;

function plotPointer(event) {
  const {box, time} = scales();
  const at = Math.max(box.left, Math.min(box.right, place(event)));
  if (event.type === "pointerdown") {
    state.drag = {from: at, to: at};
    $("plot").setPointerCapture(event.pointerId);
  } else if (event.type === "pointermove") {
    if (state.drag) { state.drag.to = at; draw(); }
    readout(time(at));
  } else if (state.drag) {
    const [from, to] = [state.drag.from, state.drag.to].sort((a, b) => a - b);
    state.drag = null;
    if (to - from > 5) show(time(from), time(to)); else draw();
  }
}

function readout(time) {
  const lines = state.shown.map(({tag, points}) => {
    const before = points.filter((point) => point.time <= time).pop();
    return before ? `${tag.name}: ${valueText(before.value)} ${tag.unit} (${statusText(before.status)})` : `${tag.name}: —`;
  });
  $("readout").textContent = lines.length ? [stamp(time).replace("T", " "), ...lines].join("\n") : "";
}

// ---------------------------------------------------------------- export of the plot

function save(name, blob) {
  const link = element("a", {href: URL.createObjectURL(blob), download: name});
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

const quoted = (text) => /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;

/** The points of the plot as CSV (RFC 4180); times are always UTC. */
function csvText() {
  const lines = [["tag", "time", "value", "unit", "quality"]];
  for (const {tag, points} of state.shown) for (const {time, value, status} of points) {
    lines.push([tag.name, iso(time), value === null ? "" : String(value), tag.unit || "", statusText(status)]);
  }
  return lines.map((cells) => cells.map(quoted).join(",") + "\r\n").join("");
}

const PAINT = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-size", "font-family"];

/** The plot as a standalone PNG, with its colours, a background and a legend. */
async function picture() {
  const plot = $("plot"), width = plot.clientWidth, height = plot.clientHeight, head = 20 * state.shown.length;
  const copy = plot.cloneNode(true);
  const shown = plot.querySelectorAll("*");
  copy.querySelectorAll("*").forEach((part, index) => {
    const style = getComputedStyle(shown[index]);
    for (const name of PAINT) part.setAttribute(name, style.getPropertyValue(name));
  });
  const ink = getComputedStyle(document.body), paper = getComputedStyle($("trends")).backgroundColor;
  const lines = state.shown.map(({tag}, place) => {
    const name = `${tag.name}${tag.unit ? ` [${tag.unit}]` : ""}`;
    const fill = getComputedStyle(plot.querySelector(`.s${place}`)).stroke;
    return drawn("text", {x: EDGE.left, y: -head + 15 + 20 * place, fill, "font-family": ink.fontFamily, "font-size": 14}, name);
  });
  copy.prepend(drawn("rect", {x: 0, y: -head, width, height: height + head, fill: paper}), ...lines);
  for (const [name, value] of Object.entries({xmlns: SVG, width, height: height + head, viewBox: `0 ${-head} ${width} ${height + head}`})) {
    copy.setAttribute(name, value);
  }
  const image = new Image();
  image.src = `data:image/svg+xml,${encodeURIComponent(new XMLSerializer().serializeToString(copy))}`;
  await image.decode();
  const canvas = element("canvas", {width: width * 2, height: (height + head) * 2});
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => { canvas.toBlob(done, "image/png"); });
}

const fileName = (kind) => `${state.shown[0].tag.name.replace(/[^\w.-]+/g, "_")}-${stamp(state.start).slice(0, 10)}.${kind}`;

// ---------------------------------------------------------------- latest values, datasets

async function latest() {
  if (!state.chosen.length) { $("latest-rows").replaceChildren(); return; }
  const answer = await ask("v1/latest", state.chosen.map((tag) => ["tag", tag.name]));
  const rows = state.chosen.map((tag) => {
    const row = answer.rows.find((point) => point.tag === tag.name);
    const cells = [tag.name, row ? valueText(row.value) : "—", tag.unit, row ? timeText(row.time) : ""];
    const made = cells.map((text, place) => element("td", {textContent: text, className: place === 1 ? "number" : ""}));
    const quality = row ? statusText(row.status) : "no points";
    made.push(element("td", {textContent: quality, className: `quality ${row ? severity(row.status) : "none"}`}));
    return element("tr", {}, ...made);
  });
  $("latest-rows").replaceChildren(...rows);
}

/** A time of the service in the selected time zone; fractions of a second are unchanged. */
function timeText(text) {
  const fraction = text.match(/\.\d+/)?.[0] || "";
  return stamp(Date.parse(text)).replace("T", " ") + fraction;
}

function sizeText(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = bytes ? Math.min(4, Math.floor(Math.log2(bytes) / 10)) : 0;
  return `${(bytes / 1024 ** power).toFixed(power ? 1 : 0)} ${units[power]}`;
}

async function datasets() {
  const answer = await ask("v1/datasets");
  const rows = answer.datasets.map((dataset) => {
    const cells = Array.from({length: 9}, () => element("td"));
    cells[0].textContent = dataset.name;
    cells[1].textContent = dataset.window;
    cells[2].textContent = dataset.retention || "unlimited";
    const count = element("button", {textContent: "count"});
    count.setAttribute("aria-label", `Count ${dataset.name}`);
    count.addEventListener("click", () => attempt(() => fill(dataset, cells)));
    cells[3].append(count);
    return element("tr", {}, ...cells);
  });
  $("dataset-rows").replaceChildren(...rows);
}

async function fill(dataset, cells) {
  const found = await ask(`v1/datasets/${encodeURIComponent(dataset.name)}`);
  const time = found.columns.find((column) => column.name === found.time.column).type;
  const unit = {Second: 1e3, Millisecond: 1, Microsecond: 1e-3, Nanosecond: 1e-6};
  const ms = Object.entries(unit).find(([name]) => time.includes(name) || time.includes({Second: "(s", Millisecond: "(ms",
    Microsecond: "(µs", Nanosecond: "(ns"}[name]));
  const day = (tick) => ms && Math.abs(tick * ms[1]) < 8.6e15 ? iso(tick * ms[1]).slice(0, 10) : String(tick);
  const slices = found.slices;
  const texts = [found.rows.toLocaleString("en"), found.chunks.toLocaleString("en"), sizeText(found.bytes), String(slices.length),
    slices.length ? day(slices[0].ticks[0]) : "", slices.length ? day(slices[slices.length - 1].ticks[1]) : ""];
  texts.forEach((text, place) => {
    cells[3 + place].replaceChildren(text);
    cells[3 + place].className = place < 4 ? "number" : "";
  });
}

// ---------------------------------------------------------------- nodes of a cluster

const NODE_FIGURES = [["load", "Load", sizeText], ["heap_used", "Heap, %", rounded], ["cpu", "CPU, %", rounded],
  ["disk_used", "Disk, %", rounded], ["compactions_pending", "Compactions", rounded], ["hint_files", "Hint files", rounded],
  ["latency_p99/Read", "Read p99, ms", rounded], ["latency_p99/Write", "Write p99, ms", rounded]];
const STALE_MS = 600000;

function rounded(value) {
  return Number(value.toPrecision(3)).toString();
}

/** Tags ops/CLUSTER/NODE/METRIC, which `chronotile serve --nodes` and `chronotile ops record` write, as rows of nodes. */
async function nodes() {
  const metrics = ["up", "cql", ...NODE_FIGURES.map(([metric]) => metric)];
  const found = (await Promise.all(metrics.map((metric) => ask("v1/tags", [["match", `ops/*/${metric}`], ["limit", "1000"]]))))
    .flatMap((answer) => answer.tags);
  $("nodes").hidden = $("nodes-link").hidden = !found.length;
  if (!found.length) return;
  const answer = await ask("v1/latest", found.map((tag) => ["tag", tag.name]));
  const points = new Map(answer.rows.map((point) => [point.tag, point]));
  const byNode = new Map();
  for (const tag of found) {
    const [, cluster, node, ...metric] = tag.name.split("/");
    const key = `${cluster}/${node}`;
    if (!byNode.has(key)) byNode.set(key, {cluster, node, tags: {}});
    byNode.get(key).tags[metric.join("/")] = {tag, point: points.get(tag.name)};
  }
  const heads = NODE_FIGURES.map(([, title]) => element("th", {scope: "col", className: "number", textContent: title}));
  $("node-heads").replaceChildren(...Array.from($("node-heads").children).slice(0, 3), ...heads);
  const rows = [...byNode.entries()].sort(([a], [b]) => a < b ? -1 : 1).map(([, node]) => nodeRow(node));
  $("node-rows").replaceChildren(...rows);
}

function nodeRow({cluster, node, tags}) {
  const [kind, text] = nodeState(tags);
  const cells = [element("td", {textContent: cluster}), element("td", {textContent: node}),
    element("td", {textContent: text, className: `quality ${kind}`})];
  for (const [metric, title, shown] of NODE_FIGURES) {
    const cell = element("td", {className: "number"}, "—");
    const {tag, point} = tags[metric] || {};
    if (point && point.value !== null) {
      const plot = element("button", {textContent: shown(Number(point.value)), title: tag.description});
      plot.setAttribute("aria-label", `Plot ${title} of ${node}`);
      plot.addEventListener("click", () => choose(tag));
      cell.replaceChildren(plot);
    }
    cells.push(cell);
  }
  return element("tr", {}, ...cells);
}

function nodeState({up, cql}) {
  if (!up?.point) return ["none", "not seen"];
  const age = Date.now() - Date.parse(up.point.time);
  if (age > STALE_MS) return ["none", `seen ${stamp(Date.parse(up.point.time)).slice(0, 16).replace("T", " ")}`];
  if (Number(up.point.value) !== 1) return ["bad", "down"];
  return cql?.point && Number(cql.point.value) !== 1 ? ["uncertain", "up, no clients"] : ["good", "up"];
}

// ---------------------------------------------------------------- the page

async function greet() {
  const answer = await ask("ready");
  $("state").textContent = `${answer.state}, engine ${answer.engine}`;
}

async function firstToShow(tags) {
  if (!tags.length) return undefined;
  const answer = await ask("v1/latest", tags.slice(0, 50).map((tag) => ["tag", tag.name]));
  return tags.find((tag) => answer.rows.some((point) => point.tag === tag.name)) || tags[0];
}

function begin() {
  return attempt(async () => {
    await greet();
    await Promise.all([find(), datasets(), nodes()]);
    // Without a link, show the first tag that has points, or else the first tag.
    const first = state.chosen.length || location.search ? undefined : await firstToShow(state.found.filter(numeric));
    if (first) choose(first);
    else await Promise.all([state.placed ? load() : fit(), latest()]);
  });
}

/** Shows the selected time zone. */
function zoned() {
  for (const place of document.querySelectorAll(".zone")) place.textContent = $("zone").value === "local" ? "local" : "UTC";
  fillRange();
}

function tick() {
  if (!$("live").checked || document.hidden) return;
  const span = state.end - state.start;
  show(Date.now() - span, Date.now(), false);
  attempt(async () => { await Promise.all([latest(), nodes()]); });
}

function start() {
  for (const name of AGGREGATES) $("aggregate").append(element("option", {value: name, textContent: name}));
  let typing = 0;
  $("find").addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(() => attempt(find), 150); });
  $("find").addEventListener("keydown", foundKeys);
  $("found").addEventListener("keydown", foundKeys);
  $("plot").addEventListener("keydown", plotKeys);
  for (const name of ["pointerdown", "pointermove", "pointerup"]) $("plot").addEventListener(name, plotPointer);
  $("plot").addEventListener("pointerleave", () => { $("readout").textContent = ""; });
  $("plot").addEventListener("wheel", (event) => {
    event.preventDefault();
    zoom(event.deltaY < 0 ? 0.8 : 1.25, scales().time(place(event)));
  }, {passive: false});
  $("range").addEventListener("submit", (event) => {
    event.preventDefault();
    show(parsed($("start").value), parsed($("end").value));
  });
  $("last").addEventListener("change", () => {
    if ($("last").value) show(Date.now() - Number($("last").value) * 1000, Date.now());
  });
  $("aggregate").addEventListener("change", () => attempt(load));
  $("back").addEventListener("click", back);
  $("fit").addEventListener("click", () => attempt(fit));
  $("live").addEventListener("change", () => { remember(); tick(); });
  $("zone").addEventListener("change", () => { zoned(); attempt(async () => { await Promise.all([load(), latest(), nodes()]); }); });
  $("csv").addEventListener("click", () => save(fileName("csv"), new Blob([csvText()], {type: "text/csv"})));
  $("png").addEventListener("click", () => attempt(async () => save(fileName("png"), await picture())));
  $("token-form").addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem("token", $("token").value);
    begin();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !/INPUT|SELECT/.test(document.activeElement.tagName)) {
      event.preventDefault();
      $("find").focus();
    }
  });
  window.addEventListener("resize", () => draw());
  setInterval(tick, 5000);
  // Link to a view: ?tag=a&tag=b&start=...&end=...&aggregate=...&interval=...&zone=local, or live=LENGTH in ms.
  const link = new URLSearchParams(location.search);
  for (const name of ["aggregate", "interval", "zone"]) if (link.has(name)) $(name).value = link.get(name);
  const live = Number(link.get("live"));
  $("live").checked = live > 0;
  const end = Date.parse(link.get("end")) || Date.now();
  [state.start, state.end] = [Date.parse(link.get("start")) || end - (live || 86400000), end];
  state.placed = live > 0 || link.has("start") || link.has("end");
  zoned();
  attempt(async () => {
    for (const name of link.getAll("tag").slice(0, SERIES_MAX)) state.chosen.push(await ask(`v1/tags/${encodeURIComponent(name)}`));
    await begin();
  });
}

start();
