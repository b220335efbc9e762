// The stream of figures. It pauses while nobody looks, and connects again by itself.

import { session } from "./api.js";

const PAUSES_MS = [1000, 2000, 5000, 10_000];
// The server sends every second. A stream that is silent for so long is dead, whatever the network says.
const SILENCE_MS = 15_000;

export class Live {
  #source = null;
  #failures = 0;
  #timer = 0;
  #watch = 0;
  #handlers;

  /** `handlers`: `past(object)`, `live(object)`, `coming(object)`, `state("connecting" | "open" | "lost" | "paused")`; `who(session)` after a failure, null if the server does not answer. */
  constructor(handlers) {
    this.#handlers = handlers;
    document.addEventListener("visibilitychange", () => this.#visibility());
    addEventListener("online", () => this.now());
  }

  start() {
    this.#visibility();
  }

  /** Try now, without the rest of a pause. */
  now() {
    if (!document.hidden && this.#source === null) this.#open();
  }

  #visibility() {
    if (document.hidden) {
      this.#close();
      this.#handlers.state("paused");
    } else {
      this.#failures = 0;
      this.now();
    }
  }

  #open() {
    this.#close();
    if (!this.#failures) this.#handlers.state("connecting");
    const source = new EventSource("/v1/live");
    this.#source = source;
    for (const kind of ["past", "live", "coming"]) {
      source.addEventListener(kind, (event) => {
        this.#failures = 0;
        this.#heard();
        this.#handlers.state("open");
        this.#handlers[kind](JSON.parse(event.data));
      });
    }
    source.addEventListener("error", () => this.#lost());
    this.#heard();
  }

  #heard() {
    clearTimeout(this.#watch);
    this.#watch = setTimeout(() => this.#lost(), SILENCE_MS);
  }

  #close() {
    clearTimeout(this.#timer);
    clearTimeout(this.#watch);
    this.#source?.close();
    this.#source = null;
  }

  async #lost() {
    this.#close();
    this.#handlers.state("lost");
    const pause = PAUSES_MS[Math.min(this.#failures, PAUSES_MS.length - 1)];
    this.#failures += 1;
    // An EventSource does not say why it failed. A plain call does, and leads to the login.
    const who = await session(false).catch(() => null);
    this.#handlers.who(who);
    if (document.hidden || this.#source) return;
    this.#timer = setTimeout(() => this.now(), pause);
  }
}
