// What is wrong now, on the page.

import { Acknowledged } from "./acknowledged.js";
import { announce, byId, copyButton, h, keyed, say, set, show } from "./dom.js";
import { CONDITIONS, stepsOf, wrongNow } from "./trouble.js";

const RANKS = { bad: "Act now", warn: "Look after it", note: "Good to know" };
// Groups of a condition that have buttons of their own.
const GROUPS_MAX = 3;

/** Where the runbook that the server has says what to do. Headings have the ids that Markdown gives them. */
export function bookOf(heading) {
  const id = heading.toLowerCase().replace(/[^\w\s-]/g, "").trim().replace(/[\s-]+/g, "-");
  return `/console/runbook.html#${id}`;
}

/** A text with commands between backticks. */
function withCode(text) {
  return text.split("`").map((part, place) => (place % 2 ? h("code", {}, part) : part));
}

function makeCase({ condition }) {
  return h("article", { class: `case ${condition.severity}`, "aria-labelledby": `case-${condition.id}` },
    h("p", { class: "rank" }, RANKS[condition.severity]),
    h("h3", { id: `case-${condition.id}` }, condition.says),
    h("ul", { class: "facts" }),
    h("div", { class: "acts" }),
    h("details", { open: condition.severity === "bad" }, h("summary", {}, "What to do"),
      h("ol", { class: "steps" }),
      h("p", { class: "book" }, h("a", { href: bookOf(condition.runbook) }, `Runbook: ${condition.runbook}`))));
}

function fillSteps(list, condition, groups) {
  const steps = stepsOf(condition, groups);
  const wanted = JSON.stringify(steps);
  if (list.dataset.shows === wanted) return;
  list.dataset.shows = wanted;
  list.replaceChildren(...steps.map(({ text, commands }) => h("li", {}, ...withCode(text),
    ...commands.map((command) => h("div", { class: "shell" }, h("pre", {}, h("code", {}, command)), copyButton(command))))));
}

export class Cases {
  #said = "";
  #acknowledged = new Acknowledged();
  #server = "";
  #handlers;

  /** `handlers`: `again()` draws the page, `remove(group)` asks whether to remove a group, `letters(group)` shows its dead letters. */
  constructor(handlers) {
    this.#handlers = handlers;
    byId("acknowledged-clear").addEventListener("click", () => {
      this.#acknowledged.clear(this.#server);
      handlers.again();
    });
  }

  /** Returns the severity of the worst condition, or null. */
  update(metrics, view) {
    this.#server = metrics.server_id;
    const all = wrongNow(metrics, view).flatMap(({ condition, groups }) => groups.map((group) => ({ condition, group })));
    const left = this.#acknowledged.prune(this.#server, all);
    const found = wrongNow(metrics, view, (condition, group) => this.#acknowledged.has(this.#server, condition, group));
    show(byId("trouble"), found.length + left > 0);
    show(byId("acknowledged"), left > 0);
    say(byId("acknowledged-text"), `${left} acknowledged in this browser.`);
    say(byId("trouble-title"), found.length ? "What is wrong now" : "Nothing else is wrong now");
    keyed(byId("cases"), found, ({ condition }) => condition.id, makeCase, (element, { condition, facts, groups }) => {
      keyed(element.querySelector(".facts"), facts.map((text, place) => ({ text, place })), (fact) => fact.place, () => h("li"),
        (item, fact) => say(item, fact.text));
      fillSteps(element.querySelector(".steps"), condition, groups);
      keyed(element.querySelector(".acts"), groups.slice(0, GROUPS_MAX), (group) => group.key, (group) => this.#buttons(condition, group), () => {});
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

  #buttons(condition, group) {
    const name = `${group.group} on ${group.subject}`;
    const button = (text, label, act) => h("button", { type: "button", class: "small", "aria-label": label, onclick: act }, text);
    return h("p", {},
      h("span", { class: "whose" }, name),
      condition.letters ? button("Look at them", `Look at the dead letters of ${name}`, () => this.#handlers.letters(group)) : null,
      condition.removes ? button("Remove the group …", `Remove the group ${name}`, () => this.#handlers.remove(group)) : null,
      button("Acknowledge", `Acknowledge ${name}`, () => {
        this.#acknowledged.add(this.#server, condition, group);
        announce(`Acknowledged: ${name}.`);
        this.#handlers.again();
      }));
  }

  #health(text, linked) {
    const place = byId("health-text");
    if (place.textContent === text) return;
    place.replaceChildren(linked ? h("a", { href: "#trouble" }, text) : text);
  }
}

/** The pages of the runbook that the console leads to. */
export const BOOKS = CONDITIONS.map((condition) => bookOf(condition.runbook));
