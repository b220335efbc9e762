// The member of a cluster that this server is, and the log that it follows. Without a cluster the part is not there.

import { byId, h, keyed, say, set, show } from "./dom.js";
import { bytes, count, duration, latency } from "./format.js";

const ROLES = { primary: "primary", standby: "standby", taking_over: "takes over" };

/** What happens if the member dies now, as far as it knows itself. */
export function ifItDies(member) {
  if (member.role === "standby") return "If it dies now, nothing stops.";
  return "If it dies now, a standby goes on after some two seconds. Without one nothing is served until a member is back.";
}

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
export function faultsOf(member) {
  const found = [...member.log_faults];
  if (!member.log_answers) found.unshift("It did not answer the last look.");
  if (member.log_in_sync !== null && member.log_in_sync < member.log_copies) found.unshift("A broker is gone, or lags.");
  return found;
}

export class ClusterPanel {
  update(metrics, view) {
    const member = metrics.cluster?.[0];
    for (const part of [byId("cluster"), byId("cluster-way")]) show(part, member !== undefined);
    if (member === undefined) return;
    const facts = factsOf(member, view.nowMs, metrics.storage.last_backup_ms);
    say(byId("cluster-lead"), `This server is member ${member.member} of shard ${member.shard}.`);
    say(byId("cluster-member"), `Member ${member.member}`);
    this.#chip("cluster-role", ROLES[member.role] ?? member.role, member.role === "taking_over" ? "warn" : "up");
    this.#facts("cluster-facts", facts.member);
    say(byId("cluster-dies"), ifItDies(member));
    const faults = faultsOf(member);
    this.#chip("cluster-log-state", faults.length ? "look after it" : "well", faults.length ? "bad" : "up");
    this.#facts("cluster-log-facts", facts.log);
    keyed(byId("cluster-faults"), faults, (text) => text, () => h("li"), (element, text) => say(element, text));
  }

  #chip(id, text, kind) {
    say(byId(id), text);
    set(byId(id), "class", `chip ${kind}`);
  }

  #facts(id, facts) {
    keyed(byId(id), facts, ([, name]) => name, ([, name]) => h("span", {}, h("b"), ` ${name}`), (element, [value]) => say(element.firstChild, value));
  }
}
