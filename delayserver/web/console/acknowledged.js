// What a person has seen and does not want to be told of any more: kept by this browser until the condition is over.

const KEY = "acknowledged";
// A person acknowledges some. More are forgotten, the oldest first.
const KEPT_MAX = 200;

const nameOf = (server, condition, group) => `${server}\n${condition.id}\n${group.key}`;

export class Acknowledged {
  #names = new Set(read());

  has(server, condition, group) {
    return this.#names.has(nameOf(server, condition, group));
  }

  add(server, condition, group) {
    this.#names.add(nameOf(server, condition, group));
    this.#keep();
  }

  /** Tell of everything again. */
  clear(server) {
    this.#names = new Set([...this.#names].filter((name) => !name.startsWith(`${server}\n`)));
    this.#keep();
  }

  /** How many of `found` are acknowledged. What is over is forgotten, so that the page tells of it when it comes again. */
  prune(server, found) {
    const holds = new Set(found.map(({ condition, group }) => nameOf(server, condition, group)));
    const kept = [...this.#names].filter((name) => holds.has(name) || !name.startsWith(`${server}\n`));
    if (kept.length < this.#names.size) {
      this.#names = new Set(kept);
      this.#keep();
    }
    return kept.filter((name) => name.startsWith(`${server}\n`)).length;
  }

  #keep() {
    this.#names = new Set([...this.#names].slice(-KEPT_MAX));
    try {
      localStorage.setItem(KEY, JSON.stringify([...this.#names]));
    } catch {
      // Without storage it lasts as long as the page.
    }
  }
}

function read() {
  try {
    const found = JSON.parse(localStorage.getItem(KEY) ?? "[]");
    return Array.isArray(found) ? found.map(String) : [];
  } catch {
    return [];
  }
}
