// The card that reads the text in a picture: its lines over the picture and beside it, one of them
// current. The pointer on either side chooses it, as do the arrow keys in the list.

import { $, element } from "/console/dom.js";
import { numberText, t } from "/console/i18n.js";
import { startCard } from "./card.js";
import { copied } from "./codebox.js";
import { WITH_TEXT } from "./samples.js";

const SVG = "http://www.w3.org/2000/svg";
const STEPS = { ArrowDown: (at) => at + 1, ArrowUp: (at) => at - 1, Home: () => 0, End: () => Infinity };
let page = null;
let current = -1;

function choose(at, { scroll = false } = {}) {
  const [options, boxes] = [$("ocr-text").children, $("ocr-lines").children];
  options[current]?.setAttribute("aria-selected", "false");
  boxes[current]?.classList.remove("active");
  current = Math.min(at, options.length - 1);
  options[current]?.setAttribute("aria-selected", "true");
  boxes[current]?.classList.add("active");
  if (current >= 0) $("ocr-text").setAttribute("aria-activedescendant", options[current].id);
  else $("ocr-text").removeAttribute("aria-activedescendant");
  if (scroll) options[current]?.scrollIntoView({ block: "nearest" });
}

function boxOf({ box }, at) {
  const made = document.createElementNS(SVG, "polygon");
  made.setAttribute("points", box.map((corner) => corner.join(",")).join(" "));
  made.dataset.at = at;
  return made;
}

function optionOf({ text, score }, at) {
  const share = numberText(score, { style: "percent", maximumFractionDigits: 0 });
  const made = element("div", { id: `ocr-line-${at}`, role: "option", "aria-selected": "false" }, element("span", {}, text), element("b", {}, share));
  made.dataset.at = at;
  return made;
}

function show(reply) {
  const lines = reply?.pages[0].lines ?? [];
  if (reply && page === reply.pages[0]) return showFacts();
  page = reply?.pages[0] ?? null;
  choose(-1);
  $("ocr-lines").setAttribute("viewBox", `0 0 ${page?.width ?? 1} ${page?.height ?? 1}`);
  $("ocr-lines").replaceChildren(...lines.map(boxOf));
  $("ocr-text").replaceChildren(...lines.map(optionOf));
  $("ocr-text").hidden = $("ocr-copy").disabled = !lines.length;
  showFacts();
}

function showFacts() {
  $("ocr-copy").textContent = t("ocr.copy");
  const count = page?.lines.length;
  $("ocr-facts").textContent = page ? (count ? t("ocr.facts", { count: numberText(count) }) : t("ocr.none")) : "";
}

export function startOcr() {
  startCard("ocr", WITH_TEXT, show);
  const [list, boxes] = [$("ocr-text"), $("ocr-lines")];
  for (const side of [list, boxes]) {
    side.addEventListener("pointerover", ({ target }) => {
      const at = target.closest("[data-at]")?.dataset.at;
      if (at) choose(Number(at), { scroll: side === boxes });
    });
    // A finger leaves when it is lifted, and its choice stays.
    side.addEventListener("pointerleave", ({ pointerType }) => pointerType === "mouse" && choose(-1));
  }
  list.addEventListener("keydown", (event) => {
    if (!(event.key in STEPS)) return;
    event.preventDefault();
    choose(Math.max(0, STEPS[event.key](current)), { scroll: true });
  });
  $("ocr-copy").addEventListener("click", async () => {
    const done = await copied(page.lines.map(({ text }) => text).join("\n"), list);
    $(done ? "ocr-copy" : "ocr-facts").textContent = t(done ? "code.copied" : "code.none");
  });
}
