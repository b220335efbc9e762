// What the page remembers of the last two minutes: counters by second, and from them rates and lateness. No DOM.

const KEPT_MS = 125_000;

/** Sum of histograms: `[counts]` of the same length. */
export function sumCounts(all) {
  const sum = [];
  for (const counts of all) counts.forEach((value, place) => { sum[place] = (sum[place] ?? 0) + value; });
  return sum;
}

/** Counts since an earlier moment. A bucket that shrank belongs to another process; it counts as it is. */
export function since(now, before) {
  return now.map((value, place) => Math.max(value - (before?.[place] ?? 0), 0));
}

/**
 * The value that a share (0 to 1) of all are at most, by interpolation inside its bucket. `{us, atMost}`: `atMost` is true
 * where only the bound of the first bucket is known. Null without values.
 */
export function quantile(bounds, counts, share) {
  const total = counts.reduce((sum, value) => sum + value, 0);
  if (!total) return null;
  let below = 0;
  for (let place = 0; place < counts.length; place += 1) {
    if (counts[place] && below + counts[place] >= share * total) {
      if (place === 0) return { us: bounds[0], atMost: true };
      if (place >= bounds.length) return { us: bounds.at(-1), atMost: false };
      const part = (share * total - below) / counts[place];
      return { us: bounds[place - 1] + part * (bounds[place] - bounds[place - 1]), atMost: false };
    }
    below += counts[place];
  }
  return null;
}

/** Samples of `/v1/live`, the newest last. */
export class History {
  #samples = [];

  /** Take samples of the gateway from before the page was opened, or from the time while it was not looked at. */
  remember(samples) {
    const whole = samples.filter((sample) => sample.groups).map((sample) => ({
      at: sample.at_ms, server: sample.server_id, uptime: sample.uptime_s, accepted: sample.accepted, delivered: sample.delivered,
      groups: sample.groups, stages: sample.stages, byGroup: sample.by_group,
    }));
    const last = this.#samples.at(-1);
    const first = this.#samples[0];
    if (!last || whole.some((sample) => sample.server !== last.server || sample.uptime < last.uptime && sample.at > last.at)) {
      this.#samples = whole;
      return;
    }
    const known = whole.filter((sample) => sample.at < first.at || sample.at > last.at);
    this.#samples = [...this.#samples, ...known].sort((one, other) => one.at - other.at);
  }

  /** Add the metrics of a second. A server that began anew begins a new history. */
  add(metrics) {
    const last = this.#samples.at(-1);
    const begun = last && (metrics.server_id !== last.server || metrics.uptime_s < last.uptime || metrics.accepted < last.accepted);
    if (begun) this.#samples = [];
    const groups = {};
    for (const [name, each] of Object.entries(metrics.lateness ?? {})) groups[name] = each.counts;
    const stages = {};
    for (const [name, each] of Object.entries(metrics.stages ?? {})) {
      stages[name] = { count: each.counts.reduce((sum, value) => sum + value, 0), sum: each.sum_us };
    }
    const delivered = {};
    for (const [name, each] of Object.entries(metrics.groups ?? {})) delivered[name] = each.delivered;
    this.#samples.push({
      at: metrics.clock.server_us / 1000,
      server: metrics.server_id,
      uptime: metrics.uptime_s,
      accepted: metrics.accepted,
      delivered: metrics.delivered,
      groups, stages, byGroup: delivered,
    });
    const now = this.#samples.at(-1).at;
    while (this.#samples[0].at < now - KEPT_MS || this.#samples[0].at > now) this.#samples.shift();
    return begun;
  }

  get length() {
    return this.#samples.length;
  }

  /** The oldest sample of the last `ms`, and how long ago it was. */
  #before(ms) {
    const now = this.#samples.at(-1);
    return this.#samples.find((sample) => sample.at >= now.at - ms - 500) ?? now;
  }

  /** How much of the last minute the page has seen. */
  seenMs(ms = 60_000) {
    return this.#samples.length ? this.#samples.at(-1).at - this.#before(ms).at : 0;
  }

  /** Messages a second over the last seconds; null while there is one sample alone. */
  rate(field, ms = 5_000, group = null) {
    const now = this.#samples.at(-1);
    const before = this.#before(ms);
    if (now === before) return null;
    const of = (sample) => (group === null ? sample[field] : sample[field][group] ?? 0);
    return Math.max(0, (of(now) - of(before)) / ((now.at - before.at) / 1000));
  }

  /** Rates of each second, oldest first. */
  rates(field) {
    return this.#samples.slice(1).map((sample, place) => {
      const before = this.#samples[place];
      const seconds = Math.max((sample.at - before.at) / 1000, 0.001);
      return { at: sample.at, value: Math.max(0, sample[field] - before[field]) / seconds };
    });
  }

  /** A quantile of lateness at each sample, of the `ms` before it: `[{at, value}]` in microseconds, 0 without messages. */
  quantiles(bounds, share, ms) {
    let before = 0;
    return this.#samples.map((sample, place) => {
      while (this.#samples[before].at < sample.at - ms - 500 && before + 1 < place) before += 1;
      const counts = sumCounts(Object.keys(sample.groups).map((name) => since(sample.groups[name], this.#samples[before].groups[name])));
      return { at: sample.at, value: (place && quantile(bounds, counts, share)?.us) || 0 };
    });
  }

  /** Lateness counts of the last `ms`, of one broker group or of all together. */
  lateness(group = null, ms = 60_000) {
    const now = this.#samples.at(-1);
    const before = this.#before(ms);
    const names = group === null ? Object.keys(now.groups) : [group].filter((name) => name in now.groups);
    return sumCounts(names.map((name) => since(now.groups[name], before.groups[name])));
  }

  /** The mean microseconds of each stage over the last `ms`; null for a stage that did nothing. */
  stages(ms = 60_000) {
    const now = this.#samples.at(-1);
    const before = this.#before(ms);
    return Object.entries(now.stages).map(([name, each]) => {
      const earlier = before.stages[name] ?? { count: 0, sum: 0 };
      const batches = each.count - earlier.count;
      return { name, batches, mean: batches > 0 ? (each.sum - earlier.sum) / batches : null };
    });
  }
}
