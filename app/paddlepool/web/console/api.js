// Requests to this server, with the API key where it wants one. Every way to fail is a Refusal.

import { remember, remembered } from "./dom.js";
import { language, t } from "./i18n.js";

const KEPT = "paddlepool-key";
export const keyEvents = new EventTarget(); // "wanted" after a 401, "changed" after setKey()
let key = remembered("sessionStorage", KEPT); // until this tab is closed

export const hasKey = () => key !== "";

export function setKey(value) {
  key = value;
  remember("sessionStorage", KEPT, key);
  keyEvents.dispatchEvent(new Event("changed"));
}

// What the server said against a request, or why it said nothing. `problem` has the members of
// problem+json; its code is "unreachable" where there was no answer.
export class Refusal extends Error {
  constructor(problem) {
    super(problem.detail ?? problem.title ?? problem.code);
    this.problem = problem;
  }

  get code() {
    return this.problem.code;
  }
}

// Errors of the protocol have no code; where a status says little, its number is shown.
const CODES = { 400: "invalid_request", 401: "unauthorized", 404: "model_not_found", 429: "quota_exceeded", 504: "deadline_exceeded" };

export async function problemOf(response) {
  const { status } = response;
  const read = await response.json().catch(() => ({ detail: t("detail.proxy"), language: language() }));
  const fallback = { code: (read.error && CODES[status]) || `http_${status}`, title: `HTTP ${status}` };
  const waits = Number(response.headers.get("Retry-After")) || undefined;
  return { ...fallback, retry_after: waits, ...(read.error ? { detail: read.error } : read), status };
}

// As fetch(), but a reply that is no success is thrown as a Refusal. An AbortError stays one.
export async function ask(address, options = {}) {
  const headers = new Headers(options.headers);
  // A header carries bytes; the server reads a key's as UTF-8.
  if (key) headers.set("X-Api-Key", String.fromCharCode(...new TextEncoder().encode(key)));
  let response;
  try {
    response = await fetch(address, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal({ code: "unreachable", detail: t("detail.unreachable"), language: language() });
  }
  if (response.ok) return response;
  if (response.status === 401) keyEvents.dispatchEvent(new Event("wanted"));
  throw new Refusal(await problemOf(response));
}

export const askJson = async (address, options) => (await ask(address, options)).json();
