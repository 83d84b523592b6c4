// Terms that explain themselves: a press on one opens a bubble beside it. Every element with
// data-help is such a button; its words are `help.` and that name.

import { $, element } from "/console/dom.js";
import { t } from "/console/i18n.js";

export function term(name, { words = name, className = "" } = {}) {
  const made = element("button", { type: "button", className: `term ${className}` }, t(words));
  made.dataset.help = name;
  made.dataset.t = words;
  return made;
}

// A table in `target` whose head, its terms and its scrolling stay while its rows change.
export function showTable(target, names, rows) {
  const key = names.join();
  if (target.dataset.names !== key) {
    target.dataset.names = key;
    const heads = names.map((name) => element("th", { scope: "col" }, term(name)));
    target.replaceChildren(element("table", {}, element("thead", {}, element("tr", {}, ...heads)), element("tbody")));
  }
  target.querySelector("tbody").replaceChildren(...rows);
}

export function startTerms() {
  const bubble = $("bubble");
  document.addEventListener("click", ({ target }) => {
    const asked = target.closest("[data-help]");
    if (!asked) return;
    bubble.showPopover();
    bubble.textContent = t(`help.${asked.dataset.help}`); // shown first: a screen reader tells changes
    const { left, bottom, top } = asked.getBoundingClientRect();
    const { width, height } = bubble.getBoundingClientRect();
    bubble.style.left = `${Math.max(8, Math.min(left, innerWidth - width - 8))}px`;
    bubble.style.top = `${bottom + height + 8 < innerHeight ? bottom + 4 : Math.max(8, top - height - 4)}px`;
  });
  addEventListener("scroll", () => bubble.hidePopover(), { passive: true });
}
