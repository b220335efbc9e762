// The server's clock: that of the browser may be hours off. No DOM.

let aheadMs = 0;

/** The server said that it is this time. */
export function heard(serverMs) {
  aheadMs = serverMs - Date.now();
}

// The header `Date` has whole seconds.
const HEADER_MS = 2_000;

/** The header `Date` of an answer. It counts where no figures say the time more exactly. */
export function heardHeader(date) {
  const serverMs = Date.parse(date ?? "");
  if (Math.abs(serverMs - nowMs()) > HEADER_MS) heard(serverMs);
}

/** Milliseconds since 1970 by the server's clock. */
export function nowMs() {
  return Date.now() + aheadMs;
}
