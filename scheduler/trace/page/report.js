"use strict";
// One page, no network. Data comes as deflated JSON; columns of steps are typed arrays in base64 inside it.
const COLOURS = { queue: "--queue", seeding: "--seeding", positive: "--positive", zero: "--zero", retiring: "--retiring",
  quarantined: "--quarantined" };
const NAMES = { queue: "queue", seeding: "seeding", positive: "positive draft", zero: "zero draft", retiring: "retiring slot",
  quarantined: "quarantined slot" };
const main = document.getElementById("charts");
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const bytesOf = (text) => Uint8Array.from(atob(text), (one) => one.charCodeAt(0));

async function load() {
  const stream = new Blob([bytesOf(document.getElementById("data").textContent.trim())]).stream();
  return JSON.parse(await new Response(stream.pipeThrough(new DecompressionStream("deflate"))).text());
}

function element(kind, options = {}, ...children) {
  const made = Object.assign(document.createElement(kind), options);
  made.append(...children);
  return made;
}

function section(title, label) {
  const made = element("section", { tabIndex: 0 }, element("h2", { textContent: title }));
  made.setAttribute("role", "group");
  made.setAttribute("aria-label", label || title);
  main.append(made);
  return made;
}

function onWidth(box, act) {
  let known = box.clientWidth - 26;
  new ResizeObserver(() => requestAnimationFrame(() => {
    const width = box.clientWidth - 26;
    if (width !== known && width > 0) act(known = width);
  })).observe(box);
}

// ---- a shared window of time --------------------------------------------------------------------------------------

class Span {
  constructor(end) { this.end = Math.max(end, 1e-6); this.from = 0; this.to = this.end; this.watchers = []; }
  set(from, to) {
    const width = Math.min(Math.max(to - from, this.end / 1e7), this.end);
    this.from = Math.min(Math.max(0, from), this.end - width);
    this.to = this.from + width;
    for (const watch of this.watchers) watch();
  }
  move(share) { const by = (this.to - this.from) * share; this.set(this.from + by, this.to + by); }
  zoom(factor, at = (this.from + this.to) / 2) { this.set(at - (at - this.from) * factor, at + (this.to - at) * factor); }
  keys(node) {
    node.addEventListener("keydown", (event) => {
      const act = { ArrowLeft: () => this.move(-0.2), ArrowRight: () => this.move(0.2), "+": () => this.zoom(0.5),
        "=": () => this.zoom(0.5), "-": () => this.zoom(2), 0: () => this.set(0, this.end) }[event.key];
      if (act) { event.preventDefault(); act(); }
    });
  }
}

// ---- steps: as many buckets as fit, the mean of each, so that a million steps are a thousand points ---------------------

function column(data, name) {
  const kinds = { u16: Uint16Array, u32: Uint32Array, f64: Float64Array };
  const [kind, text] = data[name];
  return new kinds[kind](bytesOf(text).buffer);
}

function firstAt(times, value) {
  let low = 0, high = times.length;
  while (low < high) { const middle = (low + high) >> 1; if (times[middle] < value) low = middle + 1; else high = middle; }
  return low;
}

function buckets(times, columns, from, to, most, took) {
  const first = Math.max(0, firstAt(times, from) - 1), last = Math.min(times.length, firstAt(times, to) + 1);
  const size = Math.max(1, Math.ceil((last - first) / most));
  const made = [[], ...columns.map(() => [])], wide = (to - from) / 60;
  const idle = (at) => times[at + 1] - times[at] - took[at] > wide;
  for (let begin = first, end = first; begin < last; begin = end) {
    end = Math.min(last, begin + size);
    for (let at = begin; at < end - 1; at++) if (idle(at)) { end = at + 1; break; }
    made[0].push(times[begin]);
    columns.forEach((values, index) => {
      let sum = 0;
      for (let at = begin; at < end; at++) sum += values[at];
      made[index + 1].push(sum / (end - begin));
    });
    if (end < last && idle(end - 1)) {  // nothing ran for a while: no line across
      made[0].push((times[end - 1] + times[end]) / 2);
      columns.forEach((_, index) => made[index + 1].push(null));
    }
  }
  return { data: made, size };
}

function stepChart(title, steps, shown, span, unit) {
  const box = section(title), note = element("div", { className: "tip" });
  const times = steps.begin_ms, columns = shown.map((one) => steps[one.key]);
  const plot = new uPlot({
    width: box.clientWidth - 26, height: 190, scales: { x: { time: false, range: () => [span.from, span.to] } },
    cursor: { drag: { x: true, y: false, setScale: false } },
    axes: [{ stroke: () => colour("--faint"), grid: { stroke: () => colour("--line") }, space: 90,
      values: (_, all) => all.map((ms) => `${+(ms / 1000).toFixed(4)} s`) },
      { stroke: () => colour("--faint"), grid: { stroke: () => colour("--line") }, label: unit }],
    series: [{ label: "time", value: (_, ms) => ms == null ? "" : (ms / 1000).toFixed(4) + " s" },
      ...shown.map((one) => ({ label: one.label, stroke: () => colour(one.colour), width: 1.5, value: (_, v) => v == null ? "" : v.toFixed(2) }))],
    hooks: {
      setSelect: [(self) => { if (self.select.width > 4) span.set(self.posToVal(self.select.left, "x"), self.posToVal(self.select.left + self.select.width, "x")); }],
      setCursor: [(self) => {
        if (self.cursor.left == null || self.cursor.left < 0) return;
        const at = Math.max(0, firstAt(times, self.posToVal(self.cursor.left, "x")) - 1);
        note.textContent = `step ${steps.first + at}: ${(times[at] / 1000).toFixed(4)} s, ${steps.took_ms[at].toFixed(2)} ms, ${steps.rows[at]} rows, ` +
          `${steps.chunk[at]} chunk tokens, ${steps.verified[at]} drafts verified, ${steps.emitted[at]} tokens emitted`;
      }],
    },
  }, [[], ...shown.map(() => [])], box);
  box.append(note);
  plot.over.addEventListener("dblclick", () => span.set(0, span.end));
  const draw = () => {
    const found = buckets(times, columns, span.from, span.to, 1200, steps.took_ms);
    plot.setData(found.data);
  };
  span.watchers.push(draw);
  span.keys(box);
  onWidth(box, (width) => plot.setSize({ width, height: 190 }));
  draw();
}

function stepsOf(raw) {
  const steps = { first: raw.first };
  for (const name of ["begin", "took", "rows", "chunk", "verified", "emitted", "queue", "decodes"]) if (raw[name]) steps[name] = column(raw, name);
  steps.begin_ms = steps.begin;
  steps.took_ms = Float64Array.from(steps.took, (one) => one / 100);
  steps.draft_len = Float64Array.from(steps.verified, (one, at) => steps.decodes[at] ? one / steps.decodes[at] : 0);
  return steps;
}

function stepCharts(raw, span, name) {
  const steps = stepsOf(raw), of = name ? `${name}: ` : "";
  stepChart(`${of}rows of a step and the queue`, steps, [{ key: "rows", label: "rows", colour: "--seeding" },
    ...(steps.queue ? [{ key: "queue", label: "waiting", colour: "--queue" }] : [])], span, "requests");
  stepChart(`${of}draft length and tokens emitted`, steps, [{ key: "draft_len", label: "drafts verified a decode row", colour: "--positive" },
    { key: "emitted", label: "tokens emitted", colour: "--zero" }], span, "tokens");
  stepChart(`${of}time of a step`, steps, [{ key: "took_ms", label: "ms", colour: "--retiring" }], span, "ms");
}
