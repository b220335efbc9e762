// What can be wrong, how the figures show it, and what to do: one table. The texts are those of ops/RUNBOOK.md in short, and a test
// holds the headings and the commands in them against that page. No DOM.

import { bound, bytes, count, duration, latency, messages, percent } from "./format.js";

// A message is late in people's eyes from here on; a healthy server is three orders of magnitude below.
const LATE_US = 1_000_000;
const LATE_CONSUMER_MS = 300_000; // the longest pause of a redelivery: what is older did not come by a pause
// A producer that lives answers a check-back within milliseconds. One that died needs a minute to start again.
const LATE_CHECK_MS = 60_000;
const STALL_MS = 250; // the default of stall_log_ms
const FULL = 0.85;
// Caches are full when they work well.
const CACHES = ["open_files", "broker_cache_bytes", "memory_rows", "replay_memory_bytes"];

/** Whether a queue or a table is so full that something will have to wait or be refused. */
export function isFull(queue) {
  return queue.bound > 0 && !CACHES.includes(queue.name) && queue.used / queue.bound >= FULL;
}

const nodes = (m) => Object.entries(m.groups ?? {}).flatMap(([group, each]) => each.nodes.map((node) => ({ group, ...node })));
const first = (list, most = 3) => (list.length > most ? [...list.slice(0, most), `and ${list.length - most} more`] : list);
const sum = (m, field) => Object.values(m.groups ?? {}).reduce((total, group) => total + (group[field] ?? 0), 0);
/** Whether a row of a group stands for its dead letters, which no consumer is to take. */
export const isDead = (group) => group.subject.endsWith(`.dead.${group.group}`);
const checks = (group) => group.subject.endsWith(".check");

// A word of a command that a shell takes as it is.
const PLAIN = /^[\w.@%+=:,/-]+$/;
const word = (text) => (PLAIN.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
const stuck = (m, view) => (m.consumer_groups ?? [])
  .filter((group) => !checks(group) && !isDead(group) && group.lag > 0 && group.oldest_ms && view.nowMs - group.oldest_ms > LATE_CONSUMER_MS);
const open = (m, view) => (m.consumer_groups ?? [])
  .filter((group) => checks(group) && group.lag > 0 && group.oldest_ms && view.nowMs - group.oldest_ms > LATE_CHECK_MS);
const givenUp = (m) => (m.consumer_groups ?? []).filter((group) => group.dead_letters > 0);
const named = (groups) => groups.map((group) => ({ ...group, key: `${group.subject}\n${group.group}` }));
// How many commands a step has at most, one for each subject or group.
const COMMANDS_MAX = 3;

/**
 * The steps of a condition, with the names that the figures have: `[{text, commands}]`. A command of the runbook that has one of
 * the words of `words` stands there once for each group; the words are replaced in it.
 */
export function stepsOf(condition, groups) {
  return condition.act.map((step) => {
    const words = Object.entries(condition.words ?? {});
    const fill = (command, group) => words.reduce((text, [found, of]) => text.replaceAll(found, () => word(of(group))), command);
    const commands = step.split("`").filter((part, place) => place % 2 && words.some(([found]) => part.includes(found)));
    if (!commands.length || !groups.length) return { text: step, commands: [] };
    const filled = groups.slice(0, COMMANDS_MAX).flatMap((group) => commands.map((command) => fill(command, group)));
    return { text: commands.reduce((text, command) => text.replace(`: \`${command}\`.`, ":"), step), commands: filled };
  });
}

/**
 * `when(metrics, view)` gives the facts as sentences, or nothing. `view`: `nowMs`, `p99Us`, `latest` (messages of the minute). Of a
 * condition of consumer groups, `groups(metrics, view)` gives those that have it and `fact(group, view)` the sentence of one: a person
 * can acknowledge each. `words`: words of its commands, and what they stand for.
 */
export const CONDITIONS = [
  {
    id: "disk-full",
    severity: "bad",
    runbook: "3. The disk is full",
    says: "The disk is nearly full. The server refuses sends.",
    when: (m) => (m.storage.disk_low ? [`${bytes(m.storage.disk_free_bytes)} are free.`] : null),
    act: [
      "Nothing else stops: due messages go out, and space in reserve takes their outcomes.",
      "Make room: remove something foreign from the disk, use a larger disk, or shorten `storage.retention_ms` and `broker.retention_ms`.",
      "Never delete files of the directory by hand. The server notices by itself.",
    ],
  },
  {
    id: "start-waits-for-room",
    severity: "bad",
    runbook: "A start on a full disk",
    says: "The server waits for room on the disk.",
    when: (m) => (!m.ready && /bytes/.test(m.waits_for) ? [`${m.waits_for}.`] : null),
    act: [
      "Make room on the disk of the data directory, but delete nothing in that directory.",
      "Nothing is lost, and the server goes on by itself.",
    ],
  },
  {
    id: "not-ready",
    severity: "warn",
    runbook: "5. The server does not start",
    says: "The server is not ready yet.",
    // A standby of a cluster is as it must be.
    when: (m) => (!m.ready && m.cluster?.[0]?.role !== "standby" && !/bytes/.test(m.waits_for) ? [m.waits_for ? `It says: ${m.waits_for}.` : "It takes up its data directory."] : null),
    act: ["Wait: requests are answered `not_ready`, and it goes on by itself.", "If it ends, its last line names the file. Run `delayserver recover check data`."],
  },
  {
    id: "corruption",
    severity: "bad",
    runbook: "2. The disk is corrupt",
    says: "Bytes that were durable do not verify, or a file is missing.",
    when: (m) => {
      const found = [...(m.corruption ?? []), ...(m.broker?.damages ?? [])].map(String);
      return found.length ? first(found) : null;
    },
    act: [
      "What can be served goes on being served. Run `delayserver recover check data`; it changes nothing and may run beside the server.",
      "Then stop the server, copy the directory to a healthy disk, and run `delayserver recover repair data --dry-run` there.",
      "Never start the server between `repair` and `rebuild`.",
    ],
  },
  {
    id: "early",
    severity: "bad",
    runbook: "4. The clock is wrong",
    says: "Messages left before their time. The server broke a promise.",
    when: (m) => (m.early > 0 ? [`${messages(m.early)} since the start.`] : null),
    act: ["This is a fault of the server: keep a copy of the data directory and report it."],
  },
  {
    id: "duplicate-server-id",
    severity: "bad",
    runbook: "7. Two servers have one id",
    says: "Two servers have one id.",
    when: (m) => (m.duplicate_server_ids?.length ? first(m.duplicate_server_ids) : null),
    act: [
      "Decide which of the two is to live: the one that your senders use.",
      "Stop the other one, and move its data directory away. It must not start again beside the first.",
    ],
  },
  {
    id: "node-not-due",
    severity: "bad",
    runbook: "4. The clock is wrong",
    says: "The server’s clock is minutes ahead of a node’s.",
    when: (m) => {
      const found = nodes(m).filter((node) => node.problem === "not_due");
      return found.length ? first(found.map((node) => `${node.address} refuses messages (not_due).`)) : null;
    },
    act: ["The messages wait on the server. They leave when the clocks agree.", "Put the clock right: `chronyc makestep`, or your time service."],
  },
  {
    id: "node-not-proven",
    severity: "bad",
    runbook: "10. A node fails or does not answer",
    says: "A node does not take this server’s word.",
    when: (m) => {
      const found = nodes(m).filter((node) => node.problem === "server_not_proven");
      return found.length ? first(found.map((node) => `${node.address} of group ${node.group}: server_not_proven.`)) : null;
    },
    act: ["Give the server and the node the same `listen.server_secret`. Due messages wait until then."],
  },
  {
    id: "topic-refuses",
    severity: "bad",
    runbook: "10. A node fails or does not answer",
    says: "Kafka refuses messages of this server.",
    when: (m) => {
      const found = nodes(m).filter((node) => ["topic_missing", "topic_not_allowed", "message_too_large", "record_refused"].includes(node.problem));
      return found.length ? first(found.map((node) => `${node.address} of group ${node.group}: ${node.problem}.`)) : null;
    },
    act: ["The server’s log says which topic, and why. The refused messages wait, and are tried again every 30 seconds or more often."],
  },
  {
    id: "node-down",
    severity: "bad",
    runbook: "10. A node fails or does not answer",
    says: "A node counts as down.",
    when: (m) => {
      const found = nodes(m).filter((node) => node.circuit === "open" && !["not_due", "server_not_proven"].includes(node.problem));
      return found.length ? first(found.map((node) => `${node.address} of group ${node.group}: ${node.last_error || node.problem || "no answer"}`)) : null;
    },
    act: [
      "Look after the node, or the network to it. Its messages wait, or go to a fallback group. Nothing is lost.",
      "To let another group take over, change the routes in the configuration and call `delayserver reload`.",
    ],
  },
  {
    id: "late",
    severity: "bad",
    runbook: "DelayserverLate",
    says: "Messages come late.",
    when: (_m, view) =>
      (view.latest > 0 && view.p99Us !== null && view.p99Us >= LATE_US
        ? [`One of a hundred messages of the last minute was more than ${latency(view.p99Us)} late.`] : null),
    act: [
      "If a node has a problem, begin there: what waits for it leaves late.",
      "After a downtime the backlog leaves late, while fresh messages take turns with it. Wait until the pending count falls.",
      "Otherwise look where the time goes: a slow `sync` is the disk, a long `queue` or `hand_off` is a node, a long `wheel` is the machine.",
    ],
  },
  {
    id: "disk-refuses",
    severity: "bad",
    runbook: "8. The disk refuses",
    says: "The disk refused to read or write.",
    when: (m) => {
      const lines = [...(m.unreadable ?? [])];
      if (m.storage.disk_errors > 0 && m.storage.disk_error_last) lines.unshift(m.storage.disk_error_last);
      return lines.length ? first(lines) : null;
    },
    act: [
      "Nothing says that bytes changed. Look at `dmesg` and at `smartctl -a`.",
      "If a file of a window cannot be read, the server holds back the messages in it and goes on with all others.",
    ],
  },
  {
    id: "loop-stalls",
    severity: "warn",
    runbook: "14. All clients wait",
    says: "The event loop stood still, and all clients waited.",
    when: (m) => (m.event_loop.longest_stall_minute_ms >= STALL_MS ? [`For ${count(m.event_loop.longest_stall_minute_ms)} ms within the last minute.`] : null),
    act: [
      "Look at the disk first, then at the load of the machine and at swapping.",
      "If both are well, report a bug, with the lines of the log before it.",
    ],
  },
  {
    id: "consumer-stuck",
    severity: "warn",
    runbook: "9. A consumer group never acks",
    says: "A consumer group does not keep up.",
    groups: stuck,
    fact: (group, view) => `${group.group} on ${group.subject}: ${messages(group.lag)}, the oldest was due ${duration(view.nowMs - group.oldest_ms)} ago. ${
      group.leased || group.retrying ? `${count(group.leased)} are leased, ${count(group.retrying)} are retried.` : "None is handed out: no consumer pulls."}`,
    words: { SUBJECT: (group) => group.subject, GROUP: (group) => group.group },
    removes: true,
    act: [
      `It is told from ${LATE_CONSUMER_MS / 60_000} minutes on. If nobody is to consume this, acknowledge it here.`,
      "Find the consumer. Let it ack what it cannot handle, or nack it with a delay.",
      "If some messages always fail, let the group give them up: `delayserver groups policy SUBJECT --group GROUP --attempts 16`.",
      "If the group is not needed any more, remove it: `delayserver groups remove SUBJECT --group GROUP --yes`.",
    ],
  },
  {
    id: "transactions-open",
    severity: "warn",
    runbook: "12. A producer does not end its transactions",
    says: "A producer does not answer for its transactions.",
    groups: open,
    fact: (group) => `${messages(group.lag)} of ${group.subject} wait for the producers of ${group.group}.`,
    words: { "shop.check": (group) => group.subject },
    act: [
      "Look whether somebody consumes the check-backs, and what they ask: `delayserver peek shop.check --max 1 --json`.",
      "End one by hand where you know what the producer’s database says: `delayserver transactions commit` or `delayserver transactions rollback`.",
    ],
  },
  {
    id: "dead-letters",
    severity: "note",
    runbook: "DelayserverDeadLetters",
    says: "A consumer group gave messages up.",
    groups: givenUp,
    fact: (group) => `${group.group} on ${group.subject}: ${messages(group.dead_letters)}.`,
    words: { SUBJECT: (group) => group.subject, GROUP: (group) => group.group },
    letters: true,
    act: [
      "Look at them with their reasons, here or with: `delayserver dead list SUBJECT --group GROUP`.",
      "Mend the consumer, then send them again or drop them.",
    ],
  },
  {
    id: "frames-waiting",
    severity: "warn",
    runbook: "11. Clients do not read",
    says: "The memory for connections is used up, and clients wait.",
    when: (m) => (m.connection_memory?.frames_waiting > 0 ? [`${count(m.connection_memory.frames_waiting)} frames wait for memory.`] : null),
    act: [
      "The server cuts clients off that do not read, after 30 s.",
      "If all clients are well, raise `listen.memory_bytes_max`.",
    ],
  },
  {
    id: "bound-near",
    severity: "warn",
    runbook: "DelayserverQueueNearlyFull",
    says: "A queue or a table is nearly full.",
    when: (m) => {
      const found = (m.queues ?? []).filter(isFull);
      return found.length ? first(found.map((queue) => `${queue.name}${queue.group ? ` of ${queue.group}` : ""}: ${percent(queue.used / queue.bound)} of ${count(queue.bound)}.`)) : null;
    },
    act: [
      "What fills up from the left names the stage that waits: look at the first full one after which all are empty.",
      "Beyond a bound the server refuses by name (`queue_full`, `subjects_full`). Nothing that was accepted is lost.",
    ],
  },
  {
    id: "windows-ahead",
    severity: "note",
    runbook: "4. The clock is wrong",
    says: "Some minutes of the future are closed for sends.",
    when: (m) => (m.storage.retired_windows_ahead > 0 ? [`${count(m.storage.retired_windows_ahead)} windows, after a clock that was ahead.`] : null),
    act: ["Let the sender take a due time a minute earlier or later; the error `too_old` says where the window ends."],
  },
  {
    id: "clock-steps",
    severity: "note",
    runbook: "4. The clock is wrong",
    says: "The clock was stepped.",
    when: (m) => (m.clock.steps > 0 ? [`${count(m.clock.steps)} times since the start, the last time by ${m.clock.step_last_ms < 0 ? "−" : ""}${bound(Math.abs(m.clock.step_last_ms) * 1000)}.`] : null),
    act: [
      "Nothing is delivered early by the new time. If the clock was behind and was put right, there is nothing to do.",
      "If the clock was ahead, put it right: `chronyc makestep`, or your time service.",
    ],
  },
  {
    id: "maybe-twice",
    severity: "note",
    runbook: "10. A node fails or does not answer",
    says: "Some messages may have been delivered twice.",
    when: (m) => (sum(m, "maybe_delivered_twice") > 0 ? [`${messages(sum(m, "maybe_delivered_twice"))} since the start: a node did not answer in time, or the server died.`] : null),
    act: ["Look after the node (its disk, its machine), or raise `dispatch.deliver_timeout_ms`.", "`report latency` and `lookup` show the messages."],
  },
  {
    id: "stopped-reading",
    severity: "note",
    runbook: "11. Clients do not read",
    says: "Consumers asked for more than they read.",
    when: (m) => (m.errors?.client_stopped_reading > 0 ? [`${count(m.errors.client_stopped_reading)} were cut off since the start.`] : null),
    act: ["A consumer must read its replies before it sends further requests. The server gives back what it did not get."],
  },
];

const ORDER = { bad: 0, warn: 1, note: 2 };

/** The conditions that hold now, the worst first: `[{condition, facts, groups}]`. `acknowledged(condition, group)`: leave a group out. */
export function wrongNow(metrics, view, acknowledged = () => false) {
  return CONDITIONS.map((condition) => {
    if (!condition.groups) return { condition, facts: condition.when(metrics, view), groups: [] };
    const groups = named(condition.groups(metrics, view)).filter((group) => !acknowledged(condition, group));
    return { condition, facts: groups.length ? first(groups.map((group) => condition.fact(group, view))) : null, groups };
  }).filter((found) => found.facts)
    .sort((one, other) => ORDER[one.condition.severity] - ORDER[other.condition.severity]);
}
