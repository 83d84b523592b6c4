// The latest new version of a model, beside the one it must agree with: the verdict and why.

import { $, element } from "/console/dom.js";
import { numberText, t } from "/console/i18n.js";
import { NONE, percent, scheme, small, two } from "./figures.js";
import { Plot, showTrend } from "./plots.js";
import { whenText } from "./verdict.js";

// A composed model's version, with the parts that differ from the other version.
const named = (version, parts, others) => [version, ...Object.entries(parts).filter(([name, number]) => others[name] !== number).map(([name, number]) => `${name} ${number}`)].join(", ");
const within = (text, low, high) => (low === null ? "" : ` (${text(low)} – ${text(high)})`);
const ratioText = (ratio) => (ratio === null ? NONE : two(ratio));
const agreementText = ({ agreement, agreement_low: low, agreement_high: high }) => percent(agreement) + within(percent, low, high);

// What is drawn as the comparisons accumulate: the text of a value, and the range of possible values.
const TRENDS = { agreement: [percent, 0, 1], ratio: [ratioText, 0, Infinity], drift: [small, 0, Infinity] };
const plots = new Map(); // name of a trend -> Plot

export function showCanary(model) {
  const canary = model?.canary;
  $("canary").hidden = !canary;
  if (!canary) return;
  const { parts } = canary;
  const version = named(canary.version, parts, canary.current_parts);
  const current = named(canary.current, canary.current_parts, parts);
  const facts = {
    compared: t("canary.of", { done: numberText(canary.compared), all: numberText(canary.requests) }),
    agreement: agreementText(canary),
    identical: numberText(canary.identical),
    drift: Object.keys(parts).length ? NONE : small(canary.drift),
    ratio: ratioText(canary.ratio) + within(two, canary.ratio_low, canary.ratio_high),
    errors: numberText(canary.errors),
  };
  $("canary-text").replaceChildren(
    element("p", { className: "chosen" }, element("strong", {}, t("canary.versions", { version, current })), element("span", { className: "badge accent" }, t(`canary.${canary.state}`))),
    element("p", { className: "small", lang: "en" }, canary.reason || canary.error),
    element("dl", { className: "figures" }, ...Object.entries(facts).map(([name, text]) => element("div", {}, element("dt", {}, t(`canary.${name}`)), element("dd", {}, text)))),
  );
  showTrends(canary);
  $("slices").hidden = !canary.slices.length;
  $("slices").replaceChildren(table(["answer", "rows", "agreement"], canary.slices.map(({ name, rows, agreement }) => [name, numberText(rows), percent(agreement)])));
}

function showTrends({ history, agreement_limit, ratio_limit }) {
  const limits = { agreement: agreement_limit, ratio: ratio_limit };
  $("trends").hidden = !history.length;
  for (const [name, [text, from, to]] of Object.entries(TRENDS)) {
    const points = history.filter((point) => point[name] !== null);
    const box = $(`trend-${name}`);
    box.parentElement.hidden = !points.some((point) => name !== "drift" || point.drift);
    if (box.parentElement.hidden) continue;
    const limit = limits[name] ?? null;
    const last = points.at(-1);
    const said = { figure: t(`canary.${name}`), value: text(last[name]), count: numberText(last.compared), limit: limit === null ? NONE : text(limit) };
    box.setAttribute("aria-label", t(limit === null ? "canary.trend" : "canary.trend.limit", said));
    if (!plots.has(name)) plots.set(name, new Plot(box, { height: 180 }));
    const column = (key) => points.map((point) => point[key] ?? null);
    showTrend(plots.get(name), { places: column("compared"), values: column(name), low: column(`${name}_low`), high: column(`${name}_high`), limit, text, from, to, dark: scheme.matches });
  }
  const rows = history.map((point) => [numberText(point.compared), whenText(point.at), agreementText(point), ratioText(point.ratio), small(point.drift)]);
  $("points").replaceChildren(table(["compared", "time", "agreement", "ratio", "drift"], rows));
}

function table(names, rows) {
  const heads = names.map((name) => element("th", { scope: "col" }, t(`canary.${name}`)));
  const cells = ([head, ...others]) => [element("th", { scope: "row" }, head), ...others.map((text) => element("td", { className: "number" }, text))];
  return element("table", {}, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...rows.map((row) => element("tr", {}, ...cells(row)))));
}
