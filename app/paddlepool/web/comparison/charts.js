// The two large charts and the legend that switches their groups: what they show, from the data.

import { $, element } from "/console/dom.js";
import { t } from "/console/i18n.js";
import { colourOf, scheme } from "./figures.js";
import { bucketsShown, Plot, showHour, showOverlay } from "./plots.js";
import { state, toggleHidden } from "./state.js";

let overlay, hour;

export function startCharts() {
  overlay = new Plot($("overlay"), { height: 260 });
  hour = new Plot($("hour"), { height: 260 });
}

export const charts = () => [overlay, hour];

export const colourIn = (model) => {
  const places = new Map(model.groups.map((group, place) => [group.name, place]));
  return (name) => colourOf(places.get(name) ?? 0);
};

const ofModel = (answer, model) => answer.history.filter((each) => each.model === model.name && each.version === model.version && each.interval.length);

export function showCharts(answer, model) {
  const history = ofModel(answer, model);
  const ran = model.groups.filter((group) => group.runs || history.some((each) => each.group === group.name));
  showLegend(model, ran);
  const drawn = ran.filter(({ name }) => !state.hidden.has(name));
  drawOverlay(answer, model, drawn.filter(({ runs }) => runs));
  drawHour(answer, model, history.filter((each) => drawn.some(({ name }) => name === each.group)));
}

function showLegend(model, ran) {
  const colour = colourIn(model);
  const names = JSON.stringify([model.key, scheme.matches, ran.map(({ name }) => name)]);
  if ($("legend").dataset.names !== names) {
    $("legend").dataset.names = names;
    $("legend").replaceChildren(
      ...ran.map(({ name }) => {
        const swatch = element("i", { className: "swatch" });
        swatch.style.background = colour(name);
        const button = element("button", { type: "button" }, swatch, name);
        button.dataset.group = name;
        button.addEventListener("click", () => toggleHidden(name));
        return button;
      }),
    );
  }
  for (const button of $("legend").children) button.setAttribute("aria-pressed", String(!state.hidden.has(button.dataset.group)));
}

function empty(plot, what) {
  plot.clear();
  plot.box.replaceChildren(element("p", { className: "soft nothing" }, t("plot.none")));
  plot.box.setAttribute("aria-label", `${what}: ${t("plot.none")}`);
}

function drawOverlay(answer, model, groups) {
  const names = groups.map(({ name }) => name).join(", ");
  const shown = bucketsShown(groups);
  if (!shown) return empty(overlay, t("overlay"));
  overlay.box.querySelector(".nothing")?.remove();
  overlay.box.setAttribute("aria-label", t("plot.overlay", { groups: names }));
  const colour = colourIn(model);
  const told = groups.map(({ name, buckets, runs }) => ({ name, buckets, runs, colour: () => colour(name) }));
  showOverlay(overlay, { bounds: answer.bounds, shown, groups: told, dark: scheme.matches });
}

const valueOf = (each, place, answer) => (state.figure === "rate" ? each.runs[place] / answer.interval_seconds : 1000 * each[state.figure][place]);

function drawHour(answer, model, history) {
  const what = t(`figure.${state.figure}`);
  if (!history.length) return empty(hour, t("hour"));
  hour.box.querySelector(".nothing")?.remove();
  hour.box.setAttribute("aria-label", t("plot.hour", { figure: what, groups: history.map(({ group }) => group).join(", ") }));
  const { interval, interval_seconds: length } = answer;
  const from = Math.max(0, interval - 3600 / length);
  const numbers = Array.from({ length: interval - from }, (_, step) => from + step);
  const atOf = (number) => answer.now + (number + 1 - interval) * length;
  const colour = colourIn(model);
  const series = history.map((each) => {
    const values = new Array(numbers.length).fill(state.figure === "rate" ? 0 : null);
    each.interval.forEach((number, place) => {
      values[number - from] = valueOf(each, place, answer);
    });
    return { name: each.group, values, colour: () => colour(each.group) };
  });
  const seconds = numbers.map(atOf);
  const chosen = model.choice?.at;
  const events = chosen && chosen >= seconds[0] ? [{ at: chosen, label: `auto: ${model.choice.group}` }] : [];
  showHour(hour, { seconds, series, range: [Math.min(seconds[0], answer.now - 300), answer.now], dark: scheme.matches, unit: state.figure, events });
}
