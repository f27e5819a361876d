"use strict";
// Requests by state on slots, and everything that is no time line: acceptance, latencies, policies.

function lanes(data, span) {
  const box = section("requests on slots, by state"), note = element("div", { className: "tip" });
  const legend = element("div", { className: "legend" });
  for (const [kind, name] of Object.entries(NAMES)) {
    const mark = element("i");
    mark.style.background = `var(${COLOURS[kind]})`;
    legend.append(element("span", {}, mark, name));
  }
  const canvas = element("canvas", { className: "lanes" }), height = 14;
  box.append(legend, canvas, note);
  const { lane, kind, begin, end, request, kinds, labels, names } = data;
  const order = begin;  // spans come in order of their begin
  const draw = () => {
    const ratio = window.devicePixelRatio || 1, width = box.clientWidth - 26;
    canvas.width = width * ratio;
    canvas.height = (labels.length * height + 4) * ratio;
    canvas.style.height = `${labels.length * height + 4}px`;
    const pen = canvas.getContext("2d"), scale = (width - 60) / (span.to - span.from);
    pen.scale(ratio, ratio);
    pen.font = "11px sans-serif";
    pen.fillStyle = colour("--faint");
    labels.forEach((label, index) => pen.fillText(label, 0, index * height + 11));
    const shades = kinds.map((one) => colour(COLOURS[one]));
    const last = firstAt(order, span.to), drawn = new Float64Array(labels.length).fill(-1);
    let count = 0;
    for (let at = 0; at < last; at++) {
      if (end[at] < span.from) continue;
      const x = Math.max(60, 60 + (begin[at] - span.from) * scale), right = 60 + (Math.min(end[at], span.to) - span.from) * scale;
      if (right < drawn[lane[at]] + 0.5) continue;  // thinner than what is there already
      pen.fillStyle = shades[kind[at]];
      pen.fillRect(x, lane[at] * height + 2, Math.max(0.7, right - x), height - 3);
      drawn[lane[at]] = right;
      count += 1;
    }
    canvas.dataset.marks = count;
  };
  const at = (event) => {
    const place = canvas.getBoundingClientRect(), scale = (place.width - 60) / (span.to - span.from);
    return [span.from + (event.clientX - place.left - 60) / scale, Math.floor((event.clientY - place.top) / height)];
  };
  canvas.addEventListener("pointermove", (event) => {
    const [ms, row] = at(event);
    for (let index = firstAt(order, ms) - 1; index >= 0; index--) {
      if (lane[index] !== row) continue;
      if (end[index] < ms) break;
      const known = names[request[index]] ? ` (${names[request[index]]})` : "";
      note.textContent = `${labels[row]}: request ${request[index]}${known}, ${NAMES[kinds[kind[index]]]}, ` +
        `${(begin[index] / 1000).toFixed(4)} to ${(end[index] / 1000).toFixed(4)} s`;
      return;
    }
    note.textContent = "";
  });
  canvas.addEventListener("wheel", (event) => { event.preventDefault(); span.zoom(event.deltaY > 0 ? 1.25 : 0.8, at(event)[0]); }, { passive: false });
  let from = null;
  canvas.addEventListener("pointerdown", (event) => { from = at(event)[0]; });
  canvas.addEventListener("pointerup", (event) => {
    const to = at(event)[0];
    if (from !== null && Math.abs(to - from) > (span.to - span.from) / 200) span.set(Math.min(from, to), Math.max(from, to));
    from = null;
  });
  canvas.addEventListener("dblclick", () => span.set(0, span.end));
  span.watchers.push(draw);
  span.keys(box);
  onWidth(box, draw);
  draw();
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
}

function bars(title, rows, unit) {
  const box = section(title), most = Math.max(1e-9, ...rows.map((row) => row.value));
  const table = element("table");
  for (const row of rows) {
    const bar = element("i");
    bar.style.width = `${Math.round(100 * row.value / most)}%`;
    table.append(element("tr", {}, element("td", { textContent: row.label }),
      element("td", { textContent: row.text || row.value.toPrecision(4) + (unit || "") }), element("td", { className: "bar" }, bar)));
  }
  box.append(table);
}

function histogram(title, found) {
  if (!found || !found.counts.length) return;
  bars(title, found.counts.map((count, index) => ({ label: `${found.edges[index].toPrecision(3)} ms`, value: count, text: String(count) })));
}

function policies(rows) {
  const box = section("policies"), table = element("table");
  const columns = [["policy", "policy"], ["goodput_per_s", "goodput, req/s"], ["tokens_per_s", "tokens/s"], ["tokens_per_s_per_user", "tokens/s a user"],
    ["ttft_ms_p50", "TTFT p50, ms"], ["ttft_ms_p99", "TTFT p99"], ["itl_ms_p50", "ITL p50, ms"], ["itl_ms_p99", "ITL p99"],
    ["acceptance_length", "acceptance length"], ["zero_draft_share", "zero drafts"]];
  table.append(element("tr", {}, ...columns.map(([, label]) => element("th", { textContent: label }))));
  for (const row of rows) {
    const shown = (value) => value == null ? "-" : typeof value === "string" ? value : value.toPrecision(4);
    table.append(element("tr", {}, ...columns.map(([key]) => element("td", { textContent: shown(row[key]) }))));
  }
  box.append(table);
  for (const [key, label] of columns.slice(2, 6)) bars(`policies: ${label}`, rows.map((row) => ({ label: row.policy, value: row[key] || 0 })));
}

window.addEventListener("error", (event) => { document.body.dataset.error = event.message; });
window.addEventListener("unhandledrejection", (event) => { document.body.dataset.error = String(event.reason); });

load().then((data) => {
  document.getElementById("about").textContent = data.about;
  const span = new Span(data.end_ms);
  if (data.policies) policies(data.policies);
  if (data.spans) lanes({ ...data.spans, lane: column(data.spans, "lane"), kind: column(data.spans, "kind"),
    begin: column(data.spans, "begin"), end: column(data.spans, "end"), request: column(data.spans, "request") }, span);
  for (const [name, raw] of Object.entries(data.steps || {})) stepCharts(raw, span, name);
  if (data.acceptance) bars("drafts that stood, by position (of those that were verified)",
    data.acceptance.map((share, index) => ({ label: `position ${index + 1}`, value: share })));
  histogram("time to the first token", data.ttft);
  histogram("time between tokens", data.itl);
  document.body.dataset.ready = "yes";
});
