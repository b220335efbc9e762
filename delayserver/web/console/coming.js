// What is due: the next hour, the next days, the year.

import { Bars, Calendar } from "./charts.js";
import { byId, say } from "./dom.js";
import { count, day, hourOfWeek, messages, minuteOfDay, utcDay } from "./format.js";

const MINUTE_MS = 60_000;
const HOUR_MS = 3_600_000;
const DAY_MS = 86_400_000;
const HOURS = 72;
const DAYS = 371;

const sum = (list) => list.reduce((total, value) => total + value, 0);

export class ComingPanel {
  #minutes = new Bars(byId("minutes"));
  #hours = new Bars(byId("hours"));
  #days = new Calendar(byId("days"));
  #buckets = null;
  #first = 0;

  /** Buckets of minutes, every second. */
  minutes(buckets, nowMs) {
    const first = Math.floor(nowMs / MINUTE_MS) * MINUTE_MS;
    const values = new Array(60).fill(0);
    for (const bucket of buckets) {
      const place = Math.floor((bucket.start_ms - first) / MINUTE_MS);
      if (place >= 0 && place < 60 && bucket.width_ms <= MINUTE_MS) values[place] += bucket.pending;
    }
    const total = sum(values);
    const most = values.indexOf(Math.max(...values));
    this.#minutes.update({
      bars: values.map((value, place) => ({ value, text: `${minuteOfDay(first + place * MINUTE_MS)}: ${messages(value)}` })),
      ticks: ticksOf(first, MINUTE_MS, 60, (ms) => new Date(ms).getMinutes() % 10 === 0, minuteOfDay),
      summary: total ? `${messages(total)} in the next hour, most at ${minuteOfDay(first + most * MINUTE_MS)}.` : "Nothing is due within an hour.",
    });
  }

  /** Buckets of hours and of coarse days. Nothing to do for those of before, until the hour is over. */
  hours(buckets, nowMs) {
    const first = Math.floor(nowMs / HOUR_MS) * HOUR_MS;
    if (buckets === this.#buckets && first === this.#first) return;
    this.#buckets = buckets;
    this.#first = first;
    const until = first + HOURS * HOUR_MS;
    const bars = [];
    const coarse = new Map(buckets.filter((bucket) => bucket.width_ms > HOUR_MS).map((bucket) => [bucket.start_ms, bucket]));
    const fine = new Map();
    for (const bucket of buckets) {
      if (bucket.width_ms <= HOUR_MS) {
        const hour = Math.floor(bucket.start_ms / HOUR_MS) * HOUR_MS;
        fine.set(hour, (fine.get(hour) ?? 0) + bucket.pending);
      }
    }
    let total = 0;
    for (let start = first; start < until;) {
      const dayStart = Math.floor(start / DAY_MS) * DAY_MS;
      const whole = coarse.get(dayStart);
      const hours = whole ? Math.min(dayStart + DAY_MS, until) - start : HOUR_MS;
      const value = whole ? whole.pending / 24 : fine.get(start) ?? 0;
      total += whole ? whole.pending : value;
      bars.push({
        value, start,
        width: hours / HOUR_MS,
        kind: whole ? "wide" : "",
        text: whole ? `${utcDay(dayStart)}: ${messages(whole.pending)}, not split into hours yet` : `${hourOfWeek(start)}: ${messages(value)}`,
      });
      start += hours;
    }
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
