// What the page shows, kept in its address: a link restores it. Unknown or wrong values are dropped.

export const WINDOWS = ["1m", "10m", "1h"];
export const VIEWS = ["cards", "table"];
export const FIGURES = ["p50", "p95", "p99", "rate"];
const LONGEST_TEXT = 500; // characters of a sentence in an address
const listeners = [];

const asked = new URLSearchParams(location.search);
const oneOf = (name, allowed, otherwise) => (allowed.includes(asked.get(name)) ? asked.get(name) : otherwise);

export const state = {
  model: asked.get("model") ?? "",
  window: oneOf("window", WINDOWS, "10m"),
  view: oneOf("view", VIEWS, "cards"),
  figure: oneOf("figure", FIGURES, "p50"),
  hidden: new Set((asked.get("hide") ?? "").split(",").filter(Boolean)),
  sample: asked.get("sample") ?? "",
  text: (asked.get("text") ?? "").slice(0, LONGEST_TEXT),
};

const USUAL = { window: "10m", view: "cards", figure: "p50" };

function address() {
  const told = new URLSearchParams();
  if (state.model) told.set("model", state.model);
  for (const [name, usual] of Object.entries(USUAL)) if (state[name] !== usual) told.set(name, state[name]);
  if (state.hidden.size) told.set("hide", [...state.hidden].join(","));
  if (state.sample) told.set("sample", state.sample);
  if (state.text) told.set("text", state.text.slice(0, LONGEST_TEXT));
  return `${location.pathname}${told.size ? `?${told}` : ""}`;
}

export const link = () => new URL(address(), location.href).href;

export const onState = (listener) => listeners.push(listener);

export function change(what) {
  Object.assign(state, what);
  history.replaceState(null, "", address());
  for (const listener of listeners) listener(Object.keys(what));
}

export function toggleHidden(group) {
  const hidden = new Set(state.hidden);
  if (!hidden.delete(group)) hidden.add(group);
  change({ hidden });
}
