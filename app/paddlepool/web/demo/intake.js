// Every way a picture comes in: chosen, dropped anywhere, pasted, taken with the camera, a sample.

import { ask, Refusal } from "/console/api.js";
import { $, element } from "/console/dom.js";
import { language, t } from "/console/i18n.js";
import { hideRefusal, showRefusal } from "/console/refusal.js";
import { PICTURES, pictureAddress } from "./samples.js";

// `take(files, {sample})` gets at least one file; `sample` is the address it can be fetched from.
export function startIntake(take) {
  const accept = (files, more = {}) => {
    hideRefusal($("intake-refusal"));
    if (files.length && !$("pictures").hidden) take([...files], more);
  };
  for (const input of [$("file"), $("camera-file")]) {
    input.addEventListener("change", () => {
      accept(input.files);
      input.value = ""; // the same file can be chosen again
    });
  }
  startDrops(accept);
  document.addEventListener("paste", (event) => {
    const { files, types } = event.clipboardData;
    // A text goes where the cursor is, with the picture of itself that office programs add.
    const typed = types.includes("text/plain") && event.target.closest?.("textarea, input");
    if (!files.length || typed) return;
    event.preventDefault();
    accept(files);
  });
  for (const name of PICTURES) {
    const image = element("img", { src: pictureAddress(name), width: 64, height: 64, "data-t-alt": `sample.${name}` });
    const button = element("button", { type: "button", className: "sample", "data-t-title": `sample.${name}` }, image);
    button.addEventListener("click", () => takeSample(name, accept));
    $("samples").append(button);
  }
  return () => takeSample(PICTURES[0], accept);
}

async function takeSample(name, accept) {
  try {
    const address = pictureAddress(name);
    const blob = await (await ask(address)).blob();
    accept([new File([blob], address.split("/").pop(), { type: blob.type })], { sample: address });
  } catch (error) {
    showRefusal($("intake-refusal"), error, { again: () => takeSample(name, accept) });
  }
}

function startDrops(accept) {
  let depth = 0; // of dragenter without its dragleave
  const shown = (on) => {
    depth = on ? depth : 0;
    $("dropping").hidden = !on;
  };
  const ours = (event) => !event.target.closest?.("textarea, input[type=text]") || event.dataTransfer.types.includes("Files");
  addEventListener("dragenter", (event) => {
    depth += 1;
    if (event.dataTransfer.types.includes("Files") && !$("pictures").hidden) shown(true);
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
    if (event.dataTransfer.files.length) accept(event.dataTransfer.files);
    else showRefusal($("intake-refusal"), new Refusal({ code: "no_file", detail: t("detail.no_file"), language: language() }));
  });
}
