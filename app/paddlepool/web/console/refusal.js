// A refusal shown where it happened: what kind it is, the server's own words, its limit.

import { Refusal } from "./api.js";
import { ADVICE } from "./chinese.js";
import { element } from "./dom.js";
import { knows, language, numberText, onLanguage, t } from "./i18n.js";

const shown = new Map(); // box -> what it shows, so that it can be said in the other language

function figure(value) {
  return typeof value === "number" ? numberText(value) : String(value);
}

export function titleOf(problem) {
  const name = `error.${problem.code}`;
  return knows(name) ? t(name) : (problem.title ?? problem.code);
}

// Paragraphs: what the server or this page says; on a Chinese page, a Chinese sentence before English.
export function sentencesOf({ code, detail, language: said = "en" }) {
  const advice = language() === "zh" && said === "en" ? ADVICE[code] : undefined;
  return [
    ...(advice ? [element("p", {}, advice)] : []),
    ...(detail ? [element("p", { lang: said, className: advice ? "small" : "" }, detail)] : []),
  ];
}

// Not again what the sentence before says in full.
function facts({ limit, received, detail = "" }) {
  const told = { limit, received };
  return Object.entries(told)
    .filter(([, value]) => value !== undefined && value !== null)
    .filter(([, value]) => typeof value === "number" || !detail.includes(value))
    .map(([name, value]) => element("div", {}, element("dt", {}, t(`refusal.${name}`)), element("dd", {}, figure(value))));
}

function render(box, { problem, more, of, again, label }) {
  const rows = facts(problem);
  const button = again ? element("button", { type: "button" }, t(label)) : null;
  button?.addEventListener("click", again);
  box.replaceChildren(
    element("strong", {}, titleOf(problem)),
    ...(of ? [element("span", { className: "small" }, of)] : []),
    ...sentencesOf(problem),
    ...(more ? [element("p", {}, more)] : []),
    ...(rows.length ? [element("dl", {}, ...rows)] : []),
    ...(problem.type ? [element("a", { href: problem.type, target: "_blank" }, t("refusal.about"))] : []),
    ...(button ? [button] : []),
  );
  box.hidden = false;
}

// `box` is an element of class refusal with role=alert. `more` is a further sentence, `of` the name
// of the file that was refused, `again()` what a press on the button does, which says "Try again" or `label`.
export function showRefusal(box, error, { more = "", of = "", again = null, label = "again" } = {}) {
  if (!(error instanceof Refusal)) throw error;
  shown.set(box, { problem: error.problem, more, of, again, label });
  render(box, shown.get(box));
}

export function hideRefusal(box) {
  shown.delete(box);
  box.replaceChildren();
  box.hidden = true;
}

onLanguage(() => {
  for (const [box, what] of shown) render(box, what);
});
