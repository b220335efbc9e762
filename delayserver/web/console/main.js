// The console: one stream of figures in, all panels brought up to date.

import { showing } from "./address.js";
import { call, onUnauthenticated, session } from "./api.js";
import { heard } from "./clock.js";
import { Cases } from "./cases.js";
import { ClusterPanel, shardOf } from "./cluster.js";
import { ComingPanel } from "./coming.js";
import { ConsumersPanel } from "./consumers.js";
import { DeliveryPanel } from "./delivery.js";
import { FieldError, ask, isAsking } from "./dialogs.js";
import { byId, copyButton, say, set, show } from "./dom.js";
import { duration } from "./format.js";
import { History, quantile } from "./history.js";
import { HourPanel } from "./hour.js";
import { LatenessPanel } from "./lateness.js";
import { LettersPanel } from "./letters.js";
import { Live } from "./live.js";
import { MessagePanel } from "./messages.js";
import { Now } from "./now.js";

const history = new History();
const now = new Now();
const hour = new HourPanel();
const lateness = new LatenessPanel(() => render());
const coming = new ComingPanel();
const delivery = new DeliveryPanel();
const letters = new LettersPanel();
const consumers = new ConsumersPanel(() => render(), (group) => letters.open(group));
const cases = new Cases({ again: () => render(), remove: (group) => consumers.remove(group), letters: (group) => letters.open(group) });
const message = new MessagePanel();
const cluster = new ClusterPanel();

let latest = null;
let hours = null;

/** What several panels need, worked out once. */
function viewOf(metrics) {
  const bounds = Object.values(metrics.lateness ?? {})[0]?.bounds_us ?? null;
  const counts = history.lateness();
  const seen = Math.round(history.seenMs() / 1000);
  const whole = seen >= 59;
  const p99 = bounds ? quantile(bounds, counts, 0.99) : null;
  return {
    nowMs: metrics.clock.server_us / 1000,
    bounds,
    p50: bounds ? quantile(bounds, counts, 0.5) : null,
    p99,
    p99Us: p99?.us ?? null,
    latest: counts.reduce((sum, value) => sum + value, 0),
    span: whole ? "of the last minute" : `of the last ${seen} s`,
    spanOf: whole ? "in the last minute" : `in the last ${seen} s`,
  };
}

function render() {
  if (latest === null) return;
  const { metrics, minutes } = latest;
  const ofShard = shardOf(metrics, latest.shards ?? 1);
  say(byId("one-shard"), ofShard);
  show(byId("one-shard"), ofShard !== "");
  const view = viewOf(metrics);
  cases.update(metrics, view);
  now.update(metrics, history, view);
  hour.update(metrics);
  lateness.update(metrics, history, view);
  // A standby of a cluster does not count what is to come.
  show(byId("coming"), Boolean(minutes || hours));
  if (minutes) coming.minutes(minutes, view.nowMs);
  if (hours) coming.hours(hours, view.nowMs);
  delivery.update(metrics, history, view);
  consumers.update(metrics, view);
  cluster.update(metrics, view);
  showPulls(metrics.groups);
  message.tick();
  show(byId("welcome"), metrics.accepted === 0 && !(metrics.broker?.published > 0));
  say(byId("about"), `delayserver ${metrics.version} · server ${metrics.server_id} · up ${duration(metrics.uptime_s * 1000)}`);
}

const banner = byId("banner");
const AWAY = "The server does not answer. It connects again by itself.";
const NO_TOKEN = { text: "This server asks for a token. Log in to see its figures.", health: "Not logged in" };
const FIGURES = ["now", "hour", "lateness", "coming", "delivery", "consumers"];
const some = (list) => (list.length > 3 ? `${list.slice(0, 3).join(", ")} and ${list.length - 3} more` : list.join(", "));
let lostAt = 0;
// Why the server gives this person no figures; null if it does, or if it is away.
let refused = null;

/** Empty cards would say nothing, and figures from before are not for a person who may not see them. */
function refuse(why) {
  refused = why;
  for (const id of FIGURES) show(byId(id), !refused);
  // With the next figures it comes back, if the server has a cluster.
  if (refused) for (const id of ["cluster", "cluster-way", "one-shard"]) show(byId(id), false);
}

function trouble(text, health = "No connection") {
  say(byId("banner-text"), text);
  show(banner, true);
  set(byId("health"), "data-state", "wait");
  say(byId("health-text"), health);
}

function refusalOf(found) {
  if (found.needs_token) return NO_TOKEN;
  if (!found.token_id) return null;
  const has = (...roles) => found.roles.some((role) => roles.includes(role));
  if (has("look", "admin") && found.subjects.includes("*")) return null;
  const may = has("look", "admin") ? "Messages of these subjects can be found all the same."
    : has("send") ? "A message can be looked up by its receipt all the same." : "It may not look up messages either.";
  return {
    text: `The figures are for tokens with the role look and the pattern *. This one has the role ${some(found.roles)} for ${some(found.subjects)}. ${may}`,
    health: "No figures",
  };
}

const live = new Live({
  past(data) {
    history.remember(data.samples);
    hour.remember(data.samples);
  },
  live(data) {
    if (!data.metrics) {
      // The gateway answers, and the server behind it does not.
      trouble(data.problem?.detail ?? "The server does not answer.");
      return;
    }
    show(banner, false);
    heard(data.metrics.clock.server_us / 1000);
    history.add(data.metrics);
    const before = latest;
    latest = data;
    render();
    // The charts move the parts down that the address leads to.
    if (!before && location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
  },
  coming(data) {
    // They come before the first figures, which say what time it is. With the next ones they are shown.
    hours = data.hours ?? hours;
  },
  state(state) {
    document.documentElement.dataset.live = state;
    if (state === "lost") {
      if (!lostAt) lostAt = Date.now();
      // What was said of a refusal stands until the server is asked again.
      if (!refused) trouble(latest ? "The connection is lost. The figures below are from before; it connects again by itself." : AWAY);
    } else if (state === "open" && lostAt) {
      lostAt = 0;
      refuse(null);
      show(banner, false);
    }
  },
  who(found) {
    const before = refused;
    refuse(found && refusalOf(found));
    if (found) tellWho(found);
    if (refused) trouble(refused.text, refused.health);
    else if (before) trouble(AWAY);
  },
});

byId("banner-now").addEventListener("click", () => {
  greet();
  live.now();
});

// Whether the person said “Not now”. Then the page asks again when the person does something, and not by itself.
let declined = false;

async function login() {
  refuse(NO_TOKEN);
  trouble(refused.text, refused.health);
  const done = await ask("login", async (form) => {
    const token = String(form.get("token")).trim();
    if (!token) throw new FieldError("token", "Paste a token.");
    await call("POST", "/login", { token });
    byId("login-token").value = "";
    return true;
  });
  declined = !done;
  if (done) {
    refuse(null);
    live.now();
    greet();
  }
  return done === true;
}

function tellWho(found) {
  show(byId("logout"), Boolean(found.token_id));
  say(byId("who"), found.token_id ? `token ${found.token_id} (${found.roles.join(", ")})` : "");
}

byId("logout").addEventListener("click", async () => {
  try {
    await call("POST", "/logout");
    location.reload();
  } catch (error) {
    trouble(error.message);
  }
});
const greet = () => session().then(tellWho).catch(() => {});

// Several calls can find out at once that a token is needed. They share one dialog.
let loggingIn = null;
onUnauthenticated((byHand) => {
  if (declined && !byHand) return false;
  loggingIn ??= login().finally(() => { loggingIn = null; });
  return loggingIn;
});

function openHelp() {
  if (!isAsking()) byId("help-dialog").showModal();
}
byId("help-open").addEventListener("click", openHelp);
byId("help-open-too").addEventListener("click", openHelp);

const KEYS = {
  "/": () => byId("find-text").select(),
  n: () => message.send(),
  c: () => message.cancel(),
  r: () => message.move(),
  t: () => byId("theme").click(),
  "?": openHelp,
};
const ways = [...document.querySelectorAll(".ways a")];
ways.forEach((_, place) => {
  KEYS[String(place + 1)] = () => {
    const way = ways.filter((each) => !each.hidden)[place];
    if (!way) return;
    way.click();
    byId(way.hash.slice(1)).querySelector("h2").setAttribute("tabindex", "-1");
    byId(way.hash.slice(1)).querySelector("h2").focus({ preventScroll: true });
  };
});

addEventListener("keydown", (event) => {
  const typing = event.target instanceof Element && event.target.closest("input, textarea, select");
  if (event.ctrlKey || event.metaKey || event.altKey || isAsking()) return;
  if (typing) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const act = KEYS[event.key];
  if (act) {
    event.preventDefault();
    act();
  }
});

// Which part of the page is looked at.
const seen = new Map();
const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) seen.set(entry.target.id, entry.isIntersecting);
  const current = ways.find((way) => seen.get(way.hash.slice(1)));
  // Before the figures are there, the parts are not where they will be.
  if (current && latest) showing({}, { hash: current === ways[0] ? "" : current.hash });
  for (const way of ways) {
    if (way === current) set(way, "aria-current", "true");
    else way.removeAttribute("aria-current");
  }
}, { rootMargin: "-120px 0px -55% 0px" });
for (const way of ways) watcher.observe(byId(way.hash.slice(1)));

const origin = location.origin;

/** Shows a command with a button that copies it. */
function showCommand(id, command) {
  const shell = byId(id).closest(".shell");
  if (byId(id).textContent === command) return;
  say(byId(id), command);
  shell.querySelector("button")?.remove();
  shell.append(copyButton(command));
}

/** Shows commands that receive messages: from this server, or from the node that has them. */
function showPulls(groups) {
  const nodes = Object.values(groups ?? {}).flatMap((group) => group.nodes);
  const away = nodes.length && !nodes.some((node) => node.address === "embedded");
  const command = away
    ? `delayserver pull orders --group me --max 10 --wait 20s --ack --server ${nodes[0].address}`
    : `curl ${origin}/v1/subjects/orders/groups/me/pull -d '{"max_messages": 10, "wait_ms": 20000, "ack": true}'`;
  for (const id of ["welcome-pull", "consumers-pull"]) showCommand(id, command);
}

showCommand("welcome-send", `curl ${origin}/v1/messages -d '{"subject": "orders", "body": "hello", "delay": "10s"}'`);
showPulls({});

greet();
message.start();
letters.start();
live.start();
