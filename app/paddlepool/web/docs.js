// Swagger UI, with the API's own texts in the language of the page.

import { applyLanguage, language, onLanguage } from "/console/i18n.js";
import { startSwitch } from "/console/switch.js";

const [english, { api: chinese, page: chineseWords }] = await Promise.all(
  ["/openapi.json", "/docs/chinese.json"].map(async (address) => (await fetch(address)).json()),
);
const ERRORS = {
  en: (codes) => `An error: ${codes}. Its \`code\` says which one; [all codes, and when each comes](/docs/errors).`,
  zh: (codes) => `错误：${codes}。\`code\` 说明是哪一种；[全部代码及其出现的情形](/docs/errors)。`,
};

// One row for all errors of an operation: thirteen rows of one form would hide the reply.
function fold(responses) {
  const errors = Object.keys(responses).filter((status) => status >= "400").sort();
  const { content } = responses[errors[0]];
  for (const status of errors) delete responses[status];
  responses.default = { description: ERRORS[language()](errors.join(", ")), content };
}

// A copy of the document in which texts with a translation are Chinese.
function translated(node) {
  if (typeof node === "string") return chinese[node] ?? node;
  if (Array.isArray(node)) return node.map(translated);
  if (node === null || typeof node !== "object") return node;
  const entry = ([key, value]) => [
    key,
    typeof value === "string" && !["summary", "description"].includes(key) ? value : translated(value),
  ];
  return Object.fromEntries(Object.entries(node).map(entry));
}

// Swagger UI has no translation: its own words are replaced where they appear, but not in values.
const VALUES = "pre, code, option, textarea";
const englishWords = Object.fromEntries(Object.entries(chineseWords).map((pair) => pair.reverse()));

function relabel(root) {
  const words = language() === "zh" ? chineseWords : englishWords;
  const texts = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  for (let text = texts.currentNode; text; text = texts.nextNode()) {
    if (text.data in words && !text.parentElement.closest(VALUES)) text.data = words[text.data];
  }
}

const page = document.getElementById("swagger-ui");
const changes = { childList: true, characterData: true, subtree: true };
new MutationObserver((changed) => changed.forEach(({ target }) => relabel(target))).observe(page, changes);

function show() {
  const spec = language() === "zh" ? translated(english) : structuredClone(english);
  for (const path of Object.values(spec.paths)) {
    for (const operation of Object.values(path)) fold(operation.responses);
  }
  window.ui = SwaggerUIBundle({
    spec,
    dom_id: "#swagger-ui",
    deepLinking: true,
    displayRequestDuration: true,
    tryItOutEnabled: true,
    defaultModelsExpandDepth: 0,
    layout: "BaseLayout",
    presets: [SwaggerUIBundle.presets.apis],
  });
}

startSwitch();
onLanguage(show);
applyLanguage();

const dark = matchMedia("(prefers-color-scheme: dark)");
const colour = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", colour);
colour();
