// What answers by default: what `auto` chose, when and why, each candidate beside it; and shadowing.

import { $, element } from "/console/dom.js";
import { language, numberText, t } from "/console/i18n.js";
import { colourIn } from "./charts.js";
import { memory, NONE, percent, small, times } from "./figures.js";

const WHEN = { dateStyle: "medium", timeStyle: "short" };
const whenText = (at) => new Date(1000 * at).toLocaleString(language() === "zh" ? "zh-CN" : "en", WHEN);

function howOf({ by, at, candidates }) {
  if (by === "measured" && !candidates.length) return t("by.alone");
  if (by !== "measured" && by !== "kept") return t(`by.${by}`);
  return at ? t(`by.${by}`, { when: whenText(at) }) : t(`by.${by}.unknown`);
}

export function showVerdict(answer, model) {
  const { choice } = model;
  $("verdict").hidden = !choice;
  if (!choice) return;
  const first = model.first ?? choice.group;
  const chosen = choice.candidates.find(({ group }) => group === choice.group);
  const swatch = element("i", { className: "swatch" });
  swatch.style.background = colourIn(model)(choice.group);
  const gain = chosen?.gain ? [element("p", { className: "gain" }, t("gain", { gain: numberText(chosen.gain, { maximumFractionDigits: 2 }), first })), element("p", { className: "small" }, intervalOf(chosen))] : [];
  const waiting = model.groups.filter(({ candidate, name }) => candidate && name !== first).length;
  const notes = [
    answer.prove_groups === "off" ? t("proving.off") : "",
    model.precision === "exact" ? t("proving.exact") : "",
    choice.by === "start" && waiting && answer.prove_groups !== "off" ? t("waiting", { done: choice.candidates.length, all: waiting }) : "",
  ].filter(Boolean);
  $("verdict-text").replaceChildren(
    element("p", { className: "chosen" }, swatch, element("strong", {}, choice.group), " ", t("answers"), element("span", { className: "badge accent" }, howOf(choice))),
    ...gain,
    ...(chosen?.gain || choice.by === "start" || (choice.by === "measured" && !choice.candidates.length) ? [] : [element("p", { className: "small", lang: "en" }, choice.reason)]),
    ...notes.map((note) => element("p", { className: "small" }, note)),
  );
  showCandidates(model, first);
}

// Of too few runs an end of the interval is not known.
const two = (value) => (value === null ? NONE : numberText(value, { maximumFractionDigits: 2, minimumFractionDigits: 2 }));
const intervalOf = ({ gain_low: low, gain_high: high }) => t("interval", { low: two(low), high: two(high) });

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
  if (candidate.gain_low !== null) place("band", candidate.gain_low, Math.min(candidate.gain_high ?? most, most));
  place("one", 1, 1);
  return bar;
}

function showCandidates(model, first) {
  const measured = [...model.choice.candidates].sort((one, other) => (other.gain ?? -1) - (one.gain ?? -1));
  if (!measured.length) return $("candidates").replaceChildren();
  const most = 1.1 * Math.max(1, ...measured.map(({ gain_high: high, gain }) => Math.min(high ?? 0, 2 * (gain ?? 0))));
  const rows = measured.map((each) =>
    element(
      "tr",
      { className: each.group === model.choice.group ? "chosen" : "" },
      element("th", { scope: "row" }, each.group),
      element("td", {}, each.gain === null ? NONE : element("div", { className: "gain-cell" }, element("b", {}, times(each.gain)), barOf(each, most), element("span", { className: "small" }, each.gain_low === null ? "" : `${two(each.gain_low)} – ${two(each.gain_high)}`))),
      element("td", {}, qualityOf(each)),
      element("td", { className: "number" }, memory(each.resident_bytes)),
      element("td", { className: "small words", lang: "en" }, each.reason),
    ),
  );
  const heads = [t("candidate"), t("candidate.gain", { first }), t("candidate.quality"), t("candidate.memory"), t("candidate.finding")];
  const head = element("tr", {}, ...heads.map((name) => element("th", { scope: "col" }, name)));
  const table = element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows));
  const region = element("div", { className: "scroll", role: "region", tabIndex: 0 }, table);
  region.setAttribute("aria-label", t("candidate"));
  const focused = $("candidates").contains(document.activeElement);
  const { scrollLeft } = $("candidates").firstElementChild ?? { scrollLeft: 0 };
  $("candidates").replaceChildren(region);
  region.scrollLeft = scrollLeft;
  if (focused) region.focus();
}

export function showShadow(model) {
  const { shadowing } = model;
  $("shadow").hidden = !shadowing;
  if (!shadowing) return;
  if (!shadowing.fraction) {
    const names = model.groups.filter(({ default: usual, refused }) => !usual && !refused).slice(0, 2).map(({ name }) => name);
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
    replayed.length ? bits(model, replayed) : element("p", { className: "small" }, t("shadow.none")),
  );
}

function bits(model, replayed) {
  const rows = replayed.map(({ name, replays }) =>
    element(
      "tr",
      {},
      element("th", { scope: "row" }, name),
      ...[numberText(replays.count), percent(replays.same_bits / replays.count), small(replays.p50), small(replays.p99), percent(replays.agreement)].map((value) =>
        element("td", { className: "number" }, value),
      ),
    ),
  );
  const heads = [t("group"), t("replays"), t("same"), t("drift").replace("p99", "p50"), t("drift"), t("agrees")];
  const head = element("tr", {}, ...heads.map((name) => element("th", { scope: "col" }, name)));
  const region = element("div", { className: "scroll", role: "region", tabIndex: 0 }, element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows)));
  region.setAttribute("aria-label", t("replays"));
  return region;
}
