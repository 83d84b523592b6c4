// The groups as a table: what the cards show, for reading down a column.

import { $, element } from "/console/dom.js";
import { t } from "/console/i18n.js";
import { badgeOf, figuresOf, nameOf, wordsOf } from "./cards.js";
import { colourIn } from "./charts.js";

export function showTable(model) {
  const colour = colourIn(model);
  const figures = figuresOf(model.groups);
  const heads = [t("group"), t("state"), ...figures.map(([name]) => nameOf(name)), t("proof")];
  const rows = model.groups.map((group) => {
    const swatch = element("i", { className: "swatch" });
    swatch.style.background = colour(group.name);
    const [badge, tone] = badgeOf(group);
    return element(
      "tr",
      {},
      element("th", { scope: "row" }, swatch, group.name, group.default ? element("span", { className: "badge accent" }, t("default")) : null),
      element("td", {}, element("span", { className: `badge ${tone}` }, t(`badge.${badge}`))),
      ...figures.map(([, value]) => element("td", { className: "number" }, value(group))),
      element("td", { className: "small words", lang: "en" }, wordsOf(group)),
    );
  });
  const head = element("tr", {}, ...heads.map((name) => element("th", { scope: "col" }, name)));
  $("table").replaceChildren(element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows)));
}
