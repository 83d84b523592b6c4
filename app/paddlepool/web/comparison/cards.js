// One card for each instance group: its answer to the shown input, histogram, figures, badge, proof.

import { $, element } from "/console/dom.js";
import { t } from "/console/i18n.js";
import { colourIn } from "./charts.js";
import { memory, milliseconds, NONE, numberOf, percent, scheme, small, speed } from "./figures.js";
import { bucketsShown, placeOf, Plot, showHistogram } from "./plots.js";
import { term } from "./terms.js";

const STOPPED = "not started";
const cards = new Map(); // group name -> Card
let shownKey = "";

export const badgeOf = (group) => {
  if (group.refused) return ["refused", "warn"];
  if (group.started && !group.ready) return ["starting", "accent"];
  if (group.effective === true) return ["effective", "accent"];
  if (group.effective === false) return ["ineffective", "warn"];
  if (group.ready) return ["unproven", "soft"];
  return group.replays.count ? ["shadowed", "accent"] : ["stopped", "soft"];
};

// Why it does not run, in the server's words; none where its state says it all.
export const wordsOf = ({ ready, reason }) => (ready || reason === STOPPED ? "" : reason);

export const badgeText = (group) => t(`badge.${badgeOf(group)[0]}`, group);

export function configurationOf(group) {
  const options = Object.entries(group.options).map(([name, value]) => `${name}=${JSON.stringify(value)}`);
  return [group.backend, group.program, ...options].filter(Boolean).join(" · ");
}

const sameBits = ({ count, same_bits: same }) => (count ? percent(same / count) : NONE);

const OF_REPLAYS = ["replays", "same", "drift", "agrees"];
// Measured in turns with the first group, or not compared: times of different moments say nothing.
function speedOf(group, { first, choice }) {
  if (group.name === first) return t("speed.first");
  const measured = choice?.candidates.find((each) => each.group === group.name);
  return measured?.gain_low ? speed(measured) : t("speed.none");
}

const FIGURES = [
  ["speed", speedOf],
  ["p50", (group) => milliseconds(group.times.p50)],
  ["p95", (group) => milliseconds(group.times.p95)],
  ["p99", (group) => milliseconds(group.times.p99)],
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

class Card {
  constructor(group, colour, onAsk) {
    this.name = group.name;
    this.colour = colour;
    const swatch = element("i", { className: "swatch" });
    this.paint = () => (swatch.style.background = colour());
    this.badge = term("state", { words: "state" });
    delete this.badge.dataset.t;
    this.default = term("default", { className: "badge accent" });
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
    this.configuration = element("span", { className: "mono" });
    this.threads = term("threads");
    delete this.threads.dataset.t;
    const configuration = element("p", { className: "small" }, this.configuration, " · ", this.threads);
    this.element = element("article", { className: "card group" }, head, configuration, this.answer, this.asking, this.box, this.figures, this.words);
    this.element.setAttribute("aria-labelledby", title.id);
    this.plot = new Plot(this.box, { height: 130 });
  }

  update(group, model, bounds, shown) {
    this.group = group;
    this.paint();
    const [badge, tone] = badgeOf(group);
    this.badge.className = `term badge ${tone}`;
    this.badge.dataset.help = `badge.${badge}`;
    this.badge.textContent = badgeText(group);
    this.default.hidden = !group.default;
    this.configuration.textContent = configurationOf(group);
    this.threads.textContent = t("threads", group);
    this.asking.hidden = group.ready || group.started || Boolean(group.refused);
    this.ask.textContent = t("ask");
    const words = wordsOf(group);
    this.words.textContent = words;
    this.words.hidden = !words;
    this.words.className = `small words ${group.refused ? "warn" : ""}`;
    this.showFigures(group, model);
    this.box.hidden = !group.runs;
    if (!group.runs) return this.plot.clear();
    this.box.setAttribute("aria-label", t("plot.group", { group: group.name, runs: numberOf(group.runs), p50: milliseconds(group.times.p50) }));
    showHistogram(this.plot, { bounds, shown, group, colour: this.colour, marks: () => this.marks(bounds) });
  }

  // Built anew only for other figures: a term that is pressed or focused stays.
  showFigures(group, model) {
    const busy = group.runs || group.replays.count;
    const shown = { speed: busy || speedOf(group, model) !== t("speed.none"), memory: busy || group.resident_bytes };
    const figures = figuresOf([group]).filter(([name]) => shown[name] ?? busy);
    const names = figures.map(([name]) => name).join();
    if (this.names !== names) {
      this.names = names;
      this.figures.replaceChildren(...figures.map(([name]) => element("div", { className: name }, element("dt", {}, term(name)), element("dd"))));
    }
    figures.forEach(([, value], place) => (this.figures.children[place].lastChild.textContent = value(group, model)));
  }

  marks(bounds) {
    return ["p50", "p99"].map((name) => ({ label: name, place: placeOf(bounds, this.group.times[name]) }));
  }
}

// Those that run, or have run, come first and large; then those that could, then those refused.
const runs = (group) => group.ready || group.started || group.runs > 0;
const order = (group) => (group.default ? 0 : runs(group) ? 1 : group.refused ? 3 : 2);

export function showCards(answer, model, onAsk) {
  const sorted = [...model.groups].sort((one, other) => order(one) - order(other));
  const key = JSON.stringify([model.key, sorted.map((group) => [group.name, runs(group)])]);
  if (key !== shownKey) build(model, sorted, onAsk);
  shownKey = key;
  const shown = bucketsShown(model.groups) ?? [0, 1];
  for (const group of model.groups) cards.get(group.name).update(group, model, answer.bounds, shown);
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
