// Calls of the HTTP API. An error is a problem document of RFC 9457. A 401 asks for a token, and then the call is made again.

import { heardHeader } from "./clock.js";

/** An answer that is an error: its name, and a sentence for people. */
export class Problem extends Error {
  constructor(status, document) {
    super(document.detail ?? document.title ?? `the server answered ${status}`);
    this.status = status;
    this.error = document.error ?? "unknown_error";
    this.outcome = document.outcome ?? null;
    this.retryAfterMs = document.retry_after_ms ?? null;
  }
}

let askForToken = async () => false;

/** Who asks for a token: an async function, true once there is one. Its argument: whether a person acts, or the page by itself. */
export function onUnauthenticated(ask) {
  askForToken = ask;
}

/** The answer in a problem that says what became of a message, for those who show it. Raises other problems again. */
export function outcomeOf(problem) {
  if (problem.status !== 409 || !problem.outcome) throw problem;
  return { outcome: problem.outcome };
}

/** Who the server takes this browser for: `{needs_token, token_id, roles, subjects}`. Asks for a token if one is needed. */
export async function session(byHand = true) {
  const response = await fetch("/v1/session", { headers: { accept: "application/json" } });
  const state = response.ok ? await response.json() : { needs_token: response.status === 401, token_id: "", roles: [] };
  if (state.needs_token && (await askForToken(byHand))) return session(byHand);
  return state;
}

/** One call with a JSON answer. Raises Problem, also when the server is not reached. */
export async function call(method, path, body = undefined, byHand = true) {
  let response;
  try {
    response = await fetch(path, {
      method,
      headers: body === undefined ? { accept: "application/json" } : { accept: "application/json", "content-type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch {
    throw new Problem(0, { error: "connection_lost", detail: "The server does not answer. Nothing is known of this call; try again." });
  }
  heardHeader(response.headers.get("date"));
  if (response.status === 401 && path !== "/login" && (await askForToken(byHand))) return call(method, path, body, byHand);
  const text = await response.text();
  let document = {};
  try {
    document = text ? JSON.parse(text) : {};
  } catch {
    document = { detail: `the server answered ${response.status} without a document` };
  }
  if (!response.ok) throw new Problem(response.status, document);
  return document;
}
