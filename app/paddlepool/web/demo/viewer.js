// The picture before and after, one over the other: a line between them to move, and zoom.

import { $ } from "/console/dom.js";
import { onLanguage, t } from "/console/i18n.js";

const STEPS = [1, 1.5, 2, 3, 4, 6, 8];
let zoom = 1;
let size = [4, 3]; // of the picture that is shown, in its own pixels
let note = null;

const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

// As large as fits, times the zoom; the middle stays where it is.
function layOut() {
  const pan = $("pan");
  const [width, height] = [pan.clientWidth, pan.clientHeight];
  const fit = Math.min(width / size[0], height / size[1]);
  const middle = [pan.scrollLeft + width / 2, pan.scrollTop + height / 2].map(
    (at, side) => at / Math.max(1, side ? $("canvas").clientHeight : $("canvas").clientWidth),
  );
  $("canvas").style.width = `${Math.floor(size[0] * fit * zoom)}px`;
  $("canvas").style.height = `${Math.floor(size[1] * fit * zoom)}px`;
  pan.scrollTo(middle[0] * $("canvas").clientWidth - width / 2, middle[1] * $("canvas").clientHeight - height / 2);
  $("zoom-now").textContent = `${Math.round(100 * zoom)} %`;
  $("zoom-out").disabled = zoom === STEPS[0];
  $("zoom-in").disabled = zoom === STEPS.at(-1);
  pan.classList.toggle("zoomed", zoom > 1);
}

function zoomTo(value) {
  zoom = clamp(value, STEPS[0], STEPS.at(-1));
  layOut();
}

function say() {
  $("viewer-note").textContent = note ? t(note.words, { name: note.name }) : "";
}

async function load(image, address) {
  if (address && image.src === address && image.naturalWidth) return true;
  image.hidden = true;
  if (!address) return false;
  image.src = address;
  try {
    await image.decode();
  } catch {
    return false;
  }
  return true;
}

// Results of the same shape as the picture lie under it, with a line to move; others are shown in
// its place. Sizes may differ by a rounded pixel or be a preview's.
function alike(one, other) {
  return Math.abs(one.naturalWidth / one.naturalHeight / (other.naturalWidth / other.naturalHeight) - 1) < 0.02;
}

let turn = 0;

// `before` and `after` are addresses, `after` empty while there is no result and both where there is
// no picture. Resolves when shown.
export async function showPictures({ name, before, after, refused, reframed, plain }) {
  const mine = ++turn;
  const [first, second] = [$("before"), $("after")];
  const [hasBefore, hasAfter] = await Promise.all([load(first, before), load(second, after)]);
  if (mine !== turn) return;
  const over = hasBefore && hasAfter && !reframed && alike(first, second);
  const main = hasAfter ? second : first;
  if (hasBefore || hasAfter) size = [main.naturalWidth, main.naturalHeight];
  $("canvas").hidden = !hasBefore && !hasAfter;
  $("canvas").classList.toggle("over", over);
  $("canvas").classList.toggle("checker", hasAfter && !plain);
  second.hidden = !hasAfter;
  first.hidden = !hasBefore || (hasAfter && !over);
  $("divider").hidden = $("split-label").hidden = !over;
  $("swap").hidden = !hasAfter || over || !hasBefore;
  $("swap").setAttribute("aria-pressed", "false");
  $("viewer-empty").hidden = Boolean(before);
  $("zoom").hidden = !hasBefore && !hasAfter;
  // Of a file that is refused there is no more to say.
  note = !before || refused ? null : !hasBefore ? { words: "viewer.hidden", name } : after && !hasAfter ? { words: "viewer.broken", name } : null;
  say();
  layOut();
}

function moveLine(percent) {
  $("split").value = String(clamp(percent, 0, 100));
  $("canvas").style.setProperty("--at", `${$("split").value}%`);
}

function followPointer(event) {
  const box = $("canvas").getBoundingClientRect();
  moveLine((100 * (event.clientX - box.left)) / box.width);
}

export function startViewer() {
  const [pan, divider] = [$("pan"), $("divider")];
  $("split").addEventListener("input", () => moveLine(Number($("split").value)));
  $("zoom-in").addEventListener("click", () => zoomTo(STEPS.find((step) => step > zoom) ?? zoom));
  $("zoom-out").addEventListener("click", () => zoomTo(STEPS.findLast((step) => step < zoom) ?? zoom));
  $("zoom-fit").addEventListener("click", () => zoomTo(1));
  pan.addEventListener("dblclick", () => zoomTo(zoom > 1 ? 1 : 3));
  pan.addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey) return; // a plain wheel scrolls
      event.preventDefault();
      zoomTo(zoom * (event.deltaY < 0 ? 1.15 : 1 / 1.15));
    },
    { passive: false },
  );
  // Not zoomed, a drag anywhere moves the line; zoomed, it moves the picture, but for the line's knob.
  let drag = null;
  pan.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    const line = !divider.hidden && (zoom === 1 || divider.contains(event.target));
    if (!line && event.pointerType !== "mouse") return; // a finger scrolls by itself
    event.preventDefault();
    pan.focus({ preventScroll: true, focusVisible: false });
    pan.setPointerCapture(event.pointerId);
    drag = { line, x: event.clientX, y: event.clientY };
    if (line) followPointer(event);
  });
  pan.addEventListener("pointermove", (event) => {
    if (!drag) return;
    if (drag.line) followPointer(event);
    else pan.scrollBy(drag.x - event.clientX, drag.y - event.clientY);
    [drag.x, drag.y] = [event.clientX, event.clientY];
  });
  for (const end of ["pointerup", "pointercancel"]) pan.addEventListener(end, () => (drag = null));
  $("swap").addEventListener("click", () => {
    const original = $("swap").getAttribute("aria-pressed") === "false";
    $("swap").setAttribute("aria-pressed", String(original));
    $("before").hidden = !original;
    $("after").hidden = original;
    const shown = $(original ? "before" : "after");
    size = [shown.naturalWidth, shown.naturalHeight];
    layOut();
  });
  new ResizeObserver(layOut).observe(pan);
  onLanguage(say);
  moveLine(50);
}
