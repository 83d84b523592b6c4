// A pad to draw a digit on; for the model `mnist` by its tensors, with the ten scores as bars.
//
// That model reads digits as MNIST has them: white on black, the ink in a box of 20 x 20, its centre of
// mass in the middle of 28 x 28 pixels, from -1 to 1. The page draws the strokes again in that place
// and size, so that a small or thin digit in a corner is read like a large one.

import { element } from "/console/dom.js";
import { onLanguage, t } from "/console/i18n.js";
import { showScores } from "./scores.js";

const SIDE = 28;
const BOX = 20;
const PEN = 2.5; // pixels, as thick as most of MNIST's digits
const SMALLEST = 4; // a dot is not blown up to a whole digit
const FINE = 20; // points of the pad for each pixel

// A model of this name may be another one.
export const readsDigits = ({ name }, { inputs, outputs }) =>
  name === "mnist" && inputs.length === 1 && outputs.length === 1 && inputs[0].datatype === "FP32" && inputs[0].shape.at(-1) === SIDE * SIDE && outputs[0].shape.at(-1) === 10;

function context(side, properties = {}) {
  const canvas = element("canvas", { width: side, height: side, ...properties });
  const made = canvas.getContext("2d", { willReadFrequently: true });
  made.strokeStyle = "#fff";
  made.lineCap = made.lineJoin = "round";
  return made;
}

// The strokes, lists of [x, y], scaled and then moved so that `middle` is in the middle of the canvas.
function draw(on, strokes, scale, [x, y]) {
  const side = on.canvas.width;
  on.setTransform(1, 0, 0, 1, 0, 0);
  on.fillRect(0, 0, side, side);
  on.setTransform(side / SIDE, 0, 0, side / SIDE, side / 2, side / 2);
  on.lineWidth = PEN;
  on.beginPath();
  for (const stroke of strokes) {
    for (const [at, point] of [stroke[0], ...stroke].entries()) {
      const place = [(point[0] - x) * scale, (point[1] - y) * scale];
      if (at) on.lineTo(...place);
      else on.moveTo(...place);
    }
  }
  on.stroke();
}

function inkOf(on) {
  const { data } = on.getImageData(0, 0, SIDE, SIDE);
  return Array.from({ length: SIDE * SIDE }, (_, at) => data[4 * at]);
}

// 784 numbers, as the model reads a picture.
export function pixelsOf(strokes) {
  const points = strokes.flat();
  const ends = [0, 1].map((axis) => points.map((point) => point[axis])).map((along) => [Math.min(...along), Math.max(...along)]);
  const scale = (BOX - PEN) / Math.max(SMALLEST, ...ends.map(([low, high]) => high - low));
  const middle = ends.map(([low, high]) => (low + high) / 2);
  const on = context(SIDE);
  draw(on, strokes, scale, middle);
  const ink = inkOf(on);
  const total = ink.reduce((sum, each) => sum + each, 0);
  const mean = (place) => ink.reduce((sum, each, at) => sum + each * (place(at) + 0.5), 0) / total - SIDE / 2;
  draw(on, strokes, scale, [middle[0] + mean((at) => at % SIDE) / scale, middle[1] + mean((at) => Math.floor(at / SIDE)) / scale]);
  return inkOf(on).map((each) => Number((each / 127.5 - 1).toFixed(3)));
}

function scoresOf(logits) {
  const powers = logits.map((each) => Math.exp(each - Math.max(...logits)));
  const sum = powers.reduce((one, other) => one + other, 0);
  return powers.map((each, digit) => ({ label: String(digit), score: each / sum })).sort((one, other) => other.score - one.score);
}

// {canvas, clear}: `drawn(strokes)` is called after each stroke; clear() empties the pad.
export function drawingPad(drawn) {
  const on = context(SIDE * FINE, { className: "pad", role: "img", "data-t-label": "digits.pad", "aria-label": t("digits.pad") });
  const { canvas } = on;
  let strokes = [];

  const paint = () => draw(on, strokes, 1, [SIDE / 2, SIDE / 2]);
  const follow = ({ clientX, clientY }) => {
    const { left, top, width, height } = canvas.getBoundingClientRect();
    strokes.at(-1).push([((clientX - left) / width) * SIDE, ((clientY - top) / height) * SIDE]);
    paint();
  };
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button || !event.isPrimary) return;
    canvas.setPointerCapture(event.pointerId);
    strokes.push([]);
    follow(event);
    canvas.onpointermove = follow;
  });
  canvas.addEventListener("lostpointercapture", () => {
    canvas.onpointermove = null;
    drawn(strokes);
  });
  const clear = () => {
    strokes = [];
    paint();
  };
  clear();
  return { canvas, clear };
}

// {box, show}: `drawn(values)` is called after each stroke, `show(logits)` draws the bars.
export function digitPad({ drawn, cleared }) {
  const pad = drawingPad((strokes) => drawn(pixelsOf(strokes)));
  const how = element("p", { className: "soft", "data-t": "digits.how" }, t("digits.how"));
  const clear = element("button", { type: "button", "data-t": "digits.clear" }, t("digits.clear"));
  const scores = element("ol", { className: "scores" });
  let logits = [];

  const show = (given) => {
    logits = given;
    if (logits.length === 10) showScores(scores, [""], [{ scores: scoresOf(logits) }]);
    else scores.replaceChildren();
  };
  clear.addEventListener("click", () => {
    pad.clear();
    cleared();
  });
  onLanguage(() => show(logits));
  return { box: element("div", { className: "digits" }, how, element("div", {}, pad.canvas, clear), scores), show };
}
