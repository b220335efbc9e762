// A message's life as a list of events. No DOM.

const FINAL = ["delivered", "cancelled", "expired", "deduplicated", "dead_lettered", "rolled_back"];

/** Whether nothing but pulls and acks can come any more. */
export function isFinal(outcome) {
  return FINAL.includes(outcome);
}

const ENDS = {
  cancelled: "Cancelled", expired: "Expired", deduplicated: "Suppressed as a copy", dead_lettered: "Given up", rolled_back: "Rolled back",
};

/**
 * The events in their order: `[{name, kind, us, open}]`. `us` is null where the time is not known; `open` events are to come.
 * `fate` is the answer of the API, with `times` and `consumed`.
 */
export function lifeOf(fate) {
  const times = fate.times ?? {};
  const delivered = fate.outcome === "delivered";
  const waits = fate.outcome === "pending";
  const handed = times.handed_off_us || fate.dispatched_us || null;
  const events = [];
  const add = (name, kind, us, open = false) => events.push({ name, kind, us: us || null, open });

  if (times.accepted_us) add("Accepted", "accepted", times.accepted_us);
  // A lookup waits for the replay, so whatever it answers about has been placed.
  if (times.accepted_us) add("Replayed into its minute", "replayed", times.replayed_us);
  if (times.loaded_us || waits) add("Loaded into memory", "loaded", times.loaded_us, waits && !times.loaded_us);
  if (fate.due_ms) add("Due", "due", fate.due_ms * 1000, waits && !times.due_us);
  if (times.due_us) add("Left the wheel", "released", times.due_us);
  if (times.queued_us && delivered) add("Taken by a worker", "queued", times.queued_us);
  if (delivered || waits) add("Handed off", "handed-off", handed, !handed);
  if (delivered) add("Delivered", "delivered", times.delivered_us || handed);
  else if (ENDS[fate.outcome]) add(ENDS[fate.outcome], "ended", times.settled_us);
  for (const each of fate.consumed ?? []) {
    if (each.pulled_us) add(`Pulled by ${each.group}`, "pulled", each.pulled_us);
    if (each.acked_us) add(`Acked by ${each.group}`, "acked", each.acked_us);
  }
  if (delivered && !(fate.consumed ?? []).some((each) => each.pulled_us)) add("Pulled by a consumer", "pulled", null, true);
  return sorted(events);
}

/** By time, where it is known; an event without one stays behind its predecessor. Loaded early and due late can change places. */
function sorted(events) {
  let last = -Infinity;
  return events
    .map((event, place) => {
      last = event.us ?? last;
      return { event, place, at: event.us ?? last };
    })
    .sort((one, other) => Number(one.event.open && one.event.us === null) - Number(other.event.open && other.event.us === null)
      || one.at - other.at || one.place - other.place)
    .map((each) => each.event);
}
