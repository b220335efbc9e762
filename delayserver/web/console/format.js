// Numbers, durations and times as people read them. Pure functions, but for what “today” is.

import { nowMs } from "./clock.js";

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const clockFine = new Intl.DateTimeFormat("en-GB", {
  hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3,
});
const hourMinute = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const dayShort = new Intl.DateTimeFormat("en-GB", { weekday: "short", day: "numeric", month: "short" });
const dayLong = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric" });
const dayUtc = new Intl.DateTimeFormat("en-GB", {
  weekday: "short", day: "numeric", month: "short", year: "numeric", timeZone: "UTC",
});

/** A count with its thousands: `12,345`. */
export function count(value) {
  return whole.format(value);
}

/** A count in little room: `12.3K`. */
export function compact(value) {
  return value < 10_000 ? whole.format(value) : short.format(value);
}

/** Messages a second: one decimal while there are few. */
export function rate(value) {
  if (value >= 10_000) return short.format(value);
  return value > 0 && value < 10 ? value.toFixed(1) : whole.format(value);
}

function digits(value) {
  return value < 9.95 ? value.toFixed(1) : whole.format(value);
}

/** A short duration of microseconds with one unit: `0.5 ms`, `12 ms`, `1.5 s`. */
export function latency(us) {
  if (us < 1_000) return us < 100 ? `${(us / 1_000).toFixed(2)} ms` : `${(us / 1_000).toFixed(1)} ms`;
  if (us < 999_500) return `${digits(us / 1_000)} ms`;
  if (us < 59_950_000) return `${digits(us / 1_000_000)} s`;
  if (us < 3_597_000_000) return `${digits(us / 60_000_000)} min`;
  return `${digits(us / 3_600_000_000)} h`;
}

/** The same without needless decimals, for axes: `500 µs`, `2 ms`, `1 min`. */
export function bound(us) {
  const units = [[3_600_000_000, "h"], [60_000_000, "min"], [1_000_000, "s"], [1_000, "ms"]];
  for (const [size, unit] of units) if (us >= size) return `${+(us / size).toFixed(1)} ${unit}`;
  return `${+(us / 1_000).toFixed(2)} ms`;
}

/** A longer duration of milliseconds in its two largest units: `4 min 10 s`, `2 d 3 h`. */
export function duration(ms) {
  const seconds = Math.floor(Math.max(ms, 0) / 1000);
  const parts = [
    [Math.floor(seconds / 86_400), "d"], [Math.floor(seconds / 3600) % 24, "h"],
    [Math.floor(seconds / 60) % 60, "min"], [seconds % 60, "s"],
  ];
  const first = parts.findIndex(([value]) => value > 0);
  if (first < 0) return "0 s";
  return parts.slice(first, first + 2).filter(([value]) => value > 0).map(([value, unit]) => `${value} ${unit}`).join(" ");
}

/** The distance of a moment to another one with its sign: `−10.0 s`, `+0.4 ms`. */
export function offset(us) {
  const sign = us < 0 ? "−" : "+";
  const size = Math.abs(us);
  return sign + (size < 60_000_000 ? latency(size) : duration(size / 1000));
}

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  let size = value;
  while (size >= 1024 && unit < units.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit ? digits(size) : whole.format(size)} ${units[unit]}`;
}

export function percent(share) {
  if (share > 0 && share < 0.001) return "< 0.1 %";
  return `${share < 0.0995 ? +(share * 100).toFixed(1) : Math.round(share * 100)} %`;
}

/** Local time of the day, with the day unless it is today. */
export function time(ms) {
  const moment = new Date(ms);
  const now = new Date(nowMs());
  if (moment.toDateString() === now.toDateString()) return clock.format(moment);
  const thisYear = moment.getFullYear() === now.getFullYear();
  return `${(thisYear ? dayShort : dayLong).format(moment)}, ${clock.format(moment)}`;
}

/** Local time with milliseconds. */
export function timeFine(ms) {
  const moment = new Date(ms);
  const today = moment.toDateString() === new Date(nowMs()).toDateString();
  return today ? clockFine.format(moment) : `${dayLong.format(moment)}, ${clockFine.format(moment)}`;
}

export function minuteOfDay(ms) {
  return hourMinute.format(new Date(ms));
}

export function hourOfWeek(ms) {
  return `${dayShort.format(new Date(ms))}, ${hourMinute.format(new Date(ms))}`;
}

export function day(ms) {
  return dayShort.format(new Date(ms));
}

/** A day of UTC, for what the server counts by days of UTC. */
export function utcDay(ms) {
  return dayUtc.format(new Date(ms));
}

/** The same moment for machines and for comparison with logs. An expiry may lie beyond the calendar of browsers. */
export function iso(ms) {
  const moment = new Date(ms);
  return Number.isNaN(moment.getTime()) ? "after the year 275760" : moment.toISOString();
}

const INVISIBLE = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u200b\u2028-\u202e\u2060-\u2069\ufeff]/g;

/** A text whose control characters, and those that turn the direction of reading or show nothing, are escapes like `\u202e`. So
 * an id looks like itself and like no other. */
export function visible(text) {
  return text.replace(INVISIBLE, (found) => `\\u${found.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** `1 message`, `2 messages`. */
export function messages(value) {
  return `${count(value)} message${value === 1 ? "" : "s"}`;
}

const UNITS_MS = { ms: 1, s: 1000, m: 60_000, min: 60_000, h: 3_600_000, d: 86_400_000, w: 604_800_000 };

/** Milliseconds of `10s`, `1h 30m` or `2 d`; null for anything else. */
export function parseDuration(text) {
  const parts = [...text.trim().matchAll(/(\d+(?:\.\d+)?)\s*(ms|min|s|m|h|d|w)\s*/gy)];
  if (!parts.length || parts.map((part) => part[0]).join("").length !== text.trim().length) return null;
  return Math.round(parts.reduce((sum, part) => sum + Number(part[1]) * UNITS_MS[part[2]], 0));
}
