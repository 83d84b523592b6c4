// The card that names what a picture shows: the best labels as bars. For a model whose labels are the
// ten digits, a pad to draw one on.

import { $ } from "/console/dom.js";
import { onServer, server } from "/console/server.js";
import { startCard } from "./card.js";
import { drawingPad } from "./digits.js";
import { chosenFor } from "./groups.js";
import { PICTURES } from "./samples.js";
import { showScores, spoken } from "./scores.js";

const DIGITS = "0123456789";

function show(reply) {
  const results = reply ? [{ scores: reply.labels }] : [];
  if (reply) showScores($("classify-scores"), [""], results);
  else $("classify-scores").replaceChildren();
  $("classify-spoken").textContent = reply ? spoken([""], results) : "";
}

function readsDigits() {
  const { info } = server();
  const chosen = chosenFor("classify").model || info?.default_models.classify;
  const model = info?.models.find(({ name, version, state }) => state === "READY" && [name, `${name}@${version}`].includes(chosen));
  return model?.labels?.join("") === DIGITS;
}

export function startClassify() {
  let drawing = null; // the file that was drawn here
  const pad = drawingPad(() =>
    pad.canvas.toBlob((blob) => {
      drawing = new File([blob], "drawing.png", { type: blob.type });
      card.accept([drawing]);
    }),
  );
  const card = startCard("classify", PICTURES, show, (file) => (pad.canvas.hidden = file !== drawing));
  const offer = () => {
    const digits = readsDigits();
    if (digits !== $("classify-samples").hidden) pad.canvas.hidden = !digits;
    $("classify-samples").hidden = digits;
    $("classify-draw").hidden = !digits;
  };
  pad.canvas.hidden = true;
  $("classify-frame").insertBefore(pad.canvas, $("classify-waiting"));
  $("classify-draw").addEventListener("click", () => {
    pad.clear();
    card.clear();
    pad.canvas.hidden = false;
  });
  $("classify-model").addEventListener("change", offer);
  onServer(offer);
}
