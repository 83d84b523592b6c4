// Where a request's time went, as the server measured it: the stages of Server-Timing.

import { element } from "/console/dom.js";
import { knows, numberText, t } from "/console/i18n.js";

const OF_PART = /-(queue|infer)$/; // of one part of a composed model; queue and infer are the sums

function stagesOf(response) {
  return (response.headers.get("Server-Timing") ?? "")
    .split(",")
    .map((part) => part.trim().match(/^([\w-]+);dur=([\d.]+)$/))
    .filter((match) => match && match[1] !== "total" && !OF_PART.test(match[1]))
    .map(([, stage, duration]) => [stage, Number(duration)]);
}

export function showTiming(target, response) {
  const stages = stagesOf(response);
  const bar = element("div", { className: "bar", "aria-hidden": "true" });
  const keys = stages.map(([stage, duration]) => {
    const piece = element("span", { className: `stage ${stage}` });
    piece.style.flexGrow = String(duration);
    bar.append(piece);
    const name = knows(`stage.${stage}`) ? t(`stage.${stage}`) : stage;
    const text = `${name} ${numberText(duration, { maximumFractionDigits: 1 })} ms`;
    return element("span", { className: "key" }, element("i", { className: `stage ${stage}` }), text);
  });
  const by = [response.headers.get("X-Model"), response.headers.get("X-Predictor")].join(" · ");
  target.replaceChildren(bar, element("div", { className: "keys" }, element("span", { className: "key by" }, by), ...keys));
}
