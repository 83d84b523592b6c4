// The part of the page that cuts pictures out: what is shown of the one that is looked at.

import { keyEvents } from "/console/api.js";
import { $, element } from "/console/dom.js";
import { numberText, onLanguage, t } from "/console/i18n.js";
import { hideRefusal, showRefusal } from "/console/refusal.js";
import { onServer } from "/console/server.js";
import { startCamera } from "./camera.js";
import { codeBox } from "./codebox.js";
import { offerGroups } from "./groups.js";
import { startIntake } from "./intake.js";
import { startOptions } from "./options.js";
import { Item, makeSmaller, segmentQueue } from "./segment.js";
import { startStrip } from "./strip.js";
import { showTiming } from "./timing.js";
import { showPictures, startViewer } from "./viewer.js";
import { zipped } from "./zip.js";

let items = [];
let current = null;
let showing = {}; // what the viewer shows: the addresses before and after, and whether refused

const kilobytes = (bytes) => `${numberText(Math.ceil(bytes / 1000))} kB`;

function showWaiting() {
  const waits = current?.waits;
  $("waiting").hidden = !waits;
  if (waits) $("waiting-for").textContent = t(`waiting.${waits.what}`, waits);
  $("viewer").setAttribute("aria-busy", String(current?.state === "asking"));
}

function showRefused(again, smaller) {
  if (current?.state !== "refused") return hideRefusal($("segment-refusal"));
  const { reason, shrinks } = current.error;
  const offer = shrinks ? { again: smaller, label: "shrink" } : { again };
  showRefusal($("segment-refusal"), current.error, { more: reason, of: current.name, ...offer });
}

// One archive; files of one name get numbers.
async function saveAll(done) {
  const taken = new Set();
  const files = done.map(({ save, blob }) => {
    let name = save;
    for (let number = 2; taken.has(name); number++) name = save.replace(/(\.\w+)$/, `-${number}$1`);
    taken.add(name);
    return [name, blob];
  });
  const address = URL.createObjectURL(await zipped(files));
  element("a", { href: address, download: "cutouts.zip" }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

function showResult(showCode) {
  const done = current?.state === "done";
  $("segment-result").hidden = $("segment-file").hidden = !done;
  if (!done) return;
  const { response, blob, composed, save, after, request } = current;
  $("result-name").textContent = save;
  const sides = ["X-Width", "X-Height"].map((name) => response.headers.get(name)).join(" × ");
  const nothing = response.headers.get("X-Foreground-Width") === "0" ? t("nothing") : "";
  $("result-facts").textContent = [nothing, sides, kilobytes(blob.size), composed ? t("composed") : ""].filter(Boolean).join(" · ");
  Object.assign($("save"), { href: after, download: save });
  showTiming($("segment-timing"), response);
  showCode(request);
}

export function startPictures() {
  startViewer();
  const showCode = codeBox($("segment-code"));

  function show() {
    showWaiting();
    showRefused(() => reask([current]), () => shrink(current));
    showResult(showCode);
    // While a result is asked for anew, the one before stays until there is another.
    const comes = current?.state === "waiting" || current?.state === "asking";
    const next = { before: current?.before, after: current?.after, refused: current?.state === "refused" };
    if (comes && showing.before === next.before) return;
    if (Object.keys(next).every((name) => showing[name] === next[name])) return;
    showing = next;
    showPictures({ name: current?.name ?? "", ...next, reframed: current?.asked?.reframed, plain: current?.asked?.plain });
  }

  const changed = (item) => {
    strip.update(item);
    if (item === current) show();
  };
  const more = segmentQueue(() => items, changed);
  const pick = (item) => {
    current = item;
    strip.render(items, current);
    show();
    more(item);
  };
  const clear = () => {
    for (const item of items) item.drop();
    items = [];
    pick(null);
  };
  const strip = startStrip(pick, clear, saveAll, () => reask(items.filter((item) => item.state === "refused")));

  function take(files, { sample } = {}) {
    if (sample || items.every((item) => item.sample)) clear(); // a sample is not part of one's own
    const taken = files.map((file) => new Item(file, sample));
    items = [...items, ...taken];
    pick(taken[0]);
  }

  function reask(which) {
    for (const item of which) item.clear();
    strip.render(items, current);
    show();
    more(current);
  }

  async function shrink(item) {
    await makeSmaller(item, changed);
    changed(item);
    more(item);
  }

  const takeFirstSample = startIntake(take);
  startCamera(take);
  startOptions(() => reask(items));
  offerGroups("segment");
  onLanguage(show);
  let away = false;
  onServer(({ info }) => {
    if (info && away) reask(items.filter((item) => item.lost));
    else more(current);
    away = !info;
  });
  keyEvents.addEventListener("changed", () => reask(items.filter((item) => item.state === "refused")));
  takeFirstSample();
}
