// The last request as code, in a language to choose, with a button that copies it.

import { hasKey } from "/console/api.js";
import { element } from "/console/dom.js";
import { onLanguage, t } from "/console/i18n.js";
import { curl, javascript, python } from "./code.js";

const LANGUAGES = { curl, Python: python, JavaScript: javascript };
let chosen = "curl"; // in every box
const boxes = []; // how each shows itself anew

// Whether the browser lets this page copy the text: only pages of https and of this machine may. Else
// selects what is in `shown`.
export async function copied(text, shown) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    getSelection().selectAllChildren(shown);
    return false;
  }
}

// A box in the empty <details> `box`; returns a function that shows a request.
export function codeBox(box) {
  const summary = element("summary");
  const text = element("pre", { tabIndex: 0, className: "mono" });
  const copy = element("button", { type: "button" });
  const note = element("p", { className: "small", role: "status" });
  const tabs = Object.keys(LANGUAGES).map((name) => element("button", { type: "button", className: "tab" }, name));
  const row = element("div", { className: "tabs", role: "group" }, ...tabs, copy);
  box.append(summary, row, text, note);
  let request = null;

  function render() {
    summary.textContent = t("code.title");
    row.setAttribute("aria-label", t("code.language"));
    copy.textContent = t("code.copy");
    note.textContent = hasKey() ? t("code.key") : "";
    for (const tab of tabs) tab.setAttribute("aria-pressed", String(tab.textContent === chosen));
    if (request) text.textContent = LANGUAGES[chosen](request, hasKey());
  }

  for (const tab of tabs) {
    tab.addEventListener("click", () => {
      chosen = tab.textContent;
      for (const each of boxes) each();
    });
  }
  copy.addEventListener("click", async () => {
    if (await copied(text.textContent, text)) copy.textContent = t("code.copied");
    else note.textContent = t("code.none");
  });
  box.addEventListener("toggle", render);
  boxes.push(render);
  onLanguage(render);
  return (made) => {
    request = made;
    render();
  };
}
