// The demo page: sends a picture to /segment and a sentence to /sentiment, and shows the reply with
// the stage times the server itself measured (Server-Timing). Text only ever enters the page as text.

import { ask, keyEvents } from "/console/api.js";
import { $, element } from "/console/dom.js";
import { onServer } from "/console/server.js";
import { startPage } from "/console/shell.js";

const addressOf = new Map(); // image element -> object URL it shows, so that it can be freed

function show(image, blob) {
  URL.revokeObjectURL(addressOf.get(image));
  addressOf.set(image, URL.createObjectURL(blob));
  image.src = addressOf.get(image);
  image.hidden = false;
}

function showTiming(target, response) {
  const stages = (response.headers.get("Server-Timing") ?? "")
    .split(",")
    .map((part) => part.trim().match(/^(\w+);dur=([\d.]+)$/))
    .filter((match) => match && match[1] !== "total")
    .map(([, stage, duration]) => [stage, Number(duration)]);
  const bar = element("div", { className: "bar" });
  const keys = stages.map(([stage, duration]) => {
    const piece = element("span", { className: stage, title: `${stage} ${duration} ms` });
    piece.style.flexGrow = String(duration);
    bar.append(piece);
    return element("span", { className: "key" }, element("i", { className: stage }), `${stage} ${duration.toFixed(1)} ms`);
  });
  const by = `${response.headers.get("X-Model")} · ${response.headers.get("X-Predictor")}`;
  target.replaceChildren(bar, ...keys, element("span", { className: "key" }, by));
}

let picture = null;
let asked = 0; // answers to older questions are dropped

async function segment() {
  if (!picture) return;
  const question = ++asked;
  const parameters = new URLSearchParams({ output: $("output").value, crop: $("crop").checked });
  if ($("output").value === "composite") parameters.set("bg_color", $("color").value);
  if ($("segment-predictor").value) parameters.set("predictor", $("segment-predictor").value);
  const figure = $("after").parentElement;
  figure.classList.add("busy");
  $("segment-error").textContent = "";
  try {
    const body = new FormData();
    body.set("file", picture);
    const response = await ask(`/segment?${parameters}`, { method: "POST", body });
    if (question !== asked) return;
    show($("after"), await response.blob());
    Object.assign($("save"), { href: addressOf.get($("after")), hidden: false });
    showTiming($("segment-timing"), response);
  } catch (error) {
    if (question !== asked) return;
    $("after").hidden = $("save").hidden = true;
    $("segment-timing").replaceChildren();
    $("segment-error").textContent = error.message;
  } finally {
    if (question === asked) figure.classList.remove("busy");
  }
}

function take(files) {
  const chosen = [...(files ?? [])].find((file) => file.type.startsWith("image/"));
  if (!chosen) return;
  picture = chosen;
  $("drop-text").textContent = `${chosen.name || "pasted picture"} · ${(chosen.size / 1024).toFixed(0)} KiB`;
  show($("before"), chosen);
  segment();
}

$("file").addEventListener("change", () => take($("file").files));
for (const name of ["dragover", "dragleave", "drop"]) {
  $("drop").addEventListener(name, (event) => {
    event.preventDefault();
    $("drop").classList.toggle("over", name === "dragover");
    if (name === "drop") take(event.dataTransfer.files);
  });
}
document.addEventListener("paste", (event) => take(event.clipboardData.files));
$("segment").addEventListener("change", (event) => {
  $("color-label").hidden = $("output").value !== "composite";
  if (event.target !== $("file")) segment();
});

$("sentiment").addEventListener("submit", async (event) => {
  event.preventDefault();
  $("sentiment-error").textContent = "";
  try {
    const predictor = $("sentiment-predictor").value;
    const response = await ask(`/sentiment${predictor ? `?predictor=${predictor}` : ""}`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ text: $("text").value }),
    });
    const scores = await response.json();
    $("scores").replaceChildren(
      ...scores.map(({ label, label_zh, score }) =>
        element("li", {}, `${label} ${label_zh}`, element("meter", { value: score, max: 1 }), element("b", {}, `${(100 * score).toFixed(1)} %`)),
      ),
    );
    showTiming($("sentiment-timing"), response);
  } catch (error) {
    $("scores").replaceChildren();
    $("sentiment-timing").replaceChildren();
    $("sentiment-error").textContent = error.message;
  }
});

onServer(({ info }) => {
  if (!info) return;
  const ready = info.models.filter((model) => model.state === "READY");
  for (const [task, select] of [["segment", $("segment-predictor")], ["sentiment", $("sentiment-predictor")]]) {
    const model = ready.find((each) => each.name === info.default_models[task]);
    select.replaceChildren();
    for (const group of model?.predictors ?? []) {
      // The default one is not named: the server may choose another while the page is open.
      const selected = group.default;
      const [value, text] = selected ? ["", `${group.name} (default)`] : [group.name, group.name];
      select.append(element("option", { value, selected, defaultSelected: selected }, text));
    }
  }
});
keyEvents.addEventListener("changed", segment);
startPage();
