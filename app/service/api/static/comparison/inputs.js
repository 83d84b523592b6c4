// The one picture or text that goes through every group: a sample, an own file, or what is typed.

import { $, element } from "/console/dom.js";
import { ask } from "/console/api.js";
import { PICTURES, pictureAddress, SENTENCES } from "/demo/samples.js";
import { change, state } from "./state.js";

const KINDS = { segment: "input-picture", sentiment: "input-text" };

let own = null; // a File
let changed = () => {};

export const takesInput = (task) => task in KINDS;
export const holdsOwnFile = () => own !== null;

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

export function showInputs(task) {
  for (const [name, id] of Object.entries(KINDS)) $(id).hidden = name !== task;
  $("run-bar").hidden = !takesInput(task);
  $("no-input").hidden = takesInput(task);
}

let sample = { name: "", blob: null };

async function picture() {
  if (own) return own;
  const name = state.sample || PICTURES[0];
  if (sample.name !== name) sample = { name, blob: await (await ask(pictureAddress(name))).blob() };
  return sample.blob;
}

// The request that sends the input to one group of a model.
export async function requestFor(model, group, signal) {
  const query = new URLSearchParams({ model: model.key, predictor: group });
  if (model.task === "sentiment") {
    const headers = { "Content-Type": "application/json" };
    return [`/sentiment?${query}`, { method: "POST", headers, body: JSON.stringify({ text: $("text").value }), signal }];
  }
  const body = new FormData();
  body.set("file", await picture());
  query.set("format", "webp");
  return [`/segment?${query}`, { method: "POST", body, signal }];
}
