// The demo page: sends a picture to /segment and a sentence to /sentiment, and shows the reply with
// the stage times the server itself measured (Server-Timing). Text only ever enters the page as text.

const $ = (id) => document.getElementById(id);
const addressOf = new Map(); // image element -> object URL it shows, so that it can be freed

function show(image, blob) {
  URL.revokeObjectURL(addressOf.get(image));
  addressOf.set(image, URL.createObjectURL(blob));
  image.src = addressOf.get(image);
  image.hidden = false;
}

// The server's API key, where it wants one: asked for after a 401, kept until this tab is closed.
let key = "";
try {
  key = sessionStorage.getItem("paddlepool-key") ?? "";
} catch {
  // Storage is switched off: the key lasts until the page is left.
}

async function ask(address, options = {}) {
  const headers = new Headers(options.headers);
  // A header carries bytes; the server reads a key's as UTF-8.
  if (key) headers.set("X-Api-Key", String.fromCharCode(...new TextEncoder().encode(key)));
  const response = await fetch(address, { ...options, headers });
  if (response.status === 401) $("key-form").hidden = false;
  return response;
}

$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key = $("key").value.trim();
  try {
    sessionStorage.setItem("paddlepool-key", key);
  } catch {
    // As above.
  }
  $("key").value = $("segment-error").textContent = $("sentiment-error").textContent = "";
  $("key-form").hidden = true;
  describeServer();
  segment();
});

async function problemOf(response) {
  const problem = await response.json().catch(() => ({}));
  return problem.detail ?? problem.title ?? `the server answered ${response.status}`;
}

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
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
    if (!response.ok) throw new Error(await problemOf(response));
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
    if (!response.ok) throw new Error(await problemOf(response));
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

async function describeServer() {
  try {
    const response = await ask("/info");
    if (response.status === 401) {
      $("status").textContent = key ? "the server does not know this key" : "the server asks for a key";
      return;
    }
    const info = await response.json();
    const ready = info.models.filter((model) => model.state === "READY");
    $("status").textContent = `${ready.length} of ${info.models.length} models ready`;
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
    $("provenance").replaceChildren(
      ...ready.map((model) => element("div", {}, `${model.name}@${model.version}: weights ${model.weights?.origin ?? "unknown"}${model.weights?.preview ? " (preview)" : ""}; ${model.choice?.group} answers: ${model.choice?.reason}`)),
    );
  } catch {
    $("status").textContent = "the server does not answer";
  }
}
describeServer();
