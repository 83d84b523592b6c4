// Every model by its tensors: a card for each, with a form made from the tensors of its inputs where
// no other part of the page asks it.

import { ask, askJson, Refusal } from "/console/api.js";
import { $, element } from "/console/dom.js";
import { onLanguage, t } from "/console/i18n.js";
import { hideRefusal, showRefusal } from "/console/refusal.js";
import { modelsOf, onServer, server } from "/console/server.js";
import { codeBox } from "./codebox.js";
import { digitPad, readsDigits } from "./digits.js";
import { showTiming } from "./timing.js";

const SECTIONS = { segment: "pictures", sentiment: "texts", classify: "classify", ocr: "ocr" };
const LATER = ["classify", "ocr"]; // tasks whose cards are hidden until a model of theirs is known
const OPEN_SIDE = 32; // of an axis that may have any length, but the first, which is 1
const MOST_VALUES = 4096; // in a form; more are sent as bytes, by a program
const MOST_SHOWN = 2000; // characters of an output
const cards = new Map(); // name@version and state -> <article>

// Whether the server has a model for the task; while one is loading that is not known.
export function serves(task) {
  const { info } = server();
  if (!info) return true;
  const unknown = !LATER.includes(task);
  return info.models.some((model) => model.task === task || model.name === info.default_models[task] || (unknown && model.state === "LOADING"));
}

const nameOf = (model) => (model.version === null ? model.name : `${model.name}@${model.version}`);
const addressOf = (model) => `/v2/models/${encodeURIComponent(model.name)}/versions/${model.version}`;
const openShape = (shape) => shape.map((side, axis) => (side >= 0 ? side : axis ? OPEN_SIDE : 1));
const sidesOf = (shape) => shape.map((side) => (side < 0 ? t("tensor.any") : side)).join(" × ") || "1";
const example = (datatype) => (datatype === "BYTES" ? "text" : datatype === "BOOL" ? false : 0);

function valuesOf(datatype, shape) {
  const count = shape.reduce((product, side) => product * side, 1);
  return count > MOST_VALUES ? null : new Array(count).fill(example(datatype));
}

function tensorsTable({ inputs, outputs }) {
  const row = (kind) => ({ name, datatype, shape }) =>
    element("tr", {}, element("td", {}, t(`tensor.${kind}`)), element("th", { scope: "row", className: "mono" }, name), element("td", { className: "mono" }, datatype), element("td", {}, sidesOf(shape)));
  return element("table", { className: "tensors" }, ...inputs.map(row("input")), ...outputs.map(row("output")));
}

// One input as two fields, its shape and its values; read() gives it as a request has it.
function inputFields(input) {
  const shape = element("input", { type: "text", value: openShape(input.shape).join(", "), spellcheck: false });
  const values = element("textarea", { rows: 3, className: "mono", spellcheck: false });
  const numbers = () => shape.value.split(/[\s,×x]+/).filter(Boolean).map(Number);
  const fill = () => (values.value = JSON.stringify(valuesOf(input.datatype, numbers())) ?? "");
  shape.addEventListener("change", fill);
  fill();
  const label = (words, control) => element("label", {}, element("span", {}, element("b", { className: "mono" }, input.name), " ", element("span", { "data-t": words }, t(words))), control);
  const read = () => ({ name: input.name, shape: numbers(), datatype: input.datatype, data: JSON.parse(values.value) });
  const write = (sides, data) => {
    shape.value = sides.join(", ");
    values.value = JSON.stringify(data);
  };
  return { elements: [label("tensor.shape", shape), label("tensor.values", values)], read, write };
}

function outputOf({ name, datatype, shape, data }) {
  const text = JSON.stringify(data);
  const shown = text.length > MOST_SHOWN ? `${text.slice(0, MOST_SHOWN)} …` : text;
  return element("div", {}, element("p", {}, element("b", { className: "mono" }, name), ` ${datatype} ${sidesOf(shape)}`), element("pre", { tabIndex: 0, className: "mono wraps" }, shown));
}

function form(model, metadata) {
  const fields = metadata.inputs.map(inputFields);
  const send = element("button", { className: "main", "data-t": "model.send" }, t("model.send"));
  const refusal = element("div", { className: "refusal", role: "alert", hidden: true });
  const outputs = element("div", { className: "outputs", role: "status" });
  const timing = element("div", { className: "timing" });
  const code = element("details", { className: "code" });
  const showCode = codeBox(code);
  const path = `${addressOf(model)}/infer`;
  const request = () => ({ path, query: [], json: { inputs: fields.map(({ read }) => read()) } });

  let abort = new AbortController();
  const clear = () => {
    outputs.replaceChildren();
    timing.replaceChildren();
    pad?.show([]);
  };
  const drawn = (values) => {
    fields[0].write([1, values.length], values);
    made.requestSubmit();
  };
  const cleared = () => {
    abort.abort();
    send.disabled = false;
    hideRefusal(refusal);
    clear();
  };
  const pad = readsDigits(model, metadata) ? digitPad({ drawn, cleared }) : null;

  const made = element("form", { className: "tensor-form" }, pad?.box, ...fields.flatMap(({ elements }) => elements), send, refusal, outputs, timing, code);
  made.addEventListener("input", () => {
    try {
      showCode(request());
    } catch {
      // Half-typed values are no request yet.
    }
  });
  made.addEventListener("submit", async (event) => {
    event.preventDefault();
    hideRefusal(refusal);
    send.disabled = true;
    abort.abort();
    abort = new AbortController();
    const mine = abort;
    try {
      const { json } = request();
      const response = await ask(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(json), signal: mine.signal });
      const read = await response.json();
      if (mine.signal.aborted) return;
      outputs.replaceChildren(...read.outputs.map(outputOf));
      pad?.show(read.outputs[0].data);
      showTiming(timing, response);
      showCode(request());
    } catch (error) {
      if (mine.signal.aborted) return;
      clear();
      const told = error instanceof SyntaxError ? new Refusal({ code: "invalid_json", detail: error.message }) : error;
      showRefusal(refusal, told, { again: () => made.requestSubmit() });
    } finally {
      if (!mine.signal.aborted) send.disabled = false;
    }
  });
  showCode(request());
  return made;
}

// Too large a form for a page, or no tensors that a form can name.
const fits = ({ inputs }) => inputs.every(({ datatype, shape }) => datatype !== "BF16" && valuesOf(datatype, openShape(shape)) !== null);

async function fillCard(model, card) {
  const box = card.lastElementChild;
  try {
    const metadata = (card.metadata = await askJson(addressOf(model)));
    const section = readsDigits(model, metadata) ? undefined : SECTIONS[model.task];
    const note = section ? element("p", {}, element("a", { href: `#${section}`, "data-t": `model.${model.task}` }, t(`model.${model.task}`))) : fits(metadata) ? null : element("p", { className: "soft", "data-t": "model.large" }, t("model.large"));
    box.replaceChildren(tensorsTable(metadata), note ?? form(model, metadata));
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    const refusal = element("div", { className: "refusal", role: "alert" });
    box.replaceChildren(refusal);
    showRefusal(refusal, error, { again: () => fillCard(model, card) });
  }
}

function makeCard(model) {
  const state = element("span", { className: model.state === "READY" ? "good" : "warn", "data-t": `state.${model.state}` }, t(`state.${model.state}`));
  const box = element("div", { className: "model-body" });
  if (model.reason) box.append(element("p", { lang: "en" }, model.reason));
  const card = element("article", { className: "card" }, element("div", { className: "said" }, element("h3", {}, nameOf(model)), state), box);
  if (model.state === "READY") fillCard(model, card);
  return card;
}

function show() {
  const { info } = server();
  if (!info) return;
  for (const [task, id] of Object.entries(SECTIONS)) $(id).hidden = !serves(task);
  const models = modelsOf(info);
  const shown = new Map(models.map((model) => [`${nameOf(model)} ${model.state} ${model.reason ?? ""}`, model]));
  for (const key of cards.keys()) if (!shown.has(key)) cards.delete(key);
  for (const [key, model] of shown) if (!cards.has(key)) cards.set(key, makeCard(model));
  const wanted = [...shown.keys()].map((key) => cards.get(key));
  const list = $("model-cards");
  if (wanted.length !== list.children.length || wanted.some((card, place) => list.children[place] !== card)) list.replaceChildren(...wanted);
  $("models-none").hidden = models.length > 0;
  $("models").hidden = false;
}

export function startModels() {
  onServer(show);
  onLanguage(() => {
    for (const card of cards.values()) {
      if (card.metadata) card.querySelector(".tensors").replaceWith(tensorsTable(card.metadata));
    }
  });
}
