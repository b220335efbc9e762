// Finding a message, showing its life, and acting on it.

import { onReturn, shown, showing } from "./address.js";
import { call, outcomeOf } from "./api.js";
import { nowMs } from "./clock.js";
import { FieldError, ask, isAsking } from "./dialogs.js";
import { announce, byId, copyButton, h, keyed, say, set, show } from "./dom.js";
import { bytes, duration, iso, messages, offset, parseDuration, time, timeFine, visible } from "./format.js";
import { isFinal, lifeOf } from "./life.js";

const RECEIPT = /^[0-9a-f]{12}-[0-9a-f]{12}-[0-9a-f]{12}$/;
// Of a body so many characters are shown at first.
const BODY_SHOWN = 4_096;
const SENT_MAX = 8;
// After the end of a message its pulls and acks are still waited for.
const FOLLOW_MS = 120_000;
const FOUND_MAX = 50;
// Messages that were sent from here are looked up again after so long: others may cancel or move them. One that is due, sooner.
const AGAIN_MS = 30_000;
const DUE_AGAIN_MS = 3_000;

const OUTCOMES = {
  pending: "pending", prepared: "prepared", delivered: "delivered", cancelled: "cancelled", expired: "expired",
  deduplicated: "a copy", dead_lettered: "dead-lettered", rolled_back: "rolled back", unknown: "unknown", too_late: "too late",
};

export class MessagePanel {
  #shown = null;
  #timer = 0;
  #sent = [];
  #search = 0;
  #looking = false;

  constructor() {
    byId("find").addEventListener("submit", (event) => {
      event.preventDefault();
      byId("search-text").value = byId("find-text").value;
      this.#find({ text: byId("find-text").value });
    });
    byId("search").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#find(Object.fromEntries(new FormData(event.target)));
    });
    byId("send-open").addEventListener("click", () => this.send());
    document.addEventListener("visibilitychange", () => this.#follow());
    onReturn(() => this.#fromAddress());
  }

  /** Show the message that the address names. */
  start() {
    if (shown("message")) this.#fromAddress();
  }

  #fromAddress() {
    const wanted = { text: shown("message"), subject: shown("subject"), due: shown("due") };
    for (const [name, value] of Object.entries(wanted)) byId(`search-${name}`).value = value;
    if (wanted.subject || wanted.due) byId("search-more").open = true;
    if (wanted.text) this.#find(wanted, false);
    else this.#nothing();
  }

  #nothing() {
    this.#search += 1;
    clearTimeout(this.#timer);
    this.#shown = null;
    this.#say("Nothing is looked up.");
  }

  /** Ask for a test message, send it, and show it. */
  async send() {
    const sent = await ask("send", async (form) => {
      const subject = String(form.get("subject")).trim();
      if (!subject) throw new FieldError("subject", "A message needs a subject.");
      return call("POST", "/v1/messages", { subject, body: String(form.get("body")), delay_ms: delayOf(form) });
    });
    if (sent === null) return;
    this.#sent = [{ ...sent, outcome: "pending", looked: Date.now() }, ...this.#sent].slice(0, SENT_MAX);
    this.#list();
    announce(`Sent. It is due ${time(sent.due_ms)}.`);
    await this.#open(sent.receipt);
  }

  /** Ask whether to cancel the message that is shown. */
  async cancel() {
    const fate = this.#shown?.fate;
    if (!fate?.receipt || isFinal(fate.outcome) || isAsking()) return;
    say(byId("cancel-text"), `The message on ${fate.subject ?? "its subject"}${fate.due_ms ? `, due ${time(fate.due_ms)},` : ""} will never be delivered. This cannot be undone.`);
    const answer = await ask("cancel", () => call("DELETE", pathOf(fate.receipt)).catch(outcomeOf));
    if (answer === null) return;
    announce(answer.outcome === "cancelled" ? "Cancelled." : `Not cancelled: ${answer.outcome.replaceAll("_", " ")}.`);
    await this.#open(fate.receipt, answer.outcome === "cancelled" ? "" : refusals[answer.outcome] ?? `It was not cancelled: ${answer.outcome}.`);
  }

  /** Ask when the message that is shown is to be due instead. */
  async move() {
    const fate = this.#shown?.fate;
    if (!fate?.receipt || isFinal(fate.outcome) || isAsking()) return;
    say(byId("move-text"), `It is due ${time(fate.due_ms)}. The message keeps its content and gets a new receipt.`);
    const answer = await ask("move", (form) => call("PATCH", pathOf(fate.receipt), { delay_ms: delayOf(form) }).catch(outcomeOf));
    if (answer === null) return;
    if (answer.outcome && answer.outcome !== "rescheduled") {
      await this.#open(fate.receipt, refusals[answer.outcome] ?? `It was not rescheduled: ${answer.outcome}.`);
      return;
    }
    announce("Rescheduled.");
    const known = this.#sent.find((each) => each.receipt === fate.receipt);
    if (known && answer.new_receipt) Object.assign(known, { receipt: answer.new_receipt, due_ms: answer.due_ms ?? known.due_ms, outcome: "pending" });
    this.#list();
    await this.#open(answer.new_receipt ?? fate.receipt);
  }

  async #find({ text = "", subject = "", due = "" }, step = true) {
    const wanted = text.trim();
    showing({ message: wanted, subject: subject.trim(), due: due.trim() }, { step, hash: "#message" });
    const place = byId("result");
    const search = (this.#search += 1);
    clearTimeout(this.#timer);
    this.#shown = null;
    byId("message").scrollIntoView({ block: "start" });
    if (!wanted) {
      this.#say("Give a receipt or a message id.");
      byId("search-text").focus();
      return;
    }
    if (RECEIPT.test(wanted)) {
      await this.#open(wanted, "", false);
      return;
    }
    place.replaceChildren(h("p", { class: "note" }, "Looking …"));
    try {
      if (subject.trim() && due.trim()) {
        const dueMs = /^\d+$/.test(due.trim()) ? Number(due.trim()) : Date.parse(due.trim());
        if (!Number.isFinite(dueMs)) {
          this.#say(`“${due.trim().slice(0, 80)}” is no time. Write milliseconds since 1970, or ISO 8601.`);
          return;
        }
        const query = new URLSearchParams({ subject: subject.trim(), message_id: wanted, due_ms: String(dueMs), times: "true" });
        const fate = await call("GET", `/v1/messages?${query}`);
        if (search === this.#search) this.#show(fate, fate.receipt ?? null);
        return;
      }
      const query = new URLSearchParams({ message_id: wanted, max: String(FOUND_MAX) });
      if (subject.trim()) query.set("subject", subject.trim());
      const answer = await call("GET", `/v1/find?${query}`);
      if (search === this.#search) await this.#found(wanted, answer.messages);
    } catch (error) {
      if (search === this.#search) this.#failed(error, wanted);
    }
  }

  /** Messages that a node has under an id. */
  async #found(wanted, found) {
    if (found.length === 1) {
      await this.#open(found[0].receipt, "", false);
      return;
    }
    if (!found.length) {
      byId("search-more").open = true;
      this.#say(
        `No message with the id “${wanted.slice(0, 120)}” was handed over here.`,
        "If it is not due yet, give its subject and due time as well: they lead straight to it. Otherwise it was never accepted here, or it is past retention.",
      );
      return;
    }
    announce(`${found.length} messages have this id.`);
    byId("result").replaceChildren(h("h3", { tabindex: "-1" }, `${messages(found.length)} with this id`),
      h("ul", { class: "found-list" }, ...found.map((each) => h("li", {},
        h("button", { type: "button", class: "link", onclick: () => this.#open(each.receipt) }, `${each.subject}, due ${time(each.due_ms)}`)))));
  }

  /** Look a receipt up, and show it. */
  async #open(receipt, remark = "", step = true) {
    showing({ message: receipt, subject: "", due: "" }, { step, hash: "#message" });
    const search = (this.#search += 1);
    clearTimeout(this.#timer);
    try {
      const fate = await call("GET", `${pathOf(receipt)}?times=true`);
      if (search === this.#search) this.#show(fate, receipt, remark);
    } catch (error) {
      if (search === this.#search) this.#failed(error, receipt);
    }
  }

  #failed(error, wanted) {
    const known = {
      receipt_invalid: ["This is no receipt of this server.", "A receipt is three groups of twelve characters, as the answer to a send has it."],
      foreign_receipt: ["Another server gave this receipt.", "Ask the server that accepted the message."],
    }[error.error];
    if (known) this.#say(...known);
    else if (error.status === 404) this.#say("Nothing is known of this message.", "It was never accepted here, or it is past retention.");
    else this.#say(`“${wanted.slice(0, 80)}” could not be looked up.`, error.message);
  }

  #say(...sentences) {
    announce(sentences.join(" "));
    byId("result").replaceChildren(...sentences.map((text, place) => h("p", { class: place ? "note" : "answer" }, text)));
  }

  #show(fate, receipt, remark = "") {
    if (fate.outcome === "unknown") {
      this.#say("Nothing is known of this message.", "It was never accepted here, or it is past retention.");
      return;
    }
    const element = makeFound(this);
    this.#shown = { fate: { ...fate, receipt }, element, since: Date.now(), failures: 0 };
    byId("result").replaceChildren(element);
    if (remark) element.querySelector(".remark").append(remark);
    this.#fill();
    element.querySelector("h3").focus({ preventScroll: true });
    byId("message").scrollIntoView({ block: "start" });
    announce(`${fate.subject ?? "Message"}: ${OUTCOMES[fate.outcome] ?? fate.outcome}.${remark ? ` ${remark}` : ""}`);
    this.#follow();
  }

  /** Look again, as long as something can still happen and somebody looks. */
  #follow() {
    clearTimeout(this.#timer);
    const shown = this.#shown;
    if (!shown?.fate.receipt || document.hidden) return;
    const { fate } = shown;
    const toDue = (fate.due_ms ?? 0) - nowMs();
    const ended = isFinal(fate.outcome);
    if (ended && (fate.outcome !== "delivered" || Date.now() - shown.since > FOLLOW_MS)) return;
    const pause = shown.failures ? 2_000 : !ended && toDue > 60_000 ? Math.min(toDue - 30_000, 30_000) : 1_000;
    this.#timer = setTimeout(async () => {
      const search = this.#search;
      try {
        const again = await call("GET", `${pathOf(fate.receipt)}?times=true`, undefined, false);
        if (search !== this.#search || this.#shown !== shown) return;
        if (again.outcome !== fate.outcome) {
          announce(`Now ${OUTCOMES[again.outcome] ?? again.outcome}.`);
          shown.since = Date.now();
        }
        shown.failures = 0;
        shown.fate = { ...again, receipt: fate.receipt };
        this.#fill();
        this.#list();
      } catch (error) {
        if (search !== this.#search || this.#shown !== shown) return;
        if ([404, 421].includes(error.status)) {
          this.#forgotten();
          return;
        }
        // The banner says that the server is away, or asks for a token; a later look tells more.
        shown.failures += 1;
      }
      if (this.#shown === shown) this.#follow();
    }, pause);
  }

  /** The server does not know the message that is shown any more, such as one in memory after a restart. */
  #forgotten() {
    const { element } = this.#shown;
    this.#shown = null;
    say(element.querySelector(".chip"), OUTCOMES.unknown);
    set(element.querySelector(".chip"), "class", "chip unknown");
    say(element.querySelector(".countdown"), "");
    say(element.querySelector(".remark"), "The server does not know this message any more. What is shown here is from before.");
    show(element.querySelector(".answers"), false);
    announce("The server does not know this message any more.");
  }

  /** Called each second: what counts down, and what became of the messages that were sent from here. */
  tick() {
    this.#lookAfterSent();
    const shown = this.#shown;
    if (!shown || isFinal(shown.fate.outcome)) return;
    fillCountdown(shown.element, shown.fate);
  }

  #fill() {
    const { fate, element } = this.#shown;
    say(element.querySelector("h3"), fate.subject ?? "A message");
    const chip = element.querySelector(".chip");
    say(chip, OUTCOMES[fate.outcome] ?? fate.outcome.replaceAll("_", " "));
    set(chip, "class", `chip ${fate.outcome}`);
    fillCountdown(element, fate);
    fillLife(element.querySelector(".life"), fate);
    const known = this.#sent.find((each) => each.receipt === fate.receipt);
    if (known) this.#learn(known, fate);
    fillIds(element.querySelector(".ids"), { message_id: known?.message_id, ...fate });
    fillParts(element.querySelector(".parts"), fate);
    show(element.querySelector(".answers"), !isFinal(fate.outcome) && fate.outcome !== "prepared");
  }

  #learn(known, fate) {
    if (fate.rescheduled_to) Object.assign(known, { receipt: fate.rescheduled_to, outcome: "pending", looked: 0 });
    else Object.assign(known, { outcome: fate.outcome, due_ms: fate.due_ms ?? known.due_ms });
    this.#list();
  }

  /** Look up one message a second of those that were sent from here, are due and have no end yet. */
  async #lookAfterSent() {
    if (this.#looking || document.hidden) return;
    const now = Date.now();
    const known = this.#sent.find((each) => !isFinal(each.outcome) && each.outcome !== "unknown" && (each.due_ms <= nowMs() || now - each.looked > AGAIN_MS)
      && now - each.looked > DUE_AGAIN_MS && each.receipt !== this.#shown?.fate.receipt);
    if (!known) return;
    known.looked = now;
    this.#looking = true;
    try {
      this.#learn(known, await call("GET", pathOf(known.receipt), undefined, false));
    } catch (error) {
      if (error.status === 404) this.#learn(known, { outcome: "unknown" });
    } finally {
      this.#looking = false;
    }
  }

  #list() {
    show(byId("sent"), this.#sent.length > 0);
    keyed(byId("sent-list"), this.#sent, (each) => each.receipt,
      (each) => h("li", {}, h("button", { type: "button", onclick: () => this.#open(each.receipt) }, h("span", {}, each.subject), h("span", { class: "what" }))),
      (element, each) => say(element.querySelector(".what"), `due ${time(each.due_ms)}${each.outcome ? ` · ${OUTCOMES[each.outcome] ?? each.outcome}` : ""}`));
  }
}

const refusals = {
  too_late: "It is too late: an attempt to deliver it runs, or its result is not known.",
  delivered: "It was delivered meanwhile.",
  expired: "It expired meanwhile.",
  cancelled: "It was cancelled before.",
};

const pathOf = (receipt) => `/v1/messages/${encodeURIComponent(receipt)}`;

function delayOf(form) {
  const delay = parseDuration(String(form.get("delay")));
  if (delay === null) throw new FieldError("delay", "Write a delay such as 10s, 5m or 1h 30m.");
  return delay;
}

function makeFound(panel) {
  return h("article", { class: "found" },
    h("header", {}, h("h3", { tabindex: "-1" }), h("span", { class: "chip" }), h("span", { class: "note countdown" })),
    h("p", { class: "fault remark" }),
    h("ol", { class: "life", "aria-label": "Its life" }),
    h("div", { class: "answers" },
      h("button", { type: "button", onclick: () => panel.move() }, "Reschedule …"),
      h("button", { type: "button", onclick: () => panel.cancel() }, "Cancel …")),
    h("dl", { class: "ids" }),
    h("div", { class: "parts" }));
}

function fillCountdown(element, fate) {
  const left = (fate.due_ms ?? 0) - nowMs();
  say(element.querySelector(".countdown"), isFinal(fate.outcome) || !fate.due_ms ? "" : left > 0 ? `due in ${duration(left)}` : "due now");
}

/** The gap to the due time; before it with a minus. */
function gapOf(event, fate) {
  if (event.us === null) return event.open ? "" : "time not kept";
  if (event.kind === "due" || !fate.due_ms) return "";
  return offset(event.us - fate.due_ms * 1000);
}

function fillLife(list, fate) {
  const events = lifeOf(fate);
  const seen = new Map();
  const named = events.map((event) => {
    const place = seen.get(event.name) ?? 0;
    seen.set(event.name, place + 1);
    return { ...event, key: `${event.kind} ${event.name} ${place}` };
  });
  keyed(list, named, (event) => event.key,
    () => h("li", {}, h("span", { class: "event" }), h("span", { class: "when" }), h("span", { class: "gap" })),
    (element, event) => {
      set(element, "class", `${event.kind}${event.open ? " open" : ""}`);
      set(element, "data-event", event.kind);
      const [name, when, gap] = element.children;
      say(name, event.name);
      say(when, event.us === null ? (event.open ? "not yet" : "") : timeFine(event.us / 1000));
      set(when, "title", event.us === null ? "" : iso(event.us / 1000));
      say(gap, gapOf(event, fate));
      set(gap, "title", gap.textContent && event.us !== null ? "against its due time" : "");
    });
}

function fillIds(list, fate) {
  const rows = [["Receipt", fate.receipt], ["Message id", fate.message_id], ["Due", fate.due_ms ? iso(fate.due_ms) : null],
    ["Broker group", fate.broker_group], ["Attempts", fate.attempts > 1 ? String(fate.attempts) : null],
    ["Moved to", fate.rescheduled_to], ["Original", fate.original_receipt], ["Tag", fate.tag], ["Order key", fate.order_key],
    ["Expires", fate.expires_ms ? iso(fate.expires_ms) : null],
    ["Perhaps twice", fate.unanswered_elsewhere ? `${fate.unanswered_elsewhere} hand-overs without an answer` : null],
  ].filter(([, value]) => value);
  // `display: contents` would cost the list its meaning, so terms and values are children of the list itself.
  const wanted = rows.map(([name, value]) => `${name}\n${value}`).join("\n");
  if (list.dataset.shows === wanted) return;
  list.dataset.shows = wanted;
  list.replaceChildren(...rows.flatMap(([name, value]) => [
    h("dt", {}, name),
    h("dd", {}, h("span", { class: ["Receipt", "Message id", "Moved to", "Original"].includes(name) ? "mono" : "" }, value),
      ["Receipt", "Message id"].includes(name) ? copyButton(value) : null),
  ]));
}

function fillParts(place, fate) {
  if (place.childElementCount || fate.body === undefined) return;
  if (fate.body_left_out) {
    place.append(h("p", { class: "note" }, "The body is too large to be shown here."));
    return;
  }
  const properties = Object.entries(fate.properties ?? {});
  if (properties.length) {
    place.append(h("h4", {}, "Properties"), h("dl", { class: "ids properties" },
      ...properties.slice(0, 100).flatMap(([name, value]) => [h("dt", { class: "mono" }, name), h("dd", {}, String(value).slice(0, BODY_SHOWN))])));
  }
  const { text, note } = bodyText(fate);
  const body = h("pre", { class: "body", tabindex: "0", "aria-label": "Body" }, text.slice(0, BODY_SHOWN) || "(empty)");
  place.append(h("h4", {}, "Body ", h("span", { class: "note" }, note)), body);
  if (text.length > BODY_SHOWN) {
    const more = h("button", { type: "button", class: "quiet small" }, "Show more");
    let shown = BODY_SHOWN;
    more.addEventListener("click", () => {
      shown *= 4;
      body.textContent = text.slice(0, shown);
      show(more, shown < text.length);
    });
    place.append(more);
  }
}

function bodyText(fate) {
  if (fate.body_encoding === "base64") return { text: fate.body, note: `${bytes(Math.floor(fate.body.length * 0.75))}, shown as base64` };
  const text = typeof fate.body === "string" ? fate.body : JSON.stringify(fate.body, null, 2);
  return { text: visible(text), note: `${bytes(new TextEncoder().encode(text).length)}${fate.body_encoding === "json" ? ", JSON" : ""}` };
}
