// What is wrong now, on the page.

import { announce, byId, h, keyed, say, set, show } from "./dom.js";
import { wrongNow } from "./trouble.js";

const RANKS = { bad: "Act now", warn: "Look after it", note: "Good to know" };

/** A text with commands between backticks. */
function withCode(text) {
  return text.split("`").map((part, place) => (place % 2 ? h("code", {}, part) : part));
}

function makeCase({ condition }) {
  return h("article", { class: `case ${condition.severity}`, "aria-labelledby": `case-${condition.id}` },
    h("p", { class: "rank" }, RANKS[condition.severity]),
    h("h3", { id: `case-${condition.id}` }, condition.says),
    h("ul", { class: "facts" }),
    h("details", { open: condition.severity === "bad" }, h("summary", {}, "What to do"),
      h("ol", {}, ...condition.act.map((step) => h("li", {}, ...withCode(step)))),
      h("p", { class: "book" }, `Runbook: ${condition.runbook}`)));
}

export class Cases {
  #said = "";

  /** Returns the severity of the worst condition, or null. */
  update(metrics, view) {
    const found = wrongNow(metrics, view);
    show(byId("trouble"), found.length > 0);
    keyed(byId("cases"), found, ({ condition }) => condition.id, makeCase, (element, { facts }) => {
      keyed(element.querySelector(".facts"), facts.map((text, place) => ({ text, place })), (fact) => fact.place, () => h("li"),
        (item, fact) => say(item, fact.text));
    });
    const serious = found.filter(({ condition }) => condition.severity !== "note");
    const worst = serious[0]?.condition.severity ?? null;
    const text = serious.length === 0 ? "All is well" : serious.length === 1 ? serious[0].condition.says : `${serious.length} things are wrong`;
    set(byId("health"), "data-state", worst ?? "good");
    this.#health(serious.length ? (serious.length === 1 ? "1 thing is wrong" : text) : text, serious.length > 0);
    if (this.#said !== text) {
      if (this.#said || serious.length) announce(text);
      this.#said = text;
    }
    return worst;
  }

  #health(text, linked) {
    const place = byId("health-text");
    if (place.textContent === text) return;
    place.replaceChildren(linked ? h("a", { href: "#trouble" }, text) : text);
  }
}
