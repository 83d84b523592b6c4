// The groups as a table: what the cards show, for reading down a column.

import { $, element } from "/console/dom.js";
import { t } from "/console/i18n.js";
import { badgeOf, badgeText, figuresOf, wordsOf } from "./cards.js";
import { colourIn } from "./charts.js";
import { showTable } from "./terms.js";

export function showGroups(model) {
  const colour = colourIn(model);
  const figures = figuresOf(model.groups);
  const rows = model.groups.map((group) => {
    const swatch = element("i", { className: "swatch" });
    swatch.style.background = colour(group.name);
    const words = element("p", { className: "small words", lang: "en" }, wordsOf(group));
    return element(
      "tr",
      {},
      element("th", { scope: "row" }, swatch, group.name, group.default ? element("span", { className: "badge accent" }, t("default")) : null),
      element("td", {}, element("span", { className: `badge ${badgeOf(group)[1]}` }, badgeText(group)), group.runs ? words : ""),
      ...(words.textContent && !group.runs
        ? [element("td", { colSpan: figures.length }, words)]
        : figures.map(([, value]) => element("td", { className: "number" }, value(group, model)))),
    );
  });
  showTable($("table"), ["group", "state", ...figures.map(([name]) => name)], rows);
}
