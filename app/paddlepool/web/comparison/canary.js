// The latest new version of a model, beside the one it must agree with: the verdict and why.

import { $, element } from "/console/dom.js";
import { numberText, t } from "/console/i18n.js";
import { NONE, percent, small, two } from "./figures.js";

const within = (text, low, high) => (low === null ? "" : ` (${text(low)} – ${text(high)})`);

export function showCanary(model) {
  const canary = model?.canary;
  $("canary").hidden = !canary;
  if (!canary) return;
  const { agreement, ratio } = canary;
  const facts = {
    compared: t("canary.of", { done: numberText(canary.compared), all: numberText(canary.requests) }),
    agreement: agreement === null ? NONE : percent(agreement) + within(percent, canary.agreement_low, canary.agreement_high),
    identical: numberText(canary.identical),
    drift: small(canary.drift),
    ratio: ratio === null ? NONE : two(ratio) + within(two, canary.ratio_low, canary.ratio_high),
    errors: numberText(canary.errors),
  };
  $("canary-text").replaceChildren(
    element("p", { className: "chosen" }, element("strong", {}, t("canary.versions", { version: canary.version, current: canary.current })), element("span", { className: "badge accent" }, t(`canary.${canary.state}`))),
    element("p", { className: "small", lang: "en" }, canary.reason || canary.error),
    element("dl", { className: "figures" }, ...Object.entries(facts).map(([name, text]) => element("div", {}, element("dt", {}, t(`canary.${name}`)), element("dd", {}, text)))),
  );
  const rows = canary.slices.map((slice) => element("tr", {}, element("th", { scope: "row" }, slice.name), element("td", { className: "number" }, numberText(slice.rows)), element("td", { className: "number" }, percent(slice.agreement))));
  $("slices").hidden = !rows.length;
  const heads = ["answer", "rows", "agreement"].map((name) => element("th", { scope: "col" }, t(`canary.${name}`)));
  $("slices").replaceChildren(element("table", {}, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...rows)));
}
