// The lateness of the last minute as a histogram and as a distribution.

import { onReturn, shown, showing } from "./address.js";
import { Bars, Distribution } from "./charts.js";
import { byId, h, keyed, say, show } from "./dom.js";
import { bound, count, latency, messages, percent } from "./format.js";
import { quantile, sumCounts } from "./history.js";

// Buckets that are shown at least: up to 30 ms.
const PLACES_MIN = 10;
const AXIS_US = [500, 1_000, 2_000, 5_000, 10_000, 30_000, 100_000, 500_000, 1_000_000, 10_000_000, 60_000_000, 900_000_000, 3_600_000_000];
const LATE_US = 1_000_000;

const total = (counts) => counts.reduce((sum, value) => sum + value, 0);

export class LatenessPanel {
  #histogram = new Bars(byId("histogram"), { height: 190 });
  #distribution = new Distribution(byId("distribution"), { height: 190 });
  #group = byId("lateness-group");

  constructor(again) {
    this.#group.addEventListener("change", () => {
      showing({ lateness: this.#group.value });
      again();
    });
    onReturn(again);
  }

  update(metrics, history, view) {
    const names = Object.keys(metrics.lateness ?? {});
    show(byId("lateness-choose"), names.length > 1);
    keyed(this.#group, ["", ...names], (name) => name, (name) => h("option", { value: name }, name || "all groups"), () => {});
    const chosen = names.includes(shown("lateness")) ? shown("lateness") : null;
    if (this.#group.value !== (chosen ?? "")) this.#group.value = chosen ?? "";
    const { bounds } = view;
    if (!bounds) return;
    const latest = history.lateness(chosen);
    const always = sumCounts((chosen === null ? names : [chosen]).map((name) => metrics.lateness[name].counts));
    const used = Math.max(latest.findLastIndex((value) => value > 0), always.findLastIndex((value) => value > 0));
    const places = Math.min(Math.max(used + 2, PLACES_MIN), bounds.length);
    say(byId("histogram-span"), view.span);
    this.#bars(bounds, latest, places, view);
    this.#lines(bounds, latest, always, places, view);
    this.#lead(metrics, always);
  }

  #lead(metrics, always) {
    const early = metrics.early === 0 ? "None left early." : `${messages(metrics.early)} left early.`;
    say(byId("lateness-lead"), total(always)
      ? `How long after its due time a message was handed over. ${early}`
      : "How long after its due time a message was handed over. Nothing was delivered since the start.");
  }

  #bars(bounds, latest, places, view) {
    const all = total(latest);
    const shown = [...latest.slice(0, places), ...(places < latest.length ? [total(latest.slice(places))] : [])];
    const range = (place) => {
      if (place === 0) return `at most ${bound(bounds[0])}`;
      if (place >= places) return `more than ${bound(bounds[places - 1])}`;
      return `${bound(bounds[place - 1])} to ${bound(bounds[place])}`;
    };
    this.#histogram.update({
      bars: shown.map((value, place) => ({
        value,
        kind: (bounds[Math.min(place, bounds.length - 1)] ?? 0) > LATE_US ? "very-late" : "late",
        text: `${range(place)}: ${messages(value)}${all ? `, ${percent(value / all)}` : ""}`,
      })),
      ticks: shown.map((_, place) => ({ at: place + 1, text: place < places ? bound(bounds[place]) : "" })).filter((tick) => tick.text),
      summary: all ? `${messages(all)} ${view.span}.` : `Nothing was delivered ${view.spanOf}.`,
    });
  }

  #lines(bounds, latest, always, places, view) {
    const cut = bounds.slice(0, places);
    const all = total(latest);
    const use = all ? latest : always;
    const whole = total(use);
    const marks = all
      ? [["p50", 0.5], ["p99", 0.99]].map(([name, share]) => ({ found: quantile(bounds, latest, share), name, share }))
        .filter((mark) => mark.found !== null)
        .map((mark) => ({ us: mark.found.us, text: `${mark.name} ${mark.found.atMost ? "< " : ""}${latency(mark.found.us)}` }))
      : [];
    // Both in the first bucket: they would lie on each other.
    const distinct = marks.length === 2 && marks[0].us === marks[1].us ? [{ ...marks[1], text: marks[1].text }] : marks;
    let sum = 0;
    const texts = cut.map((us, place) => {
      sum += use[place] ?? 0;
      return `${whole ? percentFine(sum / whole) : "none"} at most ${bound(us)} late${all ? "" : ", since the start"}`;
    });
    this.#distribution.update({
      bounds: cut,
      lines: [{ counts: latest, kind: "now" }, { counts: always, kind: "all" }],
      marks: distinct,
      ticks: AXIS_US.filter((us) => us >= cut[0] && us <= cut.at(-1)).map((us) => ({ us, text: bound(us) })),
      texts,
      summary: all ? sentence(bounds, latest) : total(always) ? `Since the start: ${lower(sentence(bounds, always))}` : "No message has been delivered since the start.",
    });
  }
}

const lower = (text) => text[0].toLowerCase() + text.slice(1);

function percentFine(share) {
  return share === 1 ? "100 %" : `${Math.floor(share * 10_000) / 100} %`;
}

function sentence(bounds, counts) {
  const found = quantile(bounds, counts, 0.99);
  if (found === null) return "";
  return `99 of 100 messages were at most ${latency(found.us)} late.`;
}
