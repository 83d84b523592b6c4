// What answers by default: what `auto` chose, when and why, each candidate beside it; and shadowing.

import { $, element } from "/console/dom.js";
import { language, numberText, t } from "/console/i18n.js";
import { colourIn } from "./charts.js";
import { memory, NONE, percent, small, times, two } from "./figures.js";
import { showTable } from "./terms.js";

const WHEN = { dateStyle: "medium", timeStyle: "short" };
const NOISY = "too noisy to tell"; // how the server's findings begin
const UNABLE = "cannot take over: ";
export const whenText = (at) => new Date(1000 * at).toLocaleString(language() === "zh" ? "zh-CN" : "en", WHEN);

function howOf({ by, at, candidates }) {
  if (by === "measured" && !candidates.length) return t("by.alone");
  if (by !== "measured" && by !== "kept") return t(`by.${by}`);
  return at ? t(`by.${by}`, { when: whenText(at) }) : t(`by.${by}.unknown`);
}

const firstOf = ({ first, choice }) => first ?? choice.group;
const chosenOf = ({ choice }) => choice.candidates.find(({ group }) => group === choice.group);
const othersOf = (model) => model.groups.filter(({ candidate, name }) => candidate && name !== firstOf(model));

// What came out so far, in one sentence.
export function showLead(answer, model) {
  const choice = model?.choice;
  $("now").textContent = choice ? t(`now.${stateOf(answer, model)}`, { group: choice.group, first: firstOf(model), gain: numberText(chosenOf(model)?.gain ?? 0, { maximumFractionDigits: 1 }), done: choice.candidates.length, all: othersOf(model).length }) : "";
}

function stateOf(answer, model) {
  const { by } = model.choice;
  if (by === "config") return "config";
  if (chosenOf(model)?.gain) return "faster";
  if (by !== "start") return model.choice.candidates.length ? "first" : "alone";
  return answer.prove_groups === "off" ? "off" : othersOf(model).length ? "start" : "alone";
}

export function showVerdict(answer, model) {
  const { choice } = model;
  $("verdict").hidden = !choice;
  if (!choice) return;
  const first = firstOf(model);
  const chosen = chosenOf(model);
  const swatch = element("i", { className: "swatch" });
  swatch.style.background = colourIn(model)(choice.group);
  const notes = [
    chosen?.gain_low ? t("interval.of", { low: two(chosen.gain_low), high: two(chosen.gain_high), first }) : "",
    answer.prove_groups === "off" ? t("proving.off") : "",
    model.precision === "exact" ? t("proving.exact") : "",
    processorText(answer.processor),
  ].filter(Boolean);
  $("verdict-text").replaceChildren(
    element("p", { className: "chosen" }, swatch, element("strong", {}, choice.group), element("span", { className: "badge accent" }, howOf(choice))),
    ...notes.map((note) => element("p", { className: "small" }, note)),
  );
  showCandidates(model, first);
}

function processorText({ name, instruction_sets: has, missing, remark }) {
  return [
    t("processor", { name, has: has.join(" ") || NONE }),
    missing.length > 0 && t("processor.missing", { missing: missing.join(" ") }),
    remark && t("processor.narrow"),
  ].filter(Boolean).join(" ");
}

function qualityOf({ agreement, largest_difference: largest }) {
  const told = [];
  if (agreement !== null) told.push(t("agreement", { value: percent(agreement) }));
  if (largest !== null) told.push(t("difference", { value: small(largest) }));
  return told.join(" · ") || NONE;
}

// Gain as a bar from 0, its interval as a band; the line is at 1: as fast as the first group.
function barOf(candidate, most) {
  const bar = element("div", { className: "gain-bar" });
  const place = (className, from, to) => {
    const part = element("i", { className });
    part.style.left = `${(100 * from) / most}%`;
    part.style.width = `${(100 * (to - from)) / most}%`;
    bar.append(part);
  };
  place(candidate.fit ? "value fit" : "value", 0, candidate.gain);
  place("band", candidate.gain_low, Math.min(candidate.gain_high, most));
  place("one", 1, 1);
  return bar;
}

// In the page's words where the figures say it; else in the server's.
function findingOf(each, chosen) {
  if (each.group === chosen) return t("finding.chosen");
  if (each.fit) return t("finding.fit");
  if (each.gain === null || each.reason.startsWith(UNABLE)) return each.reason;
  if (each.reason.startsWith(NOISY)) return t("finding.noisy");
  return t((each.gain_high ?? 0) < 1 ? "finding.slower" : "finding.equal");
}

function showCandidates(model, first) {
  const measured = [...model.choice.candidates].sort((one, other) => (other.gain ?? -1) - (one.gain ?? -1));
  $("candidates").hidden = !measured.length;
  const compared = measured.filter(({ gain_low: low }) => low !== null);
  const most = 1.1 * Math.max(1, ...compared.map(({ gain_high: high, gain }) => Math.min(high, 2 * gain)));
  const rows = measured.map((each) =>
    element(
      "tr",
      { className: each.group === model.choice.group ? "chosen" : "" },
      element("th", { scope: "row" }, each.group),
      ...(each.gain_low === null
        ? [element("td", { className: "soft", colSpan: 3 }, t(each.gain === null ? "speed.none" : "speed.lost"))]
        : [element("td", { className: "number" }, element("b", {}, times(each.gain))), element("td", { className: "bar-cell" }, barOf(each, most)), element("td", { className: "number small" }, `${two(each.gain_low)} – ${two(each.gain_high)}`)]),
      element("td", {}, qualityOf(each)),
      element("td", { className: "number" }, memory(each.resident_bytes)),
      element("td", { className: "small words", ...(each.gain === null ? { lang: "en" } : {}) }, findingOf(each, model.choice.group)),
    ),
  );
  showTable($("candidates"), ["group", "speed", "equal", "interval", "quality", "memory", "finding"], rows);
  $("candidates").querySelector("[data-help=equal]").textContent = t("equal", { first });
}

export function showShadow(model) {
  const { shadowing } = model;
  const names = model.groups.filter(({ default: usual, refused }) => !usual && !refused).slice(0, 2).map(({ name }) => name);
  $("shadow").hidden = !shadowing || !names.length;
  if ($("shadow").hidden) return;
  if (!shadowing.fraction) {
    const command = `PADDLEPOOL_SHADOW_FRACTION=0.1 PADDLEPOOL_SHADOW_GROUPS=${names.join(",")} paddlepool serve`;
    $("shadow-text").replaceChildren(element("p", {}, t("shadow.off")), element("pre", { tabIndex: 0 }, command));
    return;
  }
  const replayed = model.groups.filter(({ replays }) => replays.count);
  const outcomes = Object.entries(shadowing.outcomes).map(([name, count]) =>
    element("div", {}, element("dt", {}, t(`outcome.${name}`)), element("dd", {}, numberText(count))),
  );
  $("shadow-text").replaceChildren(
    element("p", {}, t("shadow.on", { share: percent(shadowing.fraction), groups: shadowing.groups.join(", ") || t("shadow.all") })),
    element("p", { className: "small" }, `${t("shadow.sampled")}:`),
    element("dl", { className: "figures" }, ...outcomes),
    replayed.length ? "" : element("p", { className: "small" }, t("shadow.none")),
  );
}
