// The six emotions as bars: large for one text, a row to open for each of several.

import { element } from "/console/dom.js";
import { knows, language, numberText, t } from "/console/i18n.js";

const share = (score) => numberText(score, { style: "percent", minimumFractionDigits: 1, maximumFractionDigits: 1 });

// In the page's language, with the Chinese name beside an English one.
export function nameOf({ label, label_zh: chinese }) {
  if (language() === "zh") return chinese ?? (knows(`emotion.${label}`) ? t(`emotion.${label}`) : label);
  return chinese ? `${label} ${chinese}` : label;
}

const hue = (label) => (knows(`emotion.${label}`) ? label : "other");

const sorted = (scores) => [...scores].sort((one, other) => other.score - one.score);

function bars(scores) {
  const [best] = scores;
  return sorted(scores).map((each) => {
    const fill = element("i", { className: `fill ${hue(each.label)}` });
    fill.style.width = `${100 * each.score}%`;
    const parts = [element("span", {}, nameOf(each)), element("span", { className: "track", "aria-hidden": "true" }, fill), element("b", {}, share(each.score))];
    return element("li", { className: each === best ? "best" : "", "data-label": each.label }, ...parts);
  });
}

function row(text, scores, open) {
  const stack = element("span", { className: "stack", "aria-hidden": "true" });
  for (const each of sorted(scores)) {
    const piece = element("i", { className: hue(each.label) });
    piece.style.flexGrow = String(each.score);
    stack.append(piece);
  }
  const summary = element(
    "summary",
    {},
    element("span", { className: "line", lang: "zh" }, text),
    element("b", {}, `${nameOf(scores[0])} ${share(scores[0].score)}`),
    stack,
  );
  return element("li", {}, element("details", { open }, summary, element("ol", { className: "scores" }, ...bars(scores))));
}

// `results` are the replies' {scores}, one for each of `texts`, best label first.
export function showScores(target, texts, results) {
  const open = [...target.querySelectorAll("details")].map((each) => each.open);
  target.classList.toggle("several", texts.length > 1);
  target.replaceChildren(
    ...(texts.length === 1 ? bars(results[0].scores) : texts.map((text, at) => row(text, results[at].scores, open[at] ?? false))),
  );
}

// What somebody hears who does not see the bars.
export const spoken = (texts, results) =>
  texts.map((text, at) => {
    const [best] = results[at].scores;
    return t("sentiment.spoken", { text: texts.length === 1 ? "" : text, label: nameOf(best), share: share(best.score) }).replace(/^[:：]\s*/, "");
  }).join("; ");
