// The errors in Chinese; in English the page is as the server sends it.

import { element } from "/console/dom.js";
import { addWords, applyLanguage, language, onLanguage, t } from "/console/i18n.js";
import { startSwitch } from "/console/switch.js";

const chinese = (await (await fetch("/docs/chinese.json")).json()).errors;
const rows = [...document.querySelectorAll("tbody tr")];
const english = new Map(rows.map((row) => [row.id, cells(row).map((cell) => [...cell.childNodes])]));

function cells(row) {
  return [...row.querySelectorAll("td")].slice(1);
}

// `like this` becomes code.
function marked(text) {
  return text.split("`").map((part, index) => (index % 2 ? element("code", {}, part) : part));
}

function show() {
  for (const row of rows) {
    const [title, when] = cells(row);
    const translated = [[t(`error.${row.id}`)], marked(chinese[row.id])];
    const texts = language() === "zh" ? translated : english.get(row.id);
    title.replaceChildren(...texts[0]);
    when.replaceChildren(...texts[1]);
  }
}

addWords({
  "errors.all": ["All codes", "全部错误代码"],
  "errors.status": ["status", "状态码"],
  "errors.title": ["title", "标题"],
  "errors.when": ["when", "何时出现"],
});
startSwitch();
onLanguage(show);
applyLanguage();
