// What the server says about itself in /info, asked for again and again while somebody looks.

import { askJson, keyEvents, Refusal } from "./api.js";

const SOON = 1_000; // milliseconds, while a model is still loading or the server is away
const LATER = 20_000;
const listeners = [];
let timer = 0;
let latest = { info: null, refusal: null };

export const server = () => latest;

// `listener` gets {info, refusal} after every answer, one of them null; at once if there is one.
export function onServer(listener) {
  listeners.push(listener);
  if (latest.info || latest.refusal) listener(latest);
}

export async function refresh() {
  clearTimeout(timer);
  try {
    latest = { info: await askJson("/info"), refusal: null };
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    latest = { info: null, refusal: error };
  }
  for (const listener of listeners) listener(latest);
  clearTimeout(timer);
  const settled = latest.info ? latest.info.ready && !loading(latest.info) : latest.refusal.code === "unauthorized";
  timer = setTimeout(() => (document.hidden ? null : refresh()), settled ? LATER : SOON);
  return latest;
}

const loading = (info) => info.models.some((model) => model.state === "LOADING");

// By name, the version of each model that tells most: one that answers, else the newest. A version
// that a newer one has taken the place of is not a model that is missing.
export function modelsOf(info) {
  const found = new Map();
  for (const model of info.models) {
    const other = found.get(model.name);
    if (!other || (other.state !== "READY" && model.state === "READY")) found.set(model.name, model);
  }
  return [...found.values()];
}

document.addEventListener("visibilitychange", () => document.hidden || refresh());
keyEvents.addEventListener("changed", refresh);
