// Consumer groups by their lag, and subjects by what they have before them.

import { byId, h, keyed, say, set, show } from "./dom.js";
import { count, duration } from "./format.js";

const ROWS_MIN = 10;
// The gateway sends no more rows of a list.
const ROWS_MAX = 100;

export class ConsumersPanel {
  #all = { consumers: false, subjects: false };

  constructor(again) {
    for (const list of ["consumers", "subjects"]) {
      byId(`${list}-more`).addEventListener("click", () => {
        this.#all[list] = !this.#all[list];
        again();
      });
    }
  }

  update(metrics, view) {
    const groups = [...(metrics.consumer_groups ?? [])].sort((one, other) => other.lag - one.lag || one.subject.localeCompare(other.subject));
    show(byId("consumers-none"), groups.length === 0);
    show(byId("consumer-table"), groups.length > 0);
    keyed(byId("consumer-rows"), this.#some("consumers", groups, metrics.consumer_groups_all), (row) => `${row.subject}\n${row.group}`, makeRow, (element, row) => {
      const old = row.oldest_ms ? view.nowMs - row.oldest_ms : null;
      const texts = [row.group, row.subject, count(row.lag), row.lag === 0 ? "–" : old === null ? "?" : duration(old), count(row.leased), count(row.retrying)];
      texts.forEach((text, place) => say(element.children[place], text));
      set(element, "class", row.lag > 0 && old !== null && old > 300_000 ? "hot" : "");
    });

    const subjects = [...(metrics.subjects ?? [])].filter((each) => each.pending > 0).sort((one, other) => other.pending - one.pending);
    const most = subjects[0]?.pending ?? 1;
    show(byId("subjects-none"), subjects.length === 0);
    keyed(byId("subjects"), this.#some("subjects", subjects), (each) => each.subject,
      (each) => h("li", {}, h("i", { "aria-hidden": "true" }), h("span", {}, each.subject), h("span", { class: "number" })),
      (element, each) => {
        const width = `${((each.pending / most) * 100).toFixed(1)}%`;
        if (element.firstChild.style.width !== width) element.firstChild.style.width = width;
        say(element.lastChild, count(each.pending));
      });
  }

  /** The first rows, or all of them. */
  #some(list, rows, whole = rows.length) {
    const button = byId(`${list}-more`);
    show(button, rows.length > ROWS_MIN);
    const most = whole > rows.length ? `the first ${count(rows.length)} of ${count(whole)}`
      : rows.length >= ROWS_MAX ? `the first ${count(rows.length)}` : `all ${count(rows.length)}`;
    say(button, this.#all[list] ? "Show fewer" : `Show ${most}`);
    set(button, "aria-expanded", this.#all[list]);
    return this.#all[list] ? rows : rows.slice(0, ROWS_MIN);
  }
}

function makeRow() {
  return h("tr", {}, h("th", { scope: "row" }), h("td"), h("td", { class: "number lag" }), h("td", { class: "number oldest" }),
    h("td", { class: "number spare" }), h("td", { class: "number spare" }));
}
