// The page /compare: ties together the data, what is shown of it, and what people press.

import { $, element } from "/console/dom.js";
import { addWords, onLanguage, t } from "/console/i18n.js";
import { hideRefusal, showRefusal } from "/console/refusal.js";
import { server } from "/console/server.js";
import { startPage } from "/console/shell.js";
import { showCanary } from "./canary.js";
import { showCards } from "./cards.js";
import { showCharts, startCharts } from "./charts.js";
import { exportAs } from "./exports.js";
import { data, EVERY_SECONDS, modelsOf, onData, refresh, shownModel, startFeed } from "./feed.js";
import { scheme } from "./figures.js";
import { holdsOwn, showInputs, startInputs } from "./inputs.js";
import { askFor, forgetAnswers, runAll, showAnswers, startedMeanwhile, stop } from "./runs.js";
import { change, FIGURES, link, onState, state, VIEWS, WINDOWS } from "./state.js";
import { showGroups } from "./table.js";
import { startTerms } from "./terms.js";
import { showLead, showShadow, showVerdict } from "./verdict.js";
import { WORDS } from "./words.js";

const LONGEST_MS = 30_000; // where /info does not say otherwise
let answeredModel = "";

addWords(WORDS);
startCharts();
startTerms();
startInputs(() => forgetAnswers());
choices("windows", WINDOWS, "window");
choices("views", VIEWS, "view");
for (const name of FIGURES) $("figure").append(element("option", { value: name }));
$("figure").value = state.figure;
$("figure").addEventListener("change", () => change({ figure: $("figure").value }));
$("run").addEventListener("click", () => runAll(shownModel(), Number($("rounds").value)));
$("stop").addEventListener("click", stop);
$("link").addEventListener("click", copyLink);
for (const button of $("export").querySelectorAll("button")) {
  button.addEventListener("click", () => {
    $("export").open = false;
    $("export").querySelector("summary").focus();
    if (shownModel()) exportAs(button.dataset.export, data(), shownModel());
  });
}
document.addEventListener("click", (event) => {
  if (!$("export").contains(event.target)) $("export").open = false;
});
$("export").addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  $("export").open = false;
  $("export").querySelector("summary").focus();
});

function choices(id, values, name) {
  for (const value of values) {
    const button = element("button", { type: "button" });
    button.dataset.value = value;
    button.dataset.t = `${name}.${value}`;
    button.addEventListener("click", () => change({ [name]: value }));
    $(id).append(button);
  }
}

function press(id, value) {
  for (const button of $(id).children) button.setAttribute("aria-pressed", String(button.dataset.value === value));
}

async function copyLink() {
  change({}); // the address, too, says what is shown
  $("link-text").value = link();
  try {
    await navigator.clipboard.writeText(link());
    $("link-box").hidden = true;
    $("said").textContent = t(holdsOwn() ? "link.own" : "link.copied");
  } catch {
    $("link-box").hidden = false; // a page that is not secure may not write there: to be copied by hand
    $("link-text").select();
  }
}

function showModels(model) {
  const models = modelsOf(data());
  const names = JSON.stringify(models.map(({ key }) => key));
  if ($("models").dataset.names !== names) {
    $("models").dataset.names = names;
    $("models").replaceChildren(
      ...models.map(({ key }) => {
        const button = element("button", { type: "button" }, key);
        button.dataset.value = key;
        button.addEventListener("click", () => change({ model: key }));
        return button;
      }),
    );
  }
  press("models", model?.key);
}

// A composed model has no groups of its own: links to the tabs of its parts stand in their place.
function showParts(model) {
  const shown = JSON.stringify([model.key, model.parts, t("parts")]);
  if ($("nothing").dataset.parts === shown && $("nothing").childElementCount) return;
  $("nothing").dataset.parts = shown;
  const models = modelsOf(data());
  const links = Object.entries(model.parts).flatMap(([name, version]) => {
    const part = models.find((each) => `${each.name}@${each.version}` === version);
    const button = element("button", { type: "button" }, `${name}: ${version}`);
    button.addEventListener("click", () => change({ model: part?.key ?? version }));
    return [" ", button];
  });
  $("nothing").replaceChildren(t("parts", { model: model.name }), ...links);
}

function showFeed(answer, refusal) {
  const dot = $("live").querySelector(".dot");
  dot.className = `dot ${refusal ? "bad" : answer ? "good" : ""}`;
  $("live-text").textContent = refusal ? t("live.off") : answer ? t("live.on", { seconds: EVERY_SECONDS }) : t("live.asking");
  if (refusal) showRefusal($("feed-refusal"), refusal, { again: refresh });
  else hideRefusal($("feed-refusal"));
}

function show() {
  const answer = data();
  press("windows", state.window);
  press("views", state.view);
  for (const option of $("figure").options) option.textContent = t(`figure.${option.value}`);
  if (!answer) return;
  const model = shownModel();
  showModels(model);
  showLead(answer, model);
  showCanary(model);
  for (const id of ["verdict", "input", "plots", "groups", "shadow"]) $(id).hidden = !model?.groups.length;
  $("nothing").hidden = Boolean(model?.groups.length);
  if (!model?.groups.length) {
    if (model?.parts) showParts(model);
    else $("nothing").textContent = model ? `${model.name}: ${model.reason ?? t(`state.${model.state}`)}` : t("no-models");
    return;
  }
  if (answeredModel && answeredModel !== model.key) forgetAnswers();
  showInputs(model);
  showVerdict(answer, model);
  showCharts(answer, model);
  showCards(answer, model, ask);
  showAnswers();
  $("both").hidden = state.view !== "cards";
  $("idle-title").hidden = !$("idle").childElementCount;
  $("table").hidden = state.view !== "table";
  if (state.view === "table") showGroups(model);
  showShadow(model);
  startedMeanwhile(model);
  if (answeredModel !== model.key) {
    // At first sight there is something to see: the input once through what runs already.
    answeredModel = model.key;
    runAll(model, 1);
  }
}

function ask(group) {
  askFor(shownModel(), group, server().info?.limits.timeout_max_ms ?? LONGEST_MS);
}

onData((answer, refusal) => {
  showFeed(answer, refusal);
  show();
  if (answer || refusal) $("main").classList.add("stands");
});
onState(show);
onLanguage(() => {
  showFeed(data(), null);
  show();
});
scheme.addEventListener("change", show);
startPage();
startFeed();
