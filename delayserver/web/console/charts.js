// Charts in SVG: bars, steps of a distribution, a spark line, a calendar. A chart can be read by pointer and by arrow keys.

import { announce, h, s, say, set } from "./dom.js";
import { minuteOfDay } from "./format.js";

/** Keep a drawing as wide as its place. `draw(width)` is called again when the width changes. */
function follow(element, draw) {
  let width = 0;
  new ResizeObserver(() => {
    const now = Math.floor(element.clientWidth);
    if (now && now !== width) {
      width = now;
      draw(now);
    }
  }).observe(element);
}

/** A round upper end of an axis. */
export function niceMax(value) {
  if (value <= 4) return 4;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].map((step) => step * power).find((step) => step >= value);
}

/** What the pointer or the arrow keys point at. `pick(index)` shows a mark, or takes it away for null. */
class Reading {
  constructor(frame, line, pick, indexAt, step = 1) {
    this.frame = frame;
    this.line = line;
    this.pick = pick;
    this.at = null;
    this.texts = [];
    this.summary = "";
    this.step = step;
    frame.addEventListener("pointermove", (event) => {
      const box = frame.getBoundingClientRect();
      this.#show(indexAt(event.clientX - box.left, event.clientY - box.top));
    });
    frame.addEventListener("pointerleave", () => this.#show(null));
    frame.addEventListener("blur", () => this.#show(null));
    frame.addEventListener("keydown", (event) => this.#key(event));
  }

  #key(event) {
    const last = this.texts.length - 1;
    const by = { ArrowRight: this.step, ArrowLeft: -this.step, ArrowDown: 1, ArrowUp: -1 }[event.key];
    let to = null;
    if (by !== undefined) to = this.at === null ? (by > 0 ? 0 : last) : this.at + by;
    else if (event.key === "Home") to = 0;
    else if (event.key === "End") to = last;
    else if (event.key === "Escape" && this.at !== null) {
      this.#show(null);
      return;
    } else return;
    event.preventDefault();
    if (to < 0 || to > last) return;
    this.#show(to);
    announce(this.texts[to]);
  }

  #show(index) {
    if (index !== null && (index < 0 || index >= this.texts.length)) index = null;
    this.at = index;
    this.pick(index);
    this.line.classList.toggle("reads", index !== null);
    say(this.line, index === null ? this.summary : this.texts[index]);
  }

  /** New data: `texts` for each place, and the summary that stands there otherwise. */
  update(texts, summary) {
    this.texts = texts;
    this.summary = summary;
    if (this.at !== null && this.at >= texts.length) this.at = null;
    this.pick(this.at);
    say(this.line, this.at === null ? summary : texts[this.at]);
    set(this.frame, "aria-label", `${summary} The arrow keys read single values.`);
  }
}

/** The frame of a chart in a figure, with its line of text. */
function frameOf(figure, height) {
  const svg = s("svg", { height, "aria-hidden": "true", focusable: "false" });
  const frame = h("div", { class: "frame", tabindex: "0", role: "img", "aria-roledescription": "chart" }, svg);
  const line = h("p", { class: "reading" });
  figure.append(frame, line);
  return { svg, frame, line };
}

/**
 * Bars. Data: `{bars: [{value, text, kind?, width?}], ticks: [{at, text}], summary}`; `at` counts bars, `width` is a number of
 * bars (1 by default).
 */
export class Bars {
  constructor(figure, { height = 150, unit = "" } = {}) {
    const { svg, frame, line } = frameOf(figure, height);
    this.height = height;
    this.unit = unit;
    this.svg = svg;
    this.grid = s("g", { class: "grid" });
    this.body = s("g");
    this.axis = s("g", { class: "axis" });
    svg.append(this.grid, this.body, this.axis);
    this.width = 0;
    this.data = null;
    this.places = [];
    this.reading = new Reading(frame, line, (index) => this.#pick(index), (x) => this.#indexAt(x));
    follow(frame, (width) => {
      this.width = width;
      set(svg, "width", width);
      set(svg, "viewBox", `0 0 ${width} ${height}`);
      this.#draw();
    });
  }

  update(data) {
    this.data = data;
    this.reading.update(data.bars.map((bar) => bar.text), data.summary);
    this.#draw();
  }

  #pick(index) {
    [...this.body.children].forEach((bar, place) => bar.classList.toggle("picked", place === index));
  }

  #indexAt(x) {
    const found = this.places.findIndex(([left, width]) => x >= left && x < left + width);
    return found < 0 ? null : found;
  }

  #draw() {
    if (!this.data || !this.width) return;
    const { bars, ticks } = this.data;
    const [left, right, top, bottom] = [34, 2, 8, 20];
    const total = bars.reduce((sum, bar) => sum + (bar.width ?? 1), 0) || 1;
    const step = (this.width - left - right) / total;
    const most = niceMax(Math.max(0, ...bars.map((bar) => bar.value)));
    const tall = this.height - top - bottom;
    const base = top + tall;
    const gap = step > 7 ? 2 : step > 3 ? 1 : 0.5;
    this.places = [];
    let at = 0;
    fit(this.body, bars.length, () => s("rect"));
    bars.forEach((bar, place) => {
      const x = left + at * step;
      const width = (bar.width ?? 1) * step;
      at += bar.width ?? 1;
      this.places.push([x, width]);
      const size = bar.value > 0 ? Math.max(2, (bar.value / most) * tall) : 0;
      const rect = this.body.children[place];
      const rounded = Math.min(2, (width - gap) / 3, size / 2);
      set(rect, "x", (x + gap / 2).toFixed(2));
      set(rect, "width", Math.max(width - gap, 0.5).toFixed(2));
      set(rect, "y", (base - size).toFixed(2));
      set(rect, "height", size.toFixed(2));
      set(rect, "rx", Math.max(rounded, 0).toFixed(2));
      set(rect, "class", `bar ${bar.kind ?? ""}${this.reading.at === place ? " picked" : ""}`);
    });
    const lines = most > 4 ? [0.5, 1] : [0.5, 1].filter((share) => Number.isInteger(share * most));
    fit(this.grid, lines.length + 1, () => s("g", {}, s("line"), s("text")));
    [0, ...lines].forEach((share, place) => {
      const [rule, text] = this.grid.children[place].children;
      const y = base - share * tall;
      for (const [name, value] of Object.entries({ x1: left, x2: this.width - right, y1: y, y2: y })) set(rule, name, value);
      set(this.grid.children[place], "class", share ? "" : "base");
      set(text, "x", left - 6);
      set(text, "y", y + 3.5);
      set(text, "text-anchor", "end");
      say(text, share ? axisNumber(share * most) : "");
    });
    drawTicks(this.axis, ticks.map((tick) => ({ x: left + tick.at * step, text: tick.text })), this.height - 5, this.width);
  }
}

const axisFormat = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const axisNumber = (value) => axisFormat.format(value);

/** As many children as wanted. */
function fit(parent, wanted, make) {
  while (parent.children.length < wanted) parent.append(make());
  while (parent.children.length > wanted) parent.lastElementChild.remove();
}

/** Texts under an axis, without those that have no room. */
function drawTicks(axis, ticks, y, width) {
  let end = -Infinity;
  const kept = ticks.filter((tick) => {
    const half = tick.text.length * 3.1;
    if (tick.x - half < end + 8) return false;
    end = tick.x + half;
    return true;
  });
  fit(axis, kept.length, () => s("text"));
  kept.forEach((tick, place) => {
    const text = axis.children[place];
    const half = tick.text.length * 3.1;
    const anchor = tick.x + half > width ? "end" : tick.x - half < 0 ? "start" : "middle";
    set(text, "x", (anchor === "end" ? width : tick.x).toFixed(1));
    set(text, "y", y);
    set(text, "text-anchor", anchor);
    say(text, tick.text);
  });
}

/** How far a share is up the axis of a distribution: each nine takes the same room. 0 to 1. */
const NINES = 4;
const nines = (share) => Math.min(-Math.log10(Math.max(1 - share, 10 ** -NINES)), NINES) / NINES;

/**
 * A cumulative distribution over logarithmic time. Data: `{bounds, lines: [{counts, kind}], marks: [{us, text}],
 * texts, ticks, summary}`: the first line is read.
 */
export class Distribution {
  constructor(figure, { height = 190 } = {}) {
    const { svg, frame, line } = frameOf(figure, height);
    this.height = height;
    this.grid = s("g", { class: "grid" });
    this.body = s("g");
    this.marks = s("g", { class: "marks" });
    this.cursor = s("line", { class: "cursor", visibility: "hidden" });
    this.axis = s("g", { class: "axis" });
    svg.append(this.grid, this.body, this.cursor, this.marks, this.axis);
    this.width = 0;
    this.data = null;
    this.reading = new Reading(frame, line, (index) => this.#pick(index), (x) => this.#indexAt(x));
    follow(frame, (width) => {
      this.width = width;
      set(svg, "width", width);
      set(svg, "viewBox", `0 0 ${width} ${height}`);
      this.#draw();
    });
  }

  update(data) {
    this.data = data;
    this.reading.update(data.texts, data.summary);
    this.#draw();
  }

  #x(us) {
    const { bounds } = this.data;
    const [low, high] = [Math.log(bounds[0] / 2), Math.log(bounds.at(-1))];
    const share = (Math.log(Math.max(us, bounds[0] / 2)) - low) / (high - low);
    return 42 + share * (this.width - 42 - 10);
  }

  #indexAt(x) {
    const near = this.data?.bounds.findIndex((bound) => this.#x(bound) >= x - 4) ?? -1;
    return near < 0 ? null : near;
  }

  #pick(index) {
    const shown = index !== null && this.data && this.width;
    set(this.cursor, "visibility", shown ? "visible" : "hidden");
    if (!shown) return;
    const x = this.#x(this.data.bounds[index]);
    for (const [name, value] of Object.entries({ x1: x, x2: x, y1: 8, y2: this.height - 20 })) set(this.cursor, name, value);
  }

  #draw() {
    if (!this.data || !this.width) return;
    const { bounds, lines, marks, ticks } = this.data;
    const [top, bottom] = [10, 20];
    const tall = this.height - top - bottom;
    const y = (share) => top + (1 - nines(share)) * tall;
    fit(this.grid, 5, () => s("g", {}, s("line"), s("text")));
    [0, 0.9, 0.99, 0.999, 1].forEach((share, place) => {
      const [rule, text] = this.grid.children[place].children;
      const height = y(share);
      for (const [name, value] of Object.entries({ x1: 42, x2: this.width - 2, y1: height, y2: height })) set(rule, name, value);
      set(this.grid.children[place], "class", share ? "" : "base");
      set(text, "x", 36);
      set(text, "y", height + 3.5);
      set(text, "text-anchor", "end");
      say(text, share === 0 ? "0" : share === 1 ? "100 %" : `${+(share * 100).toFixed(1)} %`);
    });
    const drawn = [];
    fit(this.body, lines.length, () => s("path"));
    lines.forEach((each, place) => {
      const total = each.counts.reduce((sum, value) => sum + value, 0);
      let path = "";
      let sum = 0;
      if (total) {
        path = `M${this.#x(bounds[0] / 2).toFixed(1)} ${y(0).toFixed(1)}`;
        bounds.forEach((bound, index) => {
          sum += each.counts[index] ?? 0;
          path += `L${this.#x(bound).toFixed(1)} ${y(sum / total).toFixed(1)}`;
          if (place === 0) drawn.push([this.#x(bound), y(sum / total)]);
        });
      }
      set(this.body.children[place], "d", path);
      set(this.body.children[place], "class", `line ${each.kind}`);
    });
    fit(this.marks, marks.length, () => s("g", {}, s("circle", { r: 4 }), s("text")));
    marks.forEach((mark, place) => {
      const [dot, text] = this.marks.children[place].children;
      const cx = this.#x(mark.us);
      const cy = heightAt([[this.#x(bounds[0] / 2), y(0)], ...drawn], cx);
      set(dot, "cx", cx.toFixed(1));
      set(dot, "cy", cy.toFixed(1));
      // The line rises to the right, so above it to the left is room.
      const left = cx - mark.text.length * 6.6 > 46;
      set(text, "x", (left ? cx - 8 : cx + 9).toFixed(1));
      set(text, "text-anchor", left ? "end" : "start");
      set(text, "y", (left ? cy - 6 : cy + 4).toFixed(1));
      say(text, mark.text);
    });
    drawTicks(this.axis, ticks.map((tick) => ({ x: this.#x(tick.us), text: tick.text })), this.height - 5, this.width);
    this.#pick(this.reading.at);
  }
}

/** The height of a drawn line at a place: marks lie on it. */
function heightAt(points, x) {
  const after = points.findIndex(([at]) => at >= x - 0.01);
  if (after <= 0) return points.at(after < 0 ? -1 : 0)[1];
  const [[x1, y1], [x2, y2]] = [points[after - 1], points[after]];
  return y1 + ((x - x1) / (x2 - x1)) * (y2 - y1);
}

// A spark line covers so long a time.
const SPARK_MS = 120_000;

/** A small line without axes. */
export class Spark {
  constructor(place, { height = 34 } = {}) {
    this.height = height;
    this.area = s("path", { class: "area" });
    this.path = s("path", { class: "line" });
    this.svg = s("svg", { class: "spark", height, "aria-hidden": "true", focusable: "false" }, this.area, this.path);
    place.append(this.svg);
    this.width = 0;
    this.values = [];
    follow(place, (width) => {
      this.width = width;
      set(this.svg, "width", width);
      set(this.svg, "viewBox", `0 0 ${width} ${height}`);
      this.#draw();
    });
  }

  /** Values, `[{at, value}]`, the newest last: those of the last two minutes. */
  update(values) {
    this.values = values;
    this.#draw();
  }

  #draw() {
    if (!this.width) return;
    const most = Math.max(1e-9, ...this.values.map((each) => each.value));
    const tall = this.height - 3;
    const end = this.values.at(-1)?.at ?? 0;
    const points = this.values.map(({ at, value }) => [this.width * (1 - (end - at) / SPARK_MS), this.height - 1 - (value / most) * tall]);
    const start = points[0]?.[0] ?? 0;
    const line = points.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L");
    set(this.path, "d", points.length > 1 ? `M${line}` : "");
    set(this.area, "d", points.length > 1 ? `M${line}L${this.width} ${this.height}L${start.toFixed(1)} ${this.height}Z` : "");
  }
}

/**
 * Lines over the last hour. Data: `{from, to, points: [{at, values, text}], summary}`: milliseconds, and a value for each line or
 * null where nothing is known. `kinds` names the lines; `log` draws decades of the same height, and `tick` writes a value of the axis.
 */
export class Lines {
  constructor(figure, kinds, { height = 150, log = false, tick = axisNumber } = {}) {
    const { svg, frame, line } = frameOf(figure, height);
    this.height = height;
    this.log = log;
    this.tick = tick;
    this.grid = s("g", { class: "grid" });
    this.body = s("g", {}, ...kinds.map((kind) => s("path", { class: `line ${kind}` })));
    this.cursor = s("line", { class: "cursor", visibility: "hidden" });
    this.axis = s("g", { class: "axis" });
    svg.append(this.grid, this.body, this.cursor, this.axis);
    this.width = 0;
    this.data = null;
    this.reading = new Reading(frame, line, (index) => this.#pick(index), (x) => this.#indexAt(x));
    follow(frame, (width) => {
      this.width = width;
      set(svg, "width", width);
      set(svg, "viewBox", `0 0 ${width} ${height}`);
      this.#draw();
    });
  }

  update(data) {
    this.data = data;
    this.reading.update(data.points.map((point) => point.text), data.summary);
    this.#draw();
  }

  #x(at) {
    const { from, to } = this.data;
    return 48 + ((at - from) / (to - from)) * (this.width - 48 - 6);
  }

  #indexAt(x) {
    const { points } = this.data ?? { points: [] };
    if (!points.length) return null;
    const far = points.map((point) => Math.abs(this.#x(point.at) - x));
    return far.indexOf(Math.min(...far));
  }

  #pick(index) {
    const shown = index !== null && this.data && this.width;
    set(this.cursor, "visibility", shown ? "visible" : "hidden");
    if (!shown) return;
    const x = this.#x(this.data.points[index].at);
    for (const [name, value] of Object.entries({ x1: x, x2: x, y1: 8, y2: this.height - 20 })) set(this.cursor, name, value);
  }

  #draw() {
    if (!this.data || !this.width) return;
    const { from, to, points } = this.data;
    const [top, bottom] = [10, 20];
    const tall = this.height - top - bottom;
    const values = points.flatMap((point) => point.values).filter((value) => value !== null);
    const most = Math.max(0, ...values);
    // Of a logarithmic axis, whole decades.
    const [low, high] = this.log
      ? [Math.floor(Math.log10(Math.max(100, Math.min(...values, most)))), Math.max(Math.ceil(Math.log10(Math.max(most, 1_000))), 3)] : [0, niceMax(most)];
    const share = (value) => (this.log ? (Math.log10(Math.max(value, 10 ** low)) - low) / (Math.max(high - low, 1)) : value / high);
    const y = (value) => top + (1 - Math.min(share(value), 1)) * tall;
    const lines = this.log ? Array.from({ length: high - low + 1 }, (_, place) => 10 ** (low + place)) : [0, high / 2, high];
    fit(this.grid, lines.length, () => s("g", {}, s("line"), s("text")));
    lines.forEach((value, place) => {
      const [rule, text] = this.grid.children[place].children;
      for (const [name, at] of Object.entries({ x1: 48, x2: this.width - 6, y1: y(value), y2: y(value) })) set(rule, name, at);
      set(this.grid.children[place], "class", place ? "" : "base");
      set(text, "x", 42);
      set(text, "y", y(value) + 3.5);
      set(text, "text-anchor", "end");
      say(text, this.tick(value));
    });
    [...this.body.children].forEach((path, line) => {
      let d = "";
      let pen = "M";
      for (const point of points) {
        const value = point.values[line];
        if (value !== null) d += `${pen}${this.#x(point.at).toFixed(1)} ${y(value).toFixed(1)}`;
        pen = value === null ? "M" : "L";
      }
      set(path, "d", d);
    });
    const ticks = [];
    for (let at = Math.ceil(from / TEN_MINUTES_MS) * TEN_MINUTES_MS; at <= to; at += TEN_MINUTES_MS) ticks.push({ x: this.#x(at), text: minuteOfDay(at) });
    drawTicks(this.axis, ticks, this.height - 5, this.width);
    this.#pick(this.reading.at);
  }
}

const TEN_MINUTES_MS = 600_000;
const DAY_MS = 86_400_000;

/** A heat map of days, a column a week. Data: `{first, days: [{value, text}], summary}`; `first` is a start of day (UTC). */
export class Calendar {
  constructor(figure) {
    const { svg, frame, line } = frameOf(figure, 120);
    frame.classList.add("calendar");
    this.svg = svg;
    this.cells = s("g");
    this.axis = s("g", { class: "axis" });
    svg.append(this.cells, this.axis);
    this.width = 0;
    this.data = null;
    this.reading = new Reading(frame, line, (index) => this.#pick(index), (x, y) => this.#indexAt(x, y), 7);
    follow(frame, (width) => {
      this.width = width;
      this.#draw();
    });
  }

  /** Weeks that have room. */
  get weeks() {
    return this.width && this.width < 560 ? 27 : 53;
  }

  update(data) {
    this.data = data;
    this.#draw();
  }

  #pick(index) {
    this.cells.querySelector(".picked")?.classList.remove("picked");
    if (index !== null) this.cells.children[index]?.classList.add("picked");
  }

  #indexAt(x, y) {
    const column = Math.floor((x - 30) / this.step);
    const row = Math.floor((y - 16) / this.step);
    if (!this.data || row < 0 || row > 6 || column < 0) return null;
    const index = column * 7 + row - this.lead;
    return index >= 0 && index < this.shown ? index : null;
  }

  #draw() {
    if (!this.data || !this.width) return;
    const { first, days, summary } = this.data;
    this.step = Math.min((this.width - 32) / this.weeks, 26);
    const side = this.step - Math.max(1.5, this.step * 0.16);
    // Monday is the first row.
    this.lead = (new Date(first).getUTCDay() + 6) % 7;
    this.shown = Math.min(days.length, this.weeks * 7 - this.lead);
    const height = Math.ceil(16 + 7 * this.step + 2);
    for (const [name, value] of Object.entries({ width: this.width, height, viewBox: `0 0 ${this.width} ${height}` })) {
      set(this.svg, name, value);
    }
    const most = Math.max(1, ...days.slice(0, this.shown).map((each) => each.value));
    fit(this.cells, this.shown, () => s("rect"));
    const months = [];
    for (let place = 0; place < this.shown; place += 1) {
      const at = place + this.lead;
      const cell = this.cells.children[place];
      const column = Math.floor(at / 7);
      const { value } = days[place];
      const level = value ? Math.max(1, Math.ceil((Math.log(1 + value) / Math.log(1 + most)) * 5)) : 0;
      set(cell, "x", (30 + column * this.step).toFixed(2));
      set(cell, "y", (16 + (at % 7) * this.step).toFixed(2));
      set(cell, "width", side.toFixed(2));
      set(cell, "height", side.toFixed(2));
      set(cell, "rx", Math.min(3, side / 4).toFixed(2));
      set(cell, "class", `day l${level}${this.reading.at === place ? " picked" : ""}`);
      const moment = new Date(first + place * DAY_MS);
      if (place === 0 || moment.getUTCDate() === 1) {
        months.push({ x: 30 + column * this.step, text: moment.toLocaleDateString("en", { month: "short", timeZone: "UTC" }) });
      }
    }
    if (months.length > 1 && months[1].x - months[0].x < 26) months.shift();
    fit(this.axis, months.length + 3, () => s("text"));
    months.forEach((month, place) => {
      const text = this.axis.children[place];
      set(text, "x", month.x.toFixed(1));
      set(text, "y", 10);
      set(text, "text-anchor", "start");
      say(text, month.text);
    });
    ["Mon", "Wed", "Fri"].forEach((name, place) => {
      const text = this.axis.children[months.length + place];
      set(text, "x", 24);
      set(text, "y", (16 + place * 2 * this.step + side / 2 + 3.5).toFixed(1));
      set(text, "text-anchor", "end");
      say(text, name);
    });
    this.reading.update(days.slice(0, this.shown).map((each) => each.text), summary);
  }
}
