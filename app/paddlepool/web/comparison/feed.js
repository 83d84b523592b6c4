// /compare/data, asked for again and again while somebody looks; the hour's history is kept here, so
// that each answer brings only what is new.

import { askJson, keyEvents, Refusal } from "/console/api.js";
import { onState, state } from "./state.js";

export const EVERY_SECONDS = 2;
const KEPT_SECONDS = 3600;
const AWAY_SECONDS = 5;
const listeners = [];
let latest = null; // the newest answer, its `history` that of the whole hour
let refusal = null;
let timer = 0;
let asking = null;

export const data = () => latest;

// `listener` gets (data, refusal): the newest answer, and why there is no newer one.
export const onData = (listener) => listeners.push(listener);

const keyOf = ({ model, version, group }) => JSON.stringify([model, version, group]);
const COLUMNS = ["interval", "runs", "p50", "p95", "p99"];

function merged(before, answer) {
  const oldest = answer.interval - KEPT_SECONDS / answer.interval_seconds;
  const series = new Map((before?.history ?? []).map((each) => [keyOf(each), each]));
  for (const fresh of answer.history) {
    const kept = series.get(keyOf(fresh));
    const joined = { ...fresh };
    if (kept) for (const column of COLUMNS) joined[column] = kept[column].concat(fresh[column]);
    series.set(keyOf(fresh), joined);
  }
  return [...series.values()].map((each) => {
    const from = each.interval.findIndex((number) => number >= oldest);
    if (from === 0) return each;
    return { ...each, ...Object.fromEntries(COLUMNS.map((column) => [column, from < 0 ? [] : each[column].slice(from)])) };
  });
}

export async function refresh() {
  clearTimeout(timer);
  asking?.abort();
  const mine = (asking = new AbortController());
  try {
    // Another server process has another history: a second's doubt is the clocks' drift.
    const after = latest ? latest.interval - 1 : -1;
    let answer = await askJson(`/compare/data?window=${state.window}&after=${after}`, { signal: mine.signal });
    const same = latest && Math.abs(answer.began - latest.began) < 2;
    if (latest && !same) answer = await askJson(`/compare/data?window=${state.window}`, { signal: mine.signal });
    latest = { ...answer, history: merged(same ? latest : null, answer) };
    refusal = null;
  } catch (error) {
    if (error.name === "AbortError") return;
    if (!(error instanceof Refusal)) throw error;
    refusal = error;
  }
  if (!document.hidden) timer = setTimeout(refresh, 1000 * (refusal ? AWAY_SECONDS : EVERY_SECONDS));
  for (const listener of listeners) listener(latest, refusal);
}

export function startFeed() {
  document.addEventListener("visibilitychange", () => document.hidden || refresh());
  keyEvents.addEventListener("changed", refresh);
  onState((changed) => changed.includes("window") && refresh());
  refresh();
}

// By its name in the page: `name`, or `name@version` where several versions are served.
export function modelsOf(answer) {
  const count = (name) => answer.models.filter((each) => each.name === name).length;
  return answer.models.map((model) => ({ ...model, key: count(model.name) > 1 ? `${model.name}@${model.version}` : model.name }));
}

export function shownModel() {
  if (!latest) return null;
  const models = modelsOf(latest);
  // A server that is still loading may well come to the one that was asked for.
  if (state.model && !models.some(({ key }) => key === state.model) && models.some((model) => model.state === "LOADING"))
    return { key: state.model, name: state.model, state: "LOADING", groups: [] };
  const best = models.find((model) => model.groups.length > 1 && model.task === "segment") ?? models.find((model) => model.groups.length) ?? models[0];
  return models.find((model) => model.key === state.model) ?? best ?? null;
}
