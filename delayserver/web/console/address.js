// What the page shows, as parts of its address. So a reload keeps it, a link leads to it, and the way back goes back.

const parts = () => new URLSearchParams(location.search);

/** A part of the address, or an empty text. */
export function shown(name) {
  return parts().get(name) ?? "";
}

/**
 * Put parts into the address: `{name: text}`; an empty text takes a part out. With `step` the browser's way back leads to the address
 * of before.
 */
export function showing(values, { step = false, hash = location.hash } = {}) {
  const wanted = parts();
  for (const [name, value] of Object.entries(values)) {
    if (value) wanted.set(name, value);
    else wanted.delete(name);
  }
  const query = wanted.toString();
  const address = `${location.pathname}${query ? `?${query}` : ""}${hash}`;
  if (address === `${location.pathname}${location.search}${location.hash}`) return;
  if (step) window.history.pushState(null, "", address);
  else window.history.replaceState(null, "", address);
}

/** Calls `act` when the person goes back or forth to another address of this page. */
export function onReturn(act) {
  addEventListener("popstate", act);
}
