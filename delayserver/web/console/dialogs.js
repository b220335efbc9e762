// Native dialogs that ask before anything is done. Escape and the quiet button back out.

import { byId, say, set, show } from "./dom.js";

addEventListener("click", (event) => {
  const button = event.target instanceof Element ? event.target.closest("[data-close]") : null;
  button?.closest("dialog").close("");
});

/** Whether any dialog is open. */
export function isAsking() {
  return document.querySelector("dialog[open]") !== null;
}

/**
 * Ask by the dialog `name`, whose parts are `NAME-dialog`, `NAME-form` and `NAME-fault`. `act(form)` does what was confirmed;
 * if it raises, the dialog stays and shows why. Resolves to what `act` returned, or to null if the person backed out.
 */
export function ask(name, act) {
  const dialog = byId(`${name}-dialog`);
  const form = byId(`${name}-form`);
  const fault = byId(`${name}-fault`);
  show(fault, false);
  for (const field of form.elements) field.removeAttribute("aria-invalid");
  return new Promise((resolve) => {
    let answer = null;
    const submit = async (event) => {
      event.preventDefault();
      const button = form.querySelector("[type=submit]");
      button.disabled = true;
      try {
        answer = await act(new FormData(form));
        dialog.close();
      } catch (error) {
        say(fault, error.message.charAt(0).toUpperCase() + error.message.slice(1));
        show(fault, true);
        const field = error.field ? form.elements[error.field] : null;
        if (field) {
          set(field, "aria-invalid", "true");
          field.focus();
        }
      } finally {
        button.disabled = false;
      }
    };
    form.addEventListener("submit", submit);
    dialog.addEventListener("close", () => {
      form.removeEventListener("submit", submit);
      resolve(answer);
    }, { once: true });
    if (!dialog.open) dialog.showModal();
  });
}

/** An error that belongs to a field of the form. */
export class FieldError extends Error {
  constructor(field, text) {
    super(text);
    this.field = field;
  }
}
