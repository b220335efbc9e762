// What is due: the next hour, the next days, the year.

import { Bars, Calendar } from "./charts.js";
import { byId, say } from "./dom.js";
import { count, day, hourOfWeek, messages, minuteOfDay, utcDay } from "./format.js";

const MINUTE_MS = 60_000;
const HOUR_MS = 3_600_000;
const DAY_MS = 86_400_000;
const MINUTES = 60;
const HOURS = 72;
const DAYS = 371;

const sum = (list) => list.reduce((total, value) => total + value, 0);

export class ComingPanel {
  #minutes = new Bars(byId("minutes"));
  #hours = new Bars(byId("hours"));
  #days = new Calendar(byId("days"));
  #buckets = null;
  #first = 0;

  /** Buckets of minutes, or of windows that are longer, every second. */
  minutes(buckets, nowMs) {
    const first = Math.floor(nowMs / MINUTE_MS) * MINUTE_MS;
    const { bars, total } = barsOf(buckets.filter((bucket) => bucket.width_ms < DAY_MS), first, MINUTE_MS, MINUTES, minuteOfDay);
    const most = bars.reduce((best, bar) => (bar.value > best.value ? bar : best));
    this.#minutes.update({
      bars,
      ticks: ticksOf(first, MINUTE_MS, MINUTES, (ms) => new Date(ms).getMinutes() % 10 === 0, minuteOfDay),
      summary: total ? `${messages(total)} in the next hour, most at ${minuteOfDay(most.start)}.` : "Nothing is due within an hour.",
    });
  }

  /** Buckets of hours, of windows that are longer, and of coarse days. Nothing to do for those of before, until the hour is over. */
  hours(buckets, nowMs) {
    const first = Math.floor(nowMs / HOUR_MS) * HOUR_MS;
    if (buckets === this.#buckets && first === this.#first) return;
    this.#buckets = buckets;
    this.#first = first;
    const { bars, total } = barsOf(buckets, first, HOUR_MS, HOURS, hourOfWeek);
    this.#hours.update({
      bars,
      ticks: ticksOf(first, HOUR_MS, HOURS, (ms) => new Date(ms).getHours() === 0, day),
      summary: total ? `${messages(total)}${bars.some((bar) => bar.kind) ? "; days that are not split into hours yet are pale" : ""}.` : "Nothing is due within three days.",
    });
    this.#year(buckets, nowMs);
  }

  #year(buckets, nowMs) {
    const first = Math.floor(nowMs / DAY_MS) * DAY_MS;
    const values = new Array(DAYS).fill(0);
    let later = 0;
    for (const bucket of buckets) {
      const place = Math.floor((bucket.start_ms - first) / DAY_MS);
      if (place >= DAYS) later += bucket.pending;
      else values[Math.max(place, 0)] += bucket.pending;
    }
    const total = sum(values);
    const busiest = values.indexOf(Math.max(...values));
    this.#days.update({
      first,
      days: values.map((value, place) => ({ value, text: `${utcDay(first + place * DAY_MS)}: ${messages(value)}` })),
      summary: total
        ? `${messages(total)}; the busiest day is ${utcDay(first + busiest * DAY_MS)} with ${count(values[busiest])}.${later ? ` ${messages(later)} later.` : ""}`
        : `Nothing is due within a year.${later ? ` ${messages(later)} later.` : ""}`,
    });
    say(byId("coming-lead"), total + later ? `What is due, and when. The counts lag by some seconds.` : "What is due, and when. A message appears here as soon as it is accepted.");
  }
}

/** Texts under places of equal width whose start has a round local time. */
function ticksOf(first, stepMs, steps, isRound, name) {
  const ticks = [];
  for (let place = 0; place < steps; place += 1) {
    const ms = first + place * stepMs;
    if (isRound(ms)) ticks.push({ at: place, text: name(ms) });
  }
  return ticks;
}

/**
 * Bars of steps from `first` on, as `Bars` takes them, and all messages in them. A bucket that is wider than a step is one bar, as
 * high as if its messages were spread evenly. `name` writes the begin of a step.
 */
function barsOf(buckets, first, stepMs, steps, name) {
  const until = first + steps * stepMs;
  const wide = buckets.filter((bucket) => bucket.width_ms > stepMs);
  const fine = new Map();
  for (const bucket of buckets) {
    if (bucket.width_ms > stepMs) continue;
    const start = Math.floor(bucket.start_ms / stepMs) * stepMs;
    fine.set(start, (fine.get(start) ?? 0) + bucket.pending);
  }
  const bars = [];
  let total = 0;
  for (let start = first; start < until;) {
    const over = wide.find((bucket) => bucket.start_ms <= start && start < bucket.start_ms + bucket.width_ms);
    const next = wide.find((bucket) => bucket.start_ms > start)?.start_ms ?? until;
    const end = Math.min(over ? over.start_ms + over.width_ms : Math.min(start + stepMs, next), until);
    const value = over ? (over.pending * stepMs) / over.width_ms : fine.get(start) ?? 0;
    total += over ? over.pending : value;
    bars.push({ value, start, width: (end - start) / stepMs, kind: over?.width_ms >= DAY_MS ? "wide" : "", text: textOf(over, start, value, name) });
    start = end;
  }
  return { bars, total };
}

function textOf(over, start, value, name) {
  if (!over) return `${name(start)}: ${messages(value)}`;
  if (over.width_ms < DAY_MS) return `${name(over.start_ms)} to ${name(over.start_ms + over.width_ms)}: ${messages(over.pending)}`;
  return `${utcDay(over.start_ms)}: ${messages(over.pending)}, not split into hours yet`;
}
