// Every way a picture comes in: chosen, dropped anywhere, pasted, taken with the camera, a sample.

import { ask, Refusal } from "/console/api.js";
import { $, element } from "/console/dom.js";
import { language, t } from "/console/i18n.js";
import { hideRefusal, showRefusal } from "/console/refusal.js";
import { PICTURES, pictureAddress } from "./samples.js";

const receivers = new Map(); // id of a card -> what takes the files that are dropped or pasted there

// `accept(files)` takes what comes to this card, and what comes to none while no earlier card is shown.
export const receive = (id, accept) => receivers.set(id, accept);

function receiverOf({ target }) {
  const shown = [...receivers].filter(([id]) => !$(id).hidden);
  return (shown.find(([id]) => $(id).contains(target)) ?? shown[0])?.[1];
}

// `take(files, {sample})` gets at least one file; `sample` is the address it can be fetched from.
export function startIntake(take) {
  const accept = (files, more = {}) => {
    hideRefusal($("intake-refusal"));
    if (files.length && !$("pictures").hidden) take([...files], more);
  };
  receive("pictures", accept);
  for (const input of [$("file"), $("camera-file")]) {
    input.addEventListener("change", () => {
      accept(input.files);
      input.value = ""; // the same file can be chosen again
    });
  }
  startDrops();
  document.addEventListener("paste", (event) => {
    const { files, types } = event.clipboardData;
    // A text goes where the cursor is, with the picture of itself that office programs add.
    const typed = types.includes("text/plain") && event.target.closest?.("textarea, input");
    if (!files.length || typed) return;
    event.preventDefault();
    receiverOf(event)?.(files);
  });
  offerSamples("samples", PICTURES, accept, $("intake-refusal"));
  return () => takeSample(PICTURES[0], accept, $("intake-refusal"));
}

// A button for each sample in the element `id`; `refusal` says why one could not be fetched.
export function offerSamples(id, names, accept, refusal) {
  for (const name of names) {
    const image = element("img", { src: pictureAddress(name), width: 64, height: 64, "data-t-alt": `sample.${name}` });
    const button = element("button", { type: "button", className: "sample", "data-t-title": `sample.${name}` }, image);
    button.addEventListener("click", () => takeSample(name, accept, refusal));
    $(id).append(button);
  }
}

async function takeSample(name, accept, refusal) {
  try {
    const address = pictureAddress(name);
    const blob = await (await ask(address)).blob();
    accept([new File([blob], address.split("/").pop(), { type: blob.type })], { sample: address });
  } catch (error) {
    showRefusal(refusal, error, { again: () => takeSample(name, accept, refusal) });
  }
}

function startDrops() {
  let depth = 0; // of dragenter without its dragleave
  const shown = (on) => {
    depth = on ? depth : 0;
    $("dropping").hidden = !on;
  };
  const ours = (event) => !event.target.closest?.("textarea, input[type=text]") || event.dataTransfer.types.includes("Files");
  addEventListener("dragenter", (event) => {
    depth += 1;
    if (event.dataTransfer.types.includes("Files") && receiverOf(event)) shown(true);
  });
  addEventListener("dragleave", () => {
    depth -= 1;
    if (depth <= 0) shown(false);
  });
  addEventListener("dragover", (event) => ours(event) && event.preventDefault());
  addEventListener("drop", (event) => {
    shown(false);
    if (!ours(event)) return;
    event.preventDefault();
    if (event.dataTransfer.files.length) receiverOf(event)?.(event.dataTransfer.files);
    else showRefusal($("intake-refusal"), new Refusal({ code: "no_file", detail: t("detail.no_file"), language: language() }));
  });
}
