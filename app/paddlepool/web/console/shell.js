// The header of every page: which page this is, how the server is, the API key, the language.

import { hasKey, keyEvents, setKey } from "./api.js";
import { $, element } from "./dom.js";
import { applyLanguage, onLanguage, t } from "./i18n.js";
import { sentencesOf, titleOf } from "./refusal.js";
import { modelsOf, onServer, refresh, server } from "./server.js";
import { startSwitch } from "./switch.js";

// Call it once, after addWords().
export function startPage() {
  for (const link of document.querySelectorAll("header nav a")) {
    if (link.pathname === location.pathname) link.setAttribute("aria-current", "page");
  }
  startSwitch();
  startKey();
  closeBesides($("server"));
  onLanguage(showServer);
  onServer(showServer);
  applyLanguage();
  document.body.classList.add("stands");
  refresh();
}

function startKey() {
  const toggle = (open) => {
    $("key-form").hidden = !open;
    $("key-open").setAttribute("aria-expanded", String(open));
    $("key-forget").hidden = !hasKey();
    if (open) $("key").focus();
  };
  $("key-open").addEventListener("click", () => {
    $("key-why").textContent = "";
    toggle($("key-form").hidden);
  });
  keyEvents.addEventListener("wanted", () => {
    $("key-why").textContent = t(hasKey() ? "key.unknown" : "key.wanted");
    if ($("key-form").hidden) toggle(true);
  });
  $("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const value = $("key").value.trim();
    $("key").value = "";
    toggle(false);
    setKey(value);
  });
  $("key-forget").addEventListener("click", () => {
    toggle(false);
    setKey("");
  });
  $("key-form").addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    toggle(false);
    $("key-open").focus();
  });
}

// A sheet goes when something else is clicked, and by Escape.
function closeBesides(details) {
  document.addEventListener("click", (event) => {
    if (!details.contains(event.target)) details.open = false;
  });
  details.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    details.open = false;
    details.querySelector("summary").focus();
  });
}

function showServer() {
  const { info, refusal } = server();
  const dot = $("server").querySelector(".dot");
  if (!info) {
    if (!refusal) return;
    dot.className = "dot bad";
    $("server-state").textContent = titleOf(refusal.problem);
    $("server-models").replaceChildren(...sentencesOf(refusal.problem));
    return;
  }
  const models = modelsOf(info);
  const ready = models.filter((model) => model.state === "READY");
  dot.className = ready.length === models.length && models.length ? "dot good" : "dot warn";
  $("server-state").textContent = t(!models.length ? "server.none" : ready.length === models.length ? "server.all" : "server.ready", { ready: ready.length, all: models.length });
  $("server-models").replaceChildren(
    ...models.map(describe),
    element("p", { className: "small" }, `Paddlepool ${info.version} · `, element("a", { href: "/metrics" }, t("nav.metrics"))),
  );
}

function describe(model) {
  const weights = model.weights ?? {};
  const origin = [weights.origin, weights.preview ? t("server.preview") : "", weights.licence].filter(Boolean).join(" · ");
  const group = model.choice?.group;
  return element(
    "div",
    { className: "model" },
    element("b", {}, model.version === null ? model.name : `${model.name}@${model.version}`),
    element("span", { className: model.state === "READY" ? "good" : "warn" }, t(`state.${model.state}`)),
    element("p", { lang: "en" }, model.reason ?? [origin, group].filter(Boolean).join(" · ")),
  );
}
