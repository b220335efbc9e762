// Broker groups with their nodes, the stages, and the queues against their bounds.

import { byId, h, keyed, say, set, show } from "./dom.js";
import { bound, count, duration, latency, percent, rate } from "./format.js";
import { isFull } from "./trouble.js";

// Bounds that everybody sees; of all others the fullest.
const ROOM_MAX = 9;
const STAGES = {
  decode: "read a request", commit_wait: "wait for a commit", sync: "sync to the disk", replay_lag: "place in its minute",
  load: "load from disk", wheel: "leave the wheel", queue: "wait in the queue", hand_off: "hand over", settle: "record outcomes",
};
const SCALE_US = [10, 10_000_000];
const TICKS_US = [10, 1_000, 100_000, 10_000_000];

const fact = (name, title = "") => h("span", { title: title || false }, h("b"), ` ${name}`);

/** Where a time lies on the scale of the stages, whose decades have the same width. */
function placeOf(us) {
  const [low, high] = SCALE_US.map(Math.log);
  return `${(Math.min(Math.max((Math.log(Math.max(us, 1)) - low) / (high - low), 0), 1) * 100).toFixed(1)}%`;
}

export class DeliveryPanel {
  constructor() {
    byId("stages-scale").append(...TICKS_US.map((us) => {
      const tick = h("span", {}, bound(us));
      tick.style.left = placeOf(us);
      return tick;
    }));
  }

  update(metrics, history, view) {
    this.#groups(metrics, history, view);
    this.#stages(history);
    this.#room(metrics);
  }

  #groups(metrics, history, view) {
    const groups = Object.entries(metrics.groups ?? {}).map(([name, group]) => ({ name, ...group }));
    keyed(byId("groups"), groups, (group) => group.name, makeGroup, (element, group) => {
      say(element.querySelector(".speed"), `${rate(history.rate("byGroup", 5000, group.name) ?? 0)} / s`);
      const values = [group.delivered, group.waiting, group.in_flight, group.attempts_failed, group.maybe_delivered_twice];
      const facts = element.querySelector(".facts-row").children;
      values.forEach((value, place) => say(facts[place].firstChild, count(value)));
      facts[3].classList.toggle("hot", (history.rate("byGroup", 5000, group.name) ?? 0) === 0 && group.nodes.some((node) => node.circuit === "open"));
      keyed(element.querySelector(".nodes"), group.nodes, (node) => node.address, makeNode, (item, node) => updateNode(item, node, view));
    });
  }

  #stages(history) {
    const stages = history.stages().filter((stage) => stage.mean !== null);
    show(byId("stages-none"), stages.length === 0);
    show(byId("stages-scale"), stages.length > 0);
    keyed(byId("stages"), stages, (stage) => stage.name,
      (stage) => h("li", {}, h("span", { class: "name", title: stage.name }, STAGES[stage.name] ?? stage.name), h("span", { class: "track" }, h("i")), h("span", { class: "value" })),
      (element, stage) => {
        const left = placeOf(stage.mean);
        const dot = element.querySelector("i");
        if (dot.style.left !== left) dot.style.left = left;
        say(element.querySelector(".value"), latency(stage.mean));
      });
  }

  #room(metrics) {
    const queues = (metrics.queues ?? []).filter((queue) => queue.bound > 0)
      .map((queue) => ({ ...queue, share: queue.used / queue.bound, key: `${queue.name} ${queue.group ?? ""}` }));
    const fullest = new Set([...queues].sort((one, other) => other.share - one.share).slice(0, ROOM_MAX).map((queue) => queue.key));
    keyed(byId("room"), queues.filter((queue) => fullest.has(queue.key)), (queue) => queue.key,
      () => h("li", {}, h("span", { class: "name" }), h("span", { class: "track" }, h("i")), h("span", { class: "value" })),
      (element, queue) => {
        const name = `${queue.name.replaceAll("_", " ")}${queue.group ? `, ${queue.group}` : ""}`;
        say(element.firstChild, name);
        set(element, "title", `${name}: ${count(queue.used)} of ${count(queue.bound)}`);
        const width = `${Math.min(queue.share * 100, 100).toFixed(1)}%`;
        const bar = element.querySelector("i");
        if (bar.style.width !== width) bar.style.width = width;
        say(element.lastChild, percent(queue.share));
        element.classList.toggle("full", isFull(queue));
      });
  }
}

function makeGroup(group) {
  return h("article", { class: "group", "aria-label": `Broker group ${group.name}` },
    h("header", {}, h("h3", {}, group.name), h("span", { class: "speed" })),
    h("p", { class: "facts-row" }, fact("handed over since the start", "Redeliveries and dead letters that were sent again count as well. The balance above counts each accepted message once, over all starts."), fact("waiting"), fact("in flight"), fact("failed attempts"), fact("maybe twice")),
    h("ul", { class: "nodes" }));
}

function makeNode(node) {
  return h("li", { class: "node" }, h("span", { class: "name" }, node.address), h("span", { class: "chip" }), h("p", { class: "what" }));
}

/** The state in one word: what the server says, or what its circuit means. */
function stateOf(node) {
  if (node.weight === 0) return "draining";
  if (node.state) return node.state;
  return node.circuit === "open" ? "down" : node.last_error ? "failing" : "up";
}

function updateNode(item, node) {
  const state = stateOf(node);
  const chip = item.querySelector(".chip");
  say(chip, state === "unknown" ? "not tried yet" : state);
  set(chip, "class", `chip ${state}`);
  const facts = [`circuit ${node.circuit}`];
  if (node.retry_in_ms > 0) facts.push(`tries again in ${node.retry_in_ms < 1000 ? `${node.retry_in_ms} ms` : duration(node.retry_in_ms)}`);
  facts.push(`weight ${node.weight}`);
  if (node.failures) facts.push(`${count(node.failures)} failed attempt${node.failures === 1 ? "" : "s"} since the start`);
  if (node.problem) facts.push(node.problem);
  if (node.last_error) facts.push(`last error: ${node.last_error}`);
  say(item.querySelector(".what"), facts.join(" · "));
}
