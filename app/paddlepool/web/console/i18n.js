// Two languages: the browser's, until somebody chooses. Words are pairs: [English, 中文].

import { remember, remembered } from "./dom.js";
import { WORDS } from "./words.js";

const LANGUAGES = ["en", "zh"];
const HTML_LANGUAGES = { en: "en", zh: "zh-CN" };
const KEPT = "paddlepool-language";
const words = { ...WORDS };
const listeners = [];

function ofBrowser() {
  const first = navigator.languages.find((name) => /^(en|zh)\b/i.test(name)) ?? "en";
  return first.slice(0, 2).toLowerCase();
}

const kept = remembered("localStorage", KEPT);
let current = LANGUAGES.includes(kept) ? kept : ofBrowser();

export const language = () => current;

// A page's own words, before it calls translate().
export function addWords(more) {
  Object.assign(words, more);
}

export const knows = (name) => name in words;

export function t(name, values = {}) {
  const pair = words[name];
  if (!pair) throw new Error(`no words for ${name}`);
  return pair[LANGUAGES.indexOf(current)].replace(/\{(\w+)\}/g, (_, key) => values[key]);
}

export const numberText = (value, options) => value.toLocaleString(HTML_LANGUAGES[current], options);

// Fill in every element below `root` that names its words: data-t for the text, the others for
// attributes.
const ATTRIBUTES = { tLabel: "aria-label", tTitle: "title", tPlaceholder: "placeholder", tAlt: "alt" };

export function translate(root = document) {
  for (const each of root.querySelectorAll("[data-t]")) each.textContent = t(each.dataset.t);
  for (const [data, attribute] of Object.entries(ATTRIBUTES)) {
    const selector = `[data-${data.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}]`;
    for (const each of root.querySelectorAll(selector)) each.setAttribute(attribute, t(each.dataset[data]));
  }
}

// `listener` runs after each change, for what a script wrote into the page.
export function onLanguage(listener) {
  listeners.push(listener);
}

export function setLanguage(chosen) {
  current = chosen;
  remember("localStorage", KEPT, chosen);
  applyLanguage();
}

export function applyLanguage() {
  document.documentElement.lang = HTML_LANGUAGES[current];
  translate();
  for (const listener of listeners) listener();
}
