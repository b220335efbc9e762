// The tiles and the balance.

import { Spark } from "./charts.js";
import { byId, h, keyed, say, set } from "./dom.js";
import { compact, count, duration, latency, percent, rate } from "./format.js";

const OUTCOMES = [
  ["delivered", "delivered"], ["pending", "pending"], ["cancelled", "cancelled"], ["expired", "expired"],
  ["deduplicated", "deduplicated"], ["rolled_back", "rolled back"], ["dead_lettered", "dead-lettered"],
];
// The p99 of a spark line covers so long a time each, so that single messages do not make it jump.
const SPARK_WINDOW_MS = 10_000;

const told = (found) => (found === null ? "–" : `${found.atMost ? "< " : ""}${latency(found.us)}`);

export class Now {
  #sparks = {
    p99: new Spark(byId("p99-spark")),
    accepted: new Spark(byId("accepted-spark")),
    delivered: new Spark(byId("delivered-spark")),
  };
  /** `view`: what `main.js` works out once for all panels. */
  update(metrics, history, view) {
    this.#lateness(metrics, history, view);
    for (const field of ["accepted", "delivered"]) {
      const value = history.rate(field);
      say(byId(`${field}-rate`), value === null ? "–" : rate(value));
      this.#sparks[field].update(history.rates(field));
    }
    say(byId("pending"), compact(metrics.pending));
    set(byId("pending"), "title", count(metrics.pending));
    const next = metrics.wheel.next_due_ms;
    const inMemory = next === null ? "" : `the next is due ${next - view.nowMs >= 1000 ? `in ${duration(next - view.nowMs)}` : "now"}`;
    say(byId("next-due"), metrics.pending === 0 ? "nothing is scheduled" : inMemory || "none is due soon");
    this.#balance(metrics);
  }

  #lateness(metrics, history, view) {
    say(byId("p50"), told(view.p50));
    say(byId("p99"), told(view.p99));
    set(byId("tile-p99"), "data-state", view.p99 !== null && view.p99.us >= 1_000_000 ? "bad" : "good");
    const started = metrics.delivered > 0 && metrics.lateness_ms.max > 0 ? `since the start ${latency(metrics.lateness_ms.p50 * 1000)}` : "nothing delivered yet";
    say(byId("p50-note"), view.p50 === null ? started : view.span);
    if (view.bounds) this.#sparks.p99.update(history.quantiles(view.bounds, 0.99, SPARK_WINDOW_MS));
  }

  #balance(metrics) {
    const kinds = OUTCOMES.map(([field, name]) => ({ field, name, value: metrics[field] ?? 0 }));
    const shown = kinds.filter((kind) => kind.value > 0 || ["delivered", "pending"].includes(kind.field));
    const total = Math.max(metrics.accepted, 1);
    const text = byId("balance-text");
    if (!text.firstChild) text.append(h("b"), " accepted, over all starts of the server. Every one is accounted for:");
    say(text.firstChild, count(metrics.accepted));
    keyed(byId("balance-stack"), shown.filter((kind) => kind.value > 0), (kind) => kind.field, (kind) => h("i", { class: kind.field }),
      (element, kind) => {
        const width = `${((kind.value / total) * 100).toFixed(2)}%`;
        if (element.style.width !== width) element.style.width = width;
      });
    set(byId("balance-stack"), "aria-label", `Of all accepted messages: ${shown.map((kind) => `${percent(kind.value / total)} ${kind.name}`).join(", ")}`);
    keyed(byId("balance-legend"), shown, (kind) => kind.field,
      (kind) => h("li", {}, h("i", { class: kind.field }), h("b"), ` ${kind.name}`),
      (element, kind) => say(element.children[1], count(kind.value)));
  }
}
