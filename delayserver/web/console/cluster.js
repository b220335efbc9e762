// The member of a cluster that this server is, the log that it follows, and all shards. Without a cluster the part is not there.

import { call } from "./api.js";
import { byId, h, keyed, say, set, show } from "./dom.js";
import { bytes, count, duration, latency } from "./format.js";

// The figures of all members are asked for so often. The gateway asks each member then.
const AGAIN_MS = 5_000;
const ROLES = { primary: "primary", standby: "standby", taking_over: "takes over" };

const none = (value, text) => (value === null || value === undefined ? "–" : text(value));

function factsOf(member, nowMs, backupMs) {
  return {
    member: [
      [count(member.epoch), "epoch"],
      [none(member.lag_records, count), "records behind"],
      [member.lag_ms ? latency(member.lag_ms * 1000) : "0 s", "behind"],
      ...(member.role === "standby" ? [] : [
        [latency(member.lease_left_ms * 1000), "lease left"],
        [none(member.beat_age_ms, (ms) => `${latency(ms * 1000)} ago`), "last beat"],
        [`${count(member.proposals)} (${bytes(member.proposals_bytes)})`, "on their way"],
      ]),
    ],
    log: [
      [none(member.log_copies, count), "copies"],
      [none(member.log_in_sync, count), "in sync"],
      [none(member.log_in_sync_min, count), "needed"],
      [none(member.log_kept, count), "positions kept"],
      [count(member.log_unanswered), "looks without an answer"],
      [backupMs === null || backupMs === undefined ? "none since the start" : `${duration(nowMs - backupMs)} ago`, "last backup of this member"],
    ],
  };
}

/** What is wrong with the log, for people; empty where nothing is. */
function logFaults(log) {
  const found = [...log.faults];
  if (!log.answers) found.unshift("It did not answer the last look.");
  if (log.in_sync !== null && log.in_sync < log.copies) found.unshift("A broker is gone, or lags.");
  return found;
}

/** What is wrong with the log of the member that this server is. */
export function faultsOf(member) {
  return logFaults({ answers: member.log_answers, copies: member.log_copies, in_sync: member.log_in_sync, faults: member.log_faults });
}

/** Of which shard the figures are, where there are several; empty for one. */
export function shardOf(metrics, shards) {
  const member = metrics.cluster?.[0];
  const named = member === undefined ? "one shard" : `shard ${member.shard}, at its member ${member.member}`;
  return shards > 1 ? `The figures of this page are those of ${named}. The cluster has ${count(shards)} shards. What is coming, and the list of the cluster, are of all of them.` : "";
}

/** What a member says of itself, for people. */
export function toldBy(member) {
  if (member.unanswered !== null) return [member.address, member.unanswered];
  const behind = member.lag_records === null ? "its log does not answer" : `${count(member.lag_records)} records (${latency(member.lag_ms * 1000)}) behind`;
  return [member.address, `epoch ${count(member.epoch)}`, ...(member.role === "primary" ? [] : [behind]), ...(member.damaged ? ["damaged: it does not lead again"] : []), ...(member.front ? [member.front] : []), `if it dies now: ${member.if_it_dies}`];
}

function chipOf(member) {
  if (member.unanswered === "not asked") return [`${member.announced}, not asked`, "warn"];
  if (member.unanswered !== null) return [`${member.announced} by the map`, "down"];
  if (member.damaged) return [`${ROLES[member.role] ?? member.role}, damaged`, "bad"];
  return [ROLES[member.role] ?? member.role, member.role === "taking_over" || member.lag_records === null || member.front ? "warn" : "up"];
}

/** The state of a shard: a word, and how good that is. */
export function stateOf(shard) {
  if (shard.state === "closed") return ["closed", ""];
  if (!shard.members.length) return ["no member yet", "warn"];
  const answers = shard.members.filter((each) => each.role !== null);
  if (!answers.some((each) => each.role === "primary")) return [answers.length ? "no primary" : "no answer", "bad"];
  if (shard.log && logFaults(shard.log).length) return ["look after its log", "bad"];
  if (answers.some((each) => each.damaged)) return ["a member is damaged", "bad"];
  return [shard.state === "open" ? "open" : "draining", answers.length === shard.members.length && answers.length > 1 ? "up" : "warn"];
}

function factsOfShard(shard) {
  const log = shard.log ?? { copies: null, in_sync: null, in_sync_min: null, kept: null };
  return [
    [count(shard.epoch), "epoch"],
    [none(shard.pending, count), "pending"],
    [none(log.copies, count), "copies in Kafka"],
    [none(log.in_sync, count), "in sync"],
    [none(log.in_sync_min, count), "needed"],
    [none(log.kept, count), "positions kept"],
  ];
}

export class ClusterPanel {
  #askedAt = 0;

  update(metrics, view) {
    const member = metrics.cluster?.[0];
    for (const part of [byId("cluster"), byId("cluster-way")]) show(part, member !== undefined);
    if (member === undefined) return;
    const facts = factsOf(member, view.nowMs, metrics.storage.last_backup_ms);
    say(byId("cluster-lead"), `This server is member ${member.member} of shard ${member.shard}.`);
    say(byId("cluster-member"), `Member ${member.member}`);
    this.#chip("cluster-role", ROLES[member.role] ?? member.role, member.role === "taking_over" ? "warn" : "up");
    this.#facts(byId("cluster-facts"), facts.member);
    const faults = faultsOf(member);
    this.#chip("cluster-log-state", faults.length ? "look after it" : "well", faults.length ? "bad" : "up");
    this.#facts(byId("cluster-log-facts"), facts.log);
    keyed(byId("cluster-faults"), faults, (text) => text, () => h("li"), (element, text) => say(element, text));
    this.#askForAll();
  }

  /** Ask for all members from time to time. An answer from before stays until the next one. */
  async #askForAll() {
    if (Date.now() - this.#askedAt < AGAIN_MS) return;
    this.#askedAt = Date.now();
    const note = byId("cluster-shards-note");
    try {
      this.#showAll((await call("GET", "/v1/cluster", undefined, false)).shards);
      show(note, false);
    } catch (problem) {
      say(note, `The list of all members did not come: ${problem.message}`);
      show(note, true);
    }
    this.#askedAt = Date.now();
  }

  #showAll(shards) {
    keyed(byId("cluster-shards"), shards, (shard) => shard.shard,
      (shard) => h("article", { class: "group", "aria-labelledby": `cluster-shard-${shard.shard}` },
        h("header", {}, h("h3", { id: `cluster-shard-${shard.shard}` }, `Shard ${shard.shard}`), h("span", { class: "chip" })),
        h("div", { class: "facts-row" }), h("ul", { class: "faults" }), h("div", { class: "nodes" })),
      (element, shard) => {
        const [header, facts, faults, members] = element.children;
        this.#mark(header.lastChild, ...stateOf(shard));
        this.#facts(facts, factsOfShard(shard));
        keyed(faults, shard.log ? logFaults(shard.log) : [], (text) => text, () => h("li"), (line, text) => say(line, text));
        show(faults, faults.children.length > 0);
        keyed(members, shard.members, (member) => member.address,
          () => h("div", { class: "node" }, h("span", { class: "name" }), h("span", { class: "chip" }), h("span", { class: "what" })),
          (row, member) => {
            say(row.children[0], member.member === null ? member.address : member.member);
            this.#mark(row.children[1], ...chipOf(member));
            say(row.children[2], toldBy(member).join(" · "));
          });
      });
  }

  #chip(id, text, kind) {
    this.#mark(byId(id), text, kind);
  }

  #mark(element, text, kind) {
    say(element, text);
    set(element, "class", `chip ${kind}`);
  }

  #facts(row, facts) {
    keyed(row, facts, ([, name]) => name, ([, name]) => h("span", {}, h("b"), ` ${name}`), (element, [value]) => say(element.firstChild, value));
  }
}
