// The last hour: how many messages came and went, and how late they were. The gateway remembers it, so it is there at once.

import { Lines } from "./charts.js";
import { byId } from "./dom.js";
import { bound, latency, minuteOfDay, rate } from "./format.js";
import { quantile, since, sumCounts } from "./history.js";

const HOUR_MS = 3_600_000;
const PERIOD_MS = 15_000;
// Between samples that lie further apart, nothing is known.
const GAP_MS = 45_000;

export class HourPanel {
  #samples = [];
  #rates = new Lines(byId("hour-rates"), ["accepted", "delivered"]);
  #lateness = new Lines(byId("hour-lateness"), ["p50", "p99"], { log: true, tick: bound });

  /** The samples of the gateway. They are more than what the page has, unless it was there all the time. */
  remember(samples) {
    this.#samples = samples.map((sample) => ({
      at: sample.at_ms, server: sample.server_id, uptime: sample.uptime_s, accepted: sample.accepted, delivered: sample.delivered, counts: sample.lateness,
    }));
  }

  update(metrics) {
    const sample = {
      at: metrics.clock.server_us / 1000, server: metrics.server_id, uptime: metrics.uptime_s, accepted: metrics.accepted, delivered: metrics.delivered,
      counts: sumCounts(Object.values(metrics.lateness ?? {}).map((each) => each.counts)),
    };
    const last = this.#samples.at(-1);
    if (last && (sample.server !== last.server || sample.uptime < last.uptime || sample.at < last.at)) this.#samples = [];
    if (this.#samples.length && sample.at - this.#samples.at(-1).at < PERIOD_MS) {
      if (!this.#drawn) this.#draw(metrics, sample.at);
      return;
    }
    this.#samples = [...this.#samples, sample].filter((each) => each.at > sample.at - HOUR_MS);
    this.#draw(metrics, sample.at);
  }

  #drawn = false;

  #draw(metrics, now) {
    this.#drawn = true;
    const bounds = Object.values(metrics.lateness ?? {})[0]?.bounds_us ?? null;
    const steps = this.#samples.slice(1).map((sample, place) => ({ sample, before: this.#samples[place] }));
    const span = { from: now - HOUR_MS, to: now };
    const rates = steps.map(({ sample, before }) => {
      const seconds = (sample.at - before.at) / 1000;
      const gap = sample.at - before.at > GAP_MS;
      const values = ["accepted", "delivered"].map((field) => (gap ? null : Math.max(sample[field] - before[field], 0) / seconds));
      return { at: sample.at, values, text: gap ? `${minuteOfDay(sample.at)}: not known` : `${minuteOfDay(sample.at)}: ${rate(values[0])} accepted and ${rate(values[1])} delivered a second` };
    });
    const most = Math.max(0, ...rates.map((point) => point.values[1] ?? 0));
    this.#rates.update({ ...span, points: rates, summary: most ? `At most ${rate(most)} delivered a second.` : "Nothing was delivered." });
    if (!bounds) return;
    const late = steps.map(({ sample, before }) => {
      const counts = since(sample.counts, before.counts);
      const values = [0.5, 0.99].map((share) => (sample.at - before.at > GAP_MS ? null : quantile(bounds, counts, share)?.us ?? null));
      return { at: sample.at, values, text: values[1] === null ? `${minuteOfDay(sample.at)}: nothing delivered` : `${minuteOfDay(sample.at)}: p50 ${latency(values[0])}, p99 ${latency(values[1])}` };
    });
    const whole = this.#samples.length ? quantile(bounds, since(this.#samples.at(-1).counts, this.#samples[0].counts), 0.99) : null;
    this.#lateness.update({ ...span, points: late, summary: whole ? `99 of 100 messages were at most ${latency(whole.us)} late.` : "Nothing was delivered." });
  }
}
