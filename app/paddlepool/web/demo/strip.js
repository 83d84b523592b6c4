// Several pictures at once: a strip of them with how far each is, one of them shown.

import { $, element } from "/console/dom.js";
import { onLanguage, t } from "/console/i18n.js";

const UNSHOWN = "/demo/unshown.svg"; // for what the browser cannot show
const rows = new Map(); // item -> its <li>

function describe(item, current) {
  const button = rows.get(item).firstChild;
  const [image, name, state] = button.children;
  if (image.dataset.of !== item.after) {
    image.dataset.of = item.after;
    image.src = item.after || item.before;
  }
  image.classList.toggle("checker", Boolean(item.after));
  name.textContent = item.name;
  state.textContent = t(`strip.${item.lost ? "lost" : item.state}`);
  button.className = `thumb ${item.state}`;
  button.setAttribute("aria-pressed", String(item === current));
}

function makeRow(item, pick) {
  const image = element("img", { alt: "", width: 72, height: 72 });
  image.addEventListener("error", () => (image.src = UNSHOWN), { once: true });
  const words = ["name", "state"].map((className) => element("span", { className }));
  const button = element("button", { type: "button" }, image, ...words);
  button.addEventListener("click", () => pick(item));
  return element("li", {}, button);
}

// `pick(item)`, `clear()`, `saveAll(items)` and `reask()`, for all that were refused, are called when somebody does.
// Returns {render(items, current), which takes what is in the strip, and update(item), which says anew how one of them is}.
export function startStrip(pick, clear, saveAll, reask) {
  const remove = element("button", { type: "button", className: "quiet", "data-t": "strip.clear" });
  remove.addEventListener("click", clear);
  const save = element("button", { type: "button", "data-t": "strip.save" });
  save.addEventListener("click", () => saveAll(last[0].filter(({ state }) => state === "done")));
  const again = element("button", { type: "button", "data-t": "strip.again" });
  again.addEventListener("click", reask);
  const progress = element("span", { className: "soft", role: "status" });
  const end = element("div", { className: "strip-end" }, progress, again, save, remove);
  end.hidden = true;
  $("strip").before(end);
  let last = [[], null];

  function render(items, current) {
    last = [items, current];
    $("strip").hidden = end.hidden = items.length < 2;
    for (const [item, row] of rows) {
      if (items.includes(item)) continue;
      row.remove();
      rows.delete(item);
    }
    for (const item of items) {
      if (!rows.has(item)) {
        rows.set(item, makeRow(item, pick));
        $("strip").append(rows.get(item));
      }
      describe(item, current);
    }
    countDone();
    if (rows.has(current)) rows.get(current).scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  function countDone() {
    const [done, refused] = ["done", "refused"].map((wanted) => last[0].filter(({ state }) => state === wanted).length);
    save.disabled = !done;
    again.hidden = !refused;
    progress.textContent = t("strip.progress", { done, all: last[0].length });
  }
  function update(item) {
    if (rows.has(item)) describe(item, last[1]);
    countDone();
  }

  onLanguage(() => render(...last));
  return { render, update };
}
