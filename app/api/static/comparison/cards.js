// One card for each instance group: its answer to the shown input, histogram, figures, badge, proof.

import { $, element } from "/console/dom.js";
import { t } from "/console/i18n.js";
import { colourIn } from "./charts.js";
import { memory, milliseconds, NONE, numberOf, percent, scheme, small, times } from "./figures.js";
import { bucketsShown, placeOf, Plot, showHistogram } from "./plots.js";

const UNKNOWN = "not measured yet";
const STOPPED = "not started";
const cards = new Map(); // group name -> Card
let shownKey = "";

export const badgeOf = (group) => {
  if (group.refused) return ["refused", "warn"];
  if (group.started && !group.ready) return ["starting", "accent"];
  if (group.effective === true) return ["effective", "good"];
  if (group.effective === false) return ["ineffective", "bad"];
  if (group.ready) return ["unproven", "soft"];
  return group.replays.count ? ["shadowed", "accent"] : ["stopped", "soft"];
};

// In words: the proof, or the reason why it does not run; none where its state says it all.
export function wordsOf({ ready, reason, proof }) {
  if (ready) return proof;
  return reason !== STOPPED ? reason : proof === UNKNOWN ? "" : proof;
}

export function configurationOf(group) {
  const options = Object.entries(group.options).map(([name, value]) => `${name}=${JSON.stringify(value)}`);
  return [group.backend, group.program, ...options].filter(Boolean).join(" · ");
}

const sameBits = ({ count, same_bits: same }) => (count ? percent(same / count) : NONE);

const OF_REPLAYS = ["replays", "same", "drift", "agrees"];
const FIGURES = [
  ["p50", (group) => milliseconds(group.times.p50)],
  ["p95", (group) => milliseconds(group.times.p95)],
  ["p99", (group) => milliseconds(group.times.p99)],
  ["ratio", (group) => times(group.ratio.p50)],
  ["runs", (group) => numberOf(group.runs)],
  ["rate", (group) => numberOf(group.rate)],
  ["memory", (group) => memory(group.resident_bytes)],
  ["replays", (group) => numberOf(group.replays.count)],
  ["same", (group) => sameBits(group.replays)],
  ["drift", (group) => small(group.replays.p99)],
  ["agrees", (group) => percent(group.replays.agreement)],
];

// Those of replays only where there are some.
export function figuresOf(groups) {
  const replayed = groups.some(({ replays }) => replays.count);
  return FIGURES.filter(([name]) => replayed || !OF_REPLAYS.includes(name));
}

export const nameOf = (figure) => (/^p\d/.test(figure) ? figure : t(figure));

class Card {
  constructor(group, colour, onAsk) {
    this.name = group.name;
    this.colour = colour;
    const swatch = element("i", { className: "swatch" });
    this.paint = () => (swatch.style.background = colour());
    this.badge = element("span");
    this.default = element("span", { className: "badge accent" });
    this.answer = element("div", { className: "answer" });
    this.box = element("div", { className: "plot" });
    this.box.setAttribute("role", "img");
    this.figures = element("dl", { className: "figures" });
    this.words = element("p", { className: "small words" });
    this.ask = element("button", { type: "button" });
    this.ask.addEventListener("click", () => onAsk(group.name));
    this.asking = element("div", { className: "asking" }, this.ask);
    const title = element("h3", { id: `group-${group.name}` }, swatch, group.name);
    const head = element("div", { className: "head" }, title, this.default, this.badge);
    this.configuration = element("p", { className: "small mono" });
    this.element = element("article", { className: "card group" }, head, this.configuration, this.answer, this.asking, this.box, this.figures, this.words);
    this.element.setAttribute("aria-labelledby", title.id);
    this.plot = new Plot(this.box, { height: 130 });
  }

  update(group, bounds, shown, canAsk) {
    this.group = group;
    this.paint();
    const [badge, tone] = badgeOf(group);
    this.badge.className = `badge ${tone}`;
    this.badge.textContent = t(`badge.${badge}`);
    this.default.hidden = !group.default;
    this.default.textContent = t("default");
    this.configuration.textContent = `${configurationOf(group)} · ${t("threads", group)}`;
    this.asking.hidden = !canAsk || group.ready || group.started;
    this.ask.textContent = t("ask");
    const words = wordsOf(group);
    this.words.replaceChildren(words === group.proof ? element("b", {}, `${t("proof")}: `) : "", words === UNKNOWN ? t("proof.none") : element("span", { lang: "en" }, words));
    this.words.hidden = !words;
    this.words.className = `small words ${group.refused ? "warn" : ""}`;
    const busy = group.runs || group.replays.count;
    const figures = figuresOf([group]).filter(([name]) => busy || (name === "memory" && group.resident_bytes));
    this.figures.replaceChildren(
      ...figures.map(([name, value]) => element("div", {}, element("dt", {}, nameOf(name)), element("dd", {}, value(group)))),
    );
    this.box.hidden = !group.runs;
    if (!group.runs) return this.plot.clear();
    this.box.setAttribute("aria-label", t("plot.group", { group: group.name, runs: numberOf(group.runs), p50: milliseconds(group.times.p50) }));
    showHistogram(this.plot, { bounds, shown, group, colour: this.colour, marks: () => this.marks(bounds) });
  }

  marks(bounds) {
    return ["p50", "p99"].map((name) => ({ label: name, place: placeOf(bounds, this.group.times[name]) }));
  }
}

// Those that run, or have run, come first and large; then those that could, then those refused.
const runs = (group) => group.ready || group.started || group.runs > 0;
const order = (group) => (group.default ? 0 : runs(group) ? 1 : group.refused ? 3 : 2);

export function showCards(answer, model, { onAsk, canAsk }) {
  const sorted = [...model.groups].sort((one, other) => order(one) - order(other));
  const key = JSON.stringify([model.key, sorted.map((group) => [group.name, runs(group)])]);
  if (key !== shownKey) build(model, sorted, onAsk);
  shownKey = key;
  const shown = bucketsShown(model.groups) ?? [0, 1];
  for (const group of model.groups) cards.get(group.name).update(group, answer.bounds, shown, canAsk);
}

function build(model, sorted, onAsk) {
  const colour = colourIn(model);
  const before = new Map(cards);
  const kept = shownKey && JSON.parse(shownKey)[0] === model.key; // else another model's groups
  cards.clear();
  for (const group of sorted) {
    const old = kept ? before.get(group.name) : null;
    cards.set(group.name, old ?? new Card(group, () => colour(group.name), onAsk));
    before.delete(old ? group.name : "");
  }
  for (const card of before.values()) card.plot.close();
  const focused = document.activeElement;
  const of = (some) => some.map(({ name }) => cards.get(name).element);
  $("cards").replaceChildren(...of(sorted.filter(runs)));
  $("idle").replaceChildren(...of(sorted.filter((group) => !runs(group))));
  if ($("groups").contains(focused)) focused.focus();
}

export const answerOf = (name) => cards.get(name)?.answer;

scheme.addEventListener("change", () => {
  for (const card of cards.values()) card.paint();
});
