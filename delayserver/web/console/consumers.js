// Consumer groups by their lag, and subjects by what they have before them.

import { onReturn, shown, showing } from "./address.js";
import { call } from "./api.js";
import { ask } from "./dialogs.js";
import { announce, byId, h, keyed, say, set, show } from "./dom.js";
import { count, duration } from "./format.js";
import { isDead } from "./trouble.js";

const ROWS_MIN = 10;
// The gateway sends no more rows of a list.
const ROWS_MAX = 100;

export class ConsumersPanel {
  #letters;

  /** `letters(group)` shows the dead letters of a group. */
  constructor(again, letters = () => {}) {
    this.#letters = letters;
    for (const list of ["consumers", "subjects"]) {
      byId(`${list}-more`).addEventListener("click", () => {
        showing({ [list]: shown(list) ? "" : "all" });
        again();
      });
    }
    onReturn(again);
  }

  /** Ask whether to remove a group, and remove it. Returns whether it is removed. */
  async remove({ subject, group }) {
    say(byId("remove-text"), `${group} on ${subject} is forgotten, with its progress. Messages stay for other groups. A later pull of this name makes a new group.`);
    const done = await ask("remove", async () => {
      await call("DELETE", `/v1/subjects/${encodeURIComponent(subject)}/groups/${encodeURIComponent(group)}`);
      return true;
    });
    if (done) announce(`${group} on ${subject} is removed.`);
    return done === true;
  }

  update(metrics, view) {
    const groups = (metrics.consumer_groups ?? []).filter((group) => !isDead(group)).sort((one, other) => other.lag - one.lag || one.subject.localeCompare(other.subject));
    show(byId("consumers-none"), groups.length === 0);
    show(byId("consumer-table"), groups.length > 0);
    keyed(byId("consumer-rows"), this.#some("consumers", groups, metrics.consumer_groups_all), (row) => `${row.subject}\n${row.group}`, (row) => this.#make(row), (element, row) => {
      const old = row.oldest_ms ? view.nowMs - row.oldest_ms : null;
      const texts = [row.group, row.subject, count(row.lag), row.lag === 0 ? "–" : old === null ? "?" : duration(old), count(row.leased), count(row.retrying)];
      texts.forEach((text, place) => say(element.children[place], text));
      const letters = element.lastElementChild.firstElementChild;
      say(letters, row.dead_letters ? count(row.dead_letters) : "0");
      letters.disabled = !row.dead_letters;
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

  #make(row) {
    return h("tr", {}, h("th", { scope: "row" }), h("td"), h("td", { class: "number lag" }), h("td", { class: "number oldest" }),
      h("td", { class: "number spare" }), h("td", { class: "number spare" }),
      h("td", { class: "number" }, h("button", {
        type: "button", class: "link", "aria-label": `Dead letters of ${row.group} on ${row.subject}`, onclick: () => this.#letters(row),
      })));
  }

  /** The first rows, or all of them. */
  #some(list, rows, whole = rows.length) {
    const button = byId(`${list}-more`);
    show(button, rows.length > ROWS_MIN);
    const most = whole > rows.length ? `the first ${count(rows.length)} of ${count(whole)}`
      : rows.length >= ROWS_MAX ? `the first ${count(rows.length)}` : `all ${count(rows.length)}`;
    const all = shown(list) === "all";
    say(button, all ? "Show fewer" : `Show ${most}`);
    set(button, "aria-expanded", all);
    return all ? rows : rows.slice(0, ROWS_MIN);
  }
}
