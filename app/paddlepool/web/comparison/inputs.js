// The one input that goes through every group: a picture, a text, or tensors; a sample or one's own.

import { $, element } from "/console/dom.js";
import { ask, Refusal } from "/console/api.js";
import { PICTURES, pictureAddress, SENTENCES } from "/demo/samples.js";
import { change, state } from "./state.js";
import { sampleOf, sidesOf, tensorRequest, tensorsOf } from "./tensors.js";

const KINDS = { segment: "input-picture", classify: "input-picture", sentiment: "input-text" };
const TENSORS = "input-tensors"; // of every other model
const MOST_VALUES = 4096; // of a sample that can be changed as text

let own = null; // a File
let ofModel = ""; // the model whose tensors are shown
let pasted = false; // whether they are pasted, not the sample
let changed = () => {};

export const holdsOwn = () => own !== null || pasted;

export function startInputs(onChange) {
  changed = onChange;
  if (!PICTURES.includes(state.sample)) state.sample = "";
  $("text").value = state.text || SENTENCES.happy;
  $("samples").replaceChildren(
    ...PICTURES.map((name) => {
      const button = element("button", { type: "button", className: "sample" }, element("img", { src: pictureAddress(name), alt: name, width: 64, height: 64 }));
      button.dataset.sample = name;
      button.addEventListener("click", () => choose(name));
      return button;
    }),
  );
  $("sentences").replaceChildren(
    ...Object.values(SENTENCES).map((sentence) => {
      const button = element("button", { type: "button", className: "quiet", lang: "zh" }, sentence);
      button.addEventListener("click", () => {
        $("text").value = sentence;
        typed();
      });
      return button;
    }),
  );
  $("file").addEventListener("change", () => $("file").files.length && take($("file").files[0]));
  $("text").addEventListener("input", typed);
  for (const [id, value] of [["from-sample", false], ["from-pasted", true]]) {
    $(id).addEventListener("click", () => {
      pasted = value;
      showPasted();
      changed();
    });
  }
  $("pasted").addEventListener("input", changed);
  document.addEventListener("paste", (event) => event.clipboardData.files.length && take(event.clipboardData.files[0]));
  for (const name of ["dragover", "drop"]) {
    document.addEventListener(name, (event) => {
      event.preventDefault();
      if (name === "drop" && event.dataTransfer.files.length) take(event.dataTransfer.files[0]);
    });
  }
  mark();
}

function typed() {
  change({ text: $("text").value });
  changed();
}

function choose(name) {
  own = null;
  $("file").value = "";
  change({ sample: name });
  mark();
  changed();
}

function take(file) {
  own = file;
  change({ sample: "" });
  mark();
  changed();
}

function mark() {
  $("file-name").textContent = own ? own.name || "–" : "";
  for (const button of $("samples").children) {
    button.setAttribute("aria-pressed", String(!own && button.dataset.sample === (state.sample || PICTURES[0])));
  }
}

export function showInputs(model) {
  const shown = KINDS[model.task] ?? TENSORS;
  for (const id of [...Object.values(KINDS), TENSORS]) $(id).hidden = id !== shown;
  if (shown === TENSORS && ofModel !== model.key) showTensors(model);
}

// Another model's tensors are of no use: it begins with its sample, also as text to be changed.
async function showTensors(model) {
  ofModel = model.key;
  pasted = false;
  showPasted();
  $("sample-said").textContent = $("pasted").value = "";
  try {
    const { document: { inputs }, raw } = await sampleOf(model);
    if (ofModel !== model.key) return;
    $("sample-said").textContent = inputs.map(({ name, datatype, shape }) => `${name} ${datatype} ${sidesOf(shape)}`).join(", ");
    const tensors = tensorsOf(inputs, raw).map(({ numbers, ...told }) => ({ ...told, data: Array.from(numbers) }));
    if (tensors.every(({ data }) => data.length <= MOST_VALUES)) $("pasted").value = JSON.stringify({ inputs: tensors });
  } catch (error) {
    if (!(error instanceof Refusal)) throw error; // each group's card says it
  }
}

function showPasted() {
  $("from-sample").setAttribute("aria-pressed", String(!pasted));
  $("from-pasted").setAttribute("aria-pressed", String(pasted));
  $("sample-said").hidden = pasted;
  $("pasted").hidden = !pasted;
}

let sample = { name: "", blob: null };

async function picture() {
  if (own) return own;
  const name = state.sample || PICTURES[0];
  if (sample.name !== name) sample = { name, blob: await (await ask(pictureAddress(name))).blob() };
  return sample.blob;
}

// The request that sends the input to one group of a model; `timeout` in milliseconds.
export async function requestFor(model, group, { signal, timeout }) {
  if (!(model.task in KINDS)) return tensorRequest(model, group, pasted ? $("pasted").value : null, { signal, timeout });
  const query = new URLSearchParams({ model: model.key, predictor: group, ...(timeout ? { timeout_ms: timeout } : {}) });
  if (model.task === "sentiment") {
    const headers = { "Content-Type": "application/json" };
    return [`/sentiment?${query}`, { method: "POST", headers, body: JSON.stringify({ text: $("text").value }), signal }];
  }
  const body = new FormData();
  body.set("file", await picture());
  if (model.task === "segment") query.set("format", "webp");
  return [`/${model.task}?${query}`, { method: "POST", body, signal }];
}
