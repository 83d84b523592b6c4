// The part of the page that reads texts: asked while somebody types, an older question cancelled.

import { keyEvents, Refusal } from "/console/api.js";
import { $, element } from "/console/dom.js";
import { numberText, onLanguage, t } from "/console/i18n.js";
import { hideRefusal, showRefusal } from "/console/refusal.js";
import { onServer, server } from "/console/server.js";
import { codeBox } from "./codebox.js";
import { chosenFor, offerGroups } from "./groups.js";
import { serves } from "./models.js";
import { askPatiently } from "./patience.js";
import { SENTENCES } from "./samples.js";
import { showScores, spoken } from "./scores.js";
import { showTiming } from "./timing.js";

const PAUSE = 250; // milliseconds without a key before the server is asked
let timer = 0;
let abort = new AbortController();
let waits = null;
let shown = null; // {texts, results, response}
let begun = false;

const lines = () => $("text").value.split(/\r?\n/).filter((line) => line.trim());

function count() {
  const limits = server().info?.limits;
  if (!limits) return;
  const texts = lines();
  const lengths = texts.map((text) => [...text].length);
  const values = { characters: lengths.reduce((sum, each) => sum + each, 0), limit: limits.text_max_characters, lines: texts.length, most: limits.text_max_inputs };
  const over = Math.max(0, ...lengths) > values.limit || texts.length > values.most;
  $("counts").classList.toggle("bad", over);
  $("counts").textContent = t("counts", Object.fromEntries(Object.entries(values).map(([name, value]) => [name, numberText(value)])));
}

function showWaiting() {
  $("text-waiting").hidden = !waits;
  if (waits) $("text-waiting").textContent = t(`waiting.${waits.what === "working" ? "text" : waits.what}`, waits);
}

function show() {
  count();
  $("not-chinese").hidden = !shown?.texts.some((text) => !/\p{Script=Han}/u.test(text));
  showWaiting();
  $("sentiment-result").hidden = !shown;
  $("cut").hidden = true;
  if (!shown) {
    $("scores").replaceChildren();
    $("spoken").textContent = "";
    return;
  }
  const { texts, results, response } = shown;
  showScores($("scores"), texts, results);
  $("spoken").textContent = spoken(texts, results);
  showTiming($("sentiment-timing"), response);
  const read = results.reduce((sum, result) => sum + result.tokens, 0);
  $("sentiment-timing").querySelector(".by").append(` · ${t("counts.tokens", { tokens: read })}`);
  const cut = results.flatMap((result, at) => (result.truncated ? [{ which: at + 1, tokens: result.tokens }] : []));
  $("cut").hidden = !cut.length;
  $("cut").textContent = cut.map((each) => t("sentiment.cut", each)).join(" ");
}

async function askNow(showCode) {
  clearTimeout(timer);
  abort.abort();
  abort = new AbortController();
  const mine = abort;
  const texts = lines();
  waits = null;
  hideRefusal($("sentiment-refusal"));
  if (!texts.length || !server().info || !serves("sentiment")) {
    shown = null;
    show();
    return;
  }
  const wanted = chosenFor("sentiment");
  const query = Object.entries({ model: wanted.model, predictor: wanted.group }).filter(([, value]) => value);
  const inputs = texts.length === 1 ? { text: texts[0] } : { inputs: texts };
  const json = { ...inputs, parameters: { tokens: true, truncated: true } };
  const body = JSON.stringify(json);
  try {
    const made = { method: "POST", headers: { "Content-Type": "application/json" }, body, signal: mine.signal };
    const response = await askPatiently(`/sentiment?${new URLSearchParams(query)}`, made, wanted, (what, seconds, group) => {
      if (mine.signal.aborted) return;
      waits = what && { what, seconds, group };
      showWaiting();
    });
    const read = await response.json();
    if (mine.signal.aborted) return;
    shown = { texts, results: [read].flat(), response };
    show();
    showCode({ path: "/sentiment", query, json });
  } catch (error) {
    if (mine.signal.aborted) return;
    if (!(error instanceof Refusal)) throw error;
    shown = null;
    show();
    showRefusal($("sentiment-refusal"), error, { more: error.reason, again: () => askNow(showCode) });
  }
}

export function startTexts() {
  const showCode = codeBox($("sentiment-code"));
  const ask = () => askNow(showCode);
  const fill = (text) => {
    $("text").value = text;
    ask();
  };
  for (const [label, sentence] of [...Object.entries(SENTENCES), ["several", Object.values(SENTENCES).join("\n")]]) {
    const words = label === "several" ? "sentiment.several" : `emotion.${label}`;
    const chip = element("button", { type: "button", className: "chip", "data-t": words });
    chip.addEventListener("click", () => fill(sentence));
    $("sentences").append(chip);
  }
  $("text").addEventListener("input", () => {
    count();
    clearTimeout(timer);
    timer = setTimeout(ask, PAUSE);
  });
  for (const name of ["model", "predictor"]) $(`sentiment-${name}`).addEventListener("change", ask);
  offerGroups("sentiment");
  onLanguage(show);
  keyEvents.addEventListener("changed", () => (begun = false));
  onServer(({ info }) => {
    count();
    if (!info || begun) return;
    begun = true;
    ask();
  });
  $("text").value = SENTENCES.happy;
}
