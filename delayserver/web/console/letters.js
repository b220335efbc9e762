// The dead letters of a consumer group: looked at, sent again, dropped.

import { onReturn, shown, showing } from "./address.js";
import { call } from "./api.js";
import { ask } from "./dialogs.js";
import { announce, byId, h, keyed, say, show } from "./dom.js";
import { bytes, count, messages, time, visible } from "./format.js";

// Letters of a page. Their bodies are read with them.
const PAGE = 20;
const BODY_SHOWN = 2_048;
const REASONS = { nacked: "nacked", ack_timeout: "not acked in time" };

const pathOf = (group) => `/v1/subjects/${encodeURIComponent(group.subject)}/groups/${encodeURIComponent(group.group)}/dead-letters`;

export class LettersPanel {
  #group = null;
  #letters = [];
  #more = false;
  #asked = 0;

  constructor() {
    byId("letters-all").addEventListener("click", () => this.#resend(null));
    byId("letters-drop").addEventListener("click", () => this.#drop());
    byId("letters-more").addEventListener("click", () => this.#read(this.#letters.at(-1)?.position ?? null));
    byId("letters-close").addEventListener("click", () => {
      showing({ letters: "", of: "" });
      this.start();
    });
    onReturn(() => this.start());
  }

  /** Show the letters of the group that the address names, or none. */
  start() {
    const group = { subject: shown("of"), group: shown("letters") };
    this.#asked += 1;
    this.#group = group.subject && group.group ? group : null;
    this.#letters = [];
    show(byId("letters"), this.#group !== null);
    if (this.#group) this.#read(null);
  }

  /** Show those of a group, because a person asks for them. */
  async open(group) {
    showing({ letters: group.group, of: group.subject }, { step: true, hash: "#consumers" });
    this.start();
    byId("letters").scrollIntoView({ block: "start" });
    byId("letters-title").focus({ preventScroll: true });
  }

  async #read(after) {
    const asked = (this.#asked += 1);
    const { subject, group } = this.#group;
    say(byId("letters-title"), `Dead letters of ${group} on ${subject}`);
    const query = new URLSearchParams({ max: String(PAGE + 1), body_as: "text" });
    if (after !== null) query.set("after", String(after));
    try {
      const { letters } = await call("GET", `${pathOf(this.#group)}?${query}`);
      if (asked !== this.#asked) return;
      this.#more = letters.length > PAGE;
      this.#letters = [...(after === null ? [] : this.#letters), ...letters.slice(0, PAGE)];
      this.#draw();
    } catch (error) {
      if (asked !== this.#asked) return;
      this.#letters = [];
      this.#draw(error.status === 404 ? "The server does not know this group." : error.message);
    }
  }

  #draw(fault = "") {
    say(byId("letters-lead"), fault || (this.#letters.length
      ? `The oldest ${messages(this.#letters.length)}${this.#more ? ", and there are more" : ""}. Mend the consumer before you send them again.`
      : "This group gave no message up, or all were sent again or dropped."));
    show(byId("letters-more"), this.#more && !fault);
    show(byId("letters-answers"), this.#letters.length > 0);
    keyed(byId("letters-list"), this.#letters, (letter) => letter.position, (letter) => this.#make(letter), () => {});
  }

  #make(letter) {
    const body = typeof letter.body === "string" ? letter.body : JSON.stringify(letter.body ?? "");
    return h("li", {},
      h("p", { class: "letter" },
        h("b", { class: "mono" }, letter.message_id || `position ${letter.position}`),
        h("span", {}, `${REASONS[letter.reason] ?? letter.reason}${letter.text ? `: ${letter.text}` : ""}`),
        h("span", { class: "note" }, `given up ${time(letter.dead_ms)} after ${count(letter.attempts)} attempt${letter.attempts === 1 ? "" : "s"}, was due ${time(letter.due_ms)}`)),
      h("details", {}, h("summary", {}, `Body, ${bytes(letter.body_bytes)}`),
        h("pre", { class: "body", tabindex: "0", "aria-label": "Body" }, visible(body).slice(0, BODY_SHOWN) || "(empty)")),
      h("button", { type: "button", class: "small", "aria-label": `Send ${letter.message_id || letter.position} again`, onclick: () => this.#resend(letter) }, "Send again …"));
  }

  async #resend(letter) {
    const { subject, group } = this.#group;
    say(byId("resend-text"), letter
      ? `${group} gets ${letter.message_id || "this message"} of ${subject} again, with new attempts.`
      : `${group} gets up to 1,000 dead letters of ${subject} again, the oldest first, with new attempts.`);
    const done = await ask("resend", () => call("POST", `${pathOf(this.#group)}/resend`, letter ? { positions: [letter.position] } : { max: 1000 }));
    if (done === null) return;
    announce(`${messages(done.resent)} sent again, ${count(done.left)} left.`);
    this.#read(null);
  }

  async #drop() {
    const { subject, group } = this.#group;
    const positions = this.#letters.map((letter) => letter.position);
    say(byId("drop-text"), `The ${messages(positions.length)} that ${positions.length === 1 ? "is" : "are"} shown, of ${group} on ${subject}, ${positions.length === 1 ? "is" : "are"} removed for good. This cannot be undone.`);
    const done = await ask("drop", () => call("POST", `${pathOf(this.#group)}/drop`, { positions }));
    if (done === null) return;
    announce(`${messages(done.dropped)} dropped, ${count(done.left)} left.`);
    this.#read(null);
  }
}
