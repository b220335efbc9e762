// Elements without HTML: all text comes in as text nodes, so that nothing from a message can become markup. Characters that would
// hide or turn a text are shown as escapes.

import { visible } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  const shown = children.filter((child) => child !== null && child !== undefined);
  element.append(...shown.map((child) => (child instanceof Node ? child : visible(String(child)))));
  return element;
}

/** An HTML element with attributes and children. Text children stay text. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An SVG element. */
export function s(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

export const byId = (id) => document.getElementById(id);

/** Set the text of an element, if it is another one. */
export function say(element, text) {
  const wanted = visible(String(text));
  if (element.textContent !== wanted) element.textContent = wanted;
}

/** Set an attribute, if it has another value. */
export function set(element, name, value) {
  const wanted = String(value);
  if (element.getAttribute(name) !== wanted) element.setAttribute(name, wanted);
}

/** Show or hide an element. */
export function show(element, shown) {
  if (element.hidden === shown) element.hidden = !shown;
}

/**
 * Keep one child for each item, in the order of the items. `make` builds the child of a new key, and `update` brings a
 * child up to date. Children of keys that are gone are removed. So focus and scroll stay where they are.
 */
export function keyed(parent, items, key, make, update) {
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let place = parent.firstElementChild;
  for (const item of items) {
    const name = String(key(item));
    let child = known.get(name);
    known.delete(name);
    if (child === undefined) {
      child = make(item);
      child.dataset.key = name;
    }
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
    update(child, item);
  }
  for (const child of known.values()) child.remove();
}

/** Announce a sentence to screen readers, once. */
export function announce(text) {
  byId("said").textContent = text;
}

/** A button that copies a text. */
export function copyButton(text, label = "Copy") {
  const button = h("button", { type: "button", class: "quiet small", "aria-label": `${label}: ${text.slice(0, 60)}` }, label);
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
      announce("Copied");
    } catch {
      // Browsers give pages a clipboard over TLS and on this machine alone.
      button.textContent = "Not copied";
      announce("Not copied. The browser allows it over TLS.");
    }
    setTimeout(() => { button.textContent = label; }, 1500);
  });
  return button;
}
