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

export async function problemOf(response) {
  const read = await response.json().catch(() => ({}));
  const fallback = { code: `http_${response.status}`, title: `HTTP ${response.status}` };
  const waits = Number(response.headers.get("Retry-After")) || undefined;
  return { ...fallback, retry_after: waits, ...(read.error ? { detail: read.error } : read), status: response.status };
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
