// The input sent to the groups in turn, and each answer shown in its group's card as it comes.

import { ask, Refusal } from "/console/api.js";
import { $, element } from "/console/dom.js";
import { language, onLanguage, t } from "/console/i18n.js";
import { hideRefusal, showRefusal } from "/console/refusal.js";
import { answerOf } from "./cards.js";
import { refresh } from "./feed.js";
import { digits, percent } from "./figures.js";
import { requestFor } from "./inputs.js";
import { forgetUsual, outputsOf, shownOutput } from "./tensors.js";

const STILL_STARTING = 504; // statuses: under /v2 errors have no codes
const FOR_ALL = [401, 429, undefined]; // no other group would answer; undefined: nobody answered
const shown = new Map(); // group -> what its card shows, so that it can be said in the other language
const addresses = new Map(); // group -> object URL of its picture
let running = null;
let ofInput = new AbortController(); // aborted when the input is another
const starting = new Map(); // group -> true while a request waits for it to start

export function forgetAnswers() {
  running?.abort();
  ofInput.abort();
  ofInput = new AbortController();
  forgetUsual();
  for (const address of addresses.values()) URL.revokeObjectURL(address);
  for (const name of shown.keys()) answerOf(name)?.replaceChildren();
  addresses.clear();
  shown.clear();
  starting.clear();
  hideRefusal($("run-refusal"));
  $("run-said").textContent = "";
}

function tell(group, what) {
  shown.set(group, what);
  const box = answerOf(group);
  if (box) box.replaceChildren(...rendered(group, what));
}

// After the cards were built anew.
export function showAnswers() {
  for (const [group, what] of shown) {
    const box = answerOf(group);
    if (box && !box.childElementCount) box.replaceChildren(...rendered(group, what));
  }
}

function rendered(group, { busy, error, again, picture, scores, outputs, by, stages }) {
  if (busy) return [element("p", { className: "soft busy" }, t(busy))];
  if (error) {
    const box = element("div", { className: "refusal", role: "alert" });
    showRefusal(box, error, { again });
    return [box];
  }
  const result = picture
    ? [element("img", { src: picture, alt: t("result.alt", { group }), className: "checker" })]
    : scores ? [element("ol", { className: "scores" }, ...scores.map(scoreOf))] : outputs.map(shownOutput);
  return [...result, bar(stages), element("p", { className: "small" }, element("span", { className: "mono" }, by), " ", t("took", { total: digits(STAGES.reduce((sum, name) => sum + (stages[name] ?? 0), 0)), infer: digits(stages.infer) }))];
}

function scoreOf({ label, label_zh: chinese, score }) {
  const name = (language() === "zh" && chinese) || label;
  return element("li", {}, name, element("meter", { value: score, max: 1, ariaLabel: name }), element("b", {}, percent(score)));
}

const STAGES = ["decode", "preprocess", "queue", "infer", "postprocess", "encode"];

// The server's own stage times, as a bar; the colours are told in its title, the times below it.
function bar(stages) {
  const parts = STAGES.filter((name) => stages[name] > 0).map((name) => {
    const part = element("span", { className: `stage ${name}`, title: `${name} ${digits(stages[name])} ms` });
    part.style.flexGrow = String(stages[name]);
    return part;
  });
  return element("div", { className: "stages", role: "img", ariaLabel: STAGES.filter((name) => name in stages).map((name) => `${name} ${digits(stages[name])} ms`).join(", ") }, ...parts);
}

function stagesOf(response) {
  const parts = (response.headers.get("Server-Timing") ?? "").matchAll(/([\w-]+);dur=([\d.]+)/g);
  return Object.fromEntries([...parts].map(([, name, duration]) => [name, Number(duration)]));
}

async function runOne(model, group, signal) {
  const [address, options] = await requestFor(model, group, { signal });
  const response = await ask(address, options);
  const told = { by: `X-Predictor: ${response.headers.get("X-Predictor")}`, stages: stagesOf(response) };
  if (model.task === "sentiment") {
    tell(group, { ...told, scores: (await response.json()).slice(0, 3) });
    return;
  }
  if (model.task === "classify") {
    tell(group, { ...told, scores: (await response.json()).labels.slice(0, 3) });
    return;
  }
  if (model.task !== "segment") {
    tell(group, { ...told, outputs: await outputsOf(model, group, response) });
    return;
  }
  const blob = await response.blob();
  URL.revokeObjectURL(addresses.get(group));
  addresses.set(group, URL.createObjectURL(blob));
  tell(group, { ...told, picture: addresses.get(group) });
}

// Through every group that runs, in turn, so that what else the machine does falls on all alike; the
// default group first, because the outputs of others are compared with its own.
export async function runAll(model, rounds) {
  running?.abort();
  const mine = (running = new AbortController());
  hideRefusal($("run-refusal"));
  // One that has answered runs, if the newest data do not say so yet.
  const groups = model.groups.filter(({ name, ready }) => ready || shown.get(name)?.stages).sort((one, other) => other.default - one.default).map(({ name }) => name);
  if (!groups.length) {
    $("run-said").textContent = t("run.none");
    return;
  }
  for (const group of groups) if (!shown.has(group)) tell(group, { busy: "running" });
  $("stop").hidden = false;
  let answers = 0;
  try {
    for (let round = 1; round <= rounds; round++) {
      $("run-said").textContent = t("run.round", { round, all: rounds });
      for (const group of groups) {
        try {
          await runOne(model, group, mine.signal);
          answers += 1;
        } catch (error) {
          if (!(error instanceof Refusal)) throw error;
          tell(group, { error, again: () => runAgain(model, group) });
          if (FOR_ALL.includes(error.problem.status)) throw error;
        }
      }
    }
  } catch (error) {
    if (error instanceof Refusal) showRefusal($("run-refusal"), error, { again: () => runAll(model, rounds) });
    else if (error.name !== "AbortError") throw error;
  } finally {
    if (running === mine) {
      $("stop").hidden = true;
      $("run-said").textContent = t("run.done", { count: answers });
    }
    for (const [group, { busy }] of shown) if (busy && groups.includes(group)) forget(group);
  }
}

function forget(group) {
  shown.delete(group);
  answerOf(group)?.replaceChildren();
}

export const stop = () => running?.abort();

// Starts the group by naming it. Where the request's time ends before the group runs, it goes on
// starting: startedMeanwhile() asks again.
export async function askFor(model, group, longest) {
  const { signal } = ofInput;
  tell(group, { busy: "starting" });
  starting.set(group, true);
  try {
    const [address, options] = await requestFor(model, group, { signal, timeout: longest });
    const response = await ask(address, options);
    refresh();
    await response.blob(); // the answer of a group that has just started says little of its time
    await runOne(model, group, signal);
    starting.delete(group);
  } catch (error) {
    if (signal.aborted) return;
    if (!(error instanceof Refusal)) throw error;
    if (error.problem.status === STILL_STARTING) return;
    starting.delete(group);
    tell(group, { error, again: () => askFor(model, group, longest) });
  }
}

export function startedMeanwhile(model) {
  for (const { name, ready, started, refused, reason } of model.groups) {
    if (!starting.get(name) || !shown.get(name)?.busy) continue;
    if (ready) {
      starting.delete(name);
      runAgain(model, name);
    } else if (!started && refused) {
      starting.delete(name);
      tell(name, { error: new Refusal({ code: "group_not_running", detail: reason ?? refused }) });
    }
  }
}

async function runAgain(model, group) {
  const { signal } = ofInput;
  try {
    await runOne(model, group, signal);
  } catch (error) {
    if (signal.aborted) return;
    if (!(error instanceof Refusal)) throw error;
    tell(group, { error, again: () => runAgain(model, group) });
  }
}

onLanguage(() => {
  for (const [group, what] of shown) answerOf(group)?.replaceChildren(...rendered(group, what));
});
