// What is asked of a picture: the controls as the parameters of /segment. Defaults are left out.

import { $ } from "/console/dom.js";
import { t } from "/console/i18n.js";
import { chosenFor } from "./groups.js";

let background = null; // the second picture, a File

const chosen = (name) => document.querySelector(`input[name=${name}]:checked`).value;

const OF_BACKGROUND = ["output", "bg_color", "bg_blur", "bg_fit", "format"];
const TYPES = { jpg: "image/jpeg", webp: "image/webp" };

// {query: [[name, value]], background: File or null, output, reframed, plain, wanted}; `plain` where
// nothing shines through, `reframed` where the result does not lie on the picture. `cutout` is the
// query of the same without a background, `backdrop` what compose() puts behind it, or null where
// the server has to.
export function readOptions() {
  const mask = chosen("result") === "mask";
  const behind = mask ? "none" : chosen("background");
  const picture = behind === "image" ? background : null;
  const composite = behind !== "none" && (behind !== "image" || picture);
  const output = mask ? "mask" : composite ? "composite" : "cutout";
  const wanted = chosenFor("segment");
  const given = {
    output: output === "cutout" ? "" : output,
    bg_color: composite && !picture && behind !== "blur" ? (behind === "own" ? $("own-colour").value : behind) : "",
    bg_blur: behind === "blur" ? `${$("blur").value}%` : "",
    bg_fit: picture ? $("fit").value : "",
    refine: $("refine").value,
    colours: mask ? "" : $("colours").value,
    size: $("size").value,
    format: $("format").value,
    threshold: $("threshold-on").checked ? $("threshold").value : "",
    crop: $("crop").checked ? "true" : "",
    crop_margin: $("crop").checked ? $("crop-margin").value.trim() : "",
    scale: $("scale-on").checked ? `${$("scale").value}%` : "",
    position: $("position").value,
    shadow: !mask && $("shadow").checked ? "drop" : "",
    shadow_opacity: !mask && $("shadow").checked ? $("shadow-opacity").value : "",
    model: wanted.model,
    predictor: wanted.group,
  };
  const query = Object.entries(given).filter(([, value]) => value !== "");
  const reframed = ["crop", "scale", "position"].some((name) => given[name] && given[name] !== "original");
  const cutout = query.filter(([name]) => !OF_BACKGROUND.includes(name));
  const here = output === "composite" && (given.bg_color || !(reframed || given.bg_fit));
  const backdrop = here ? { colour: given.bg_color, picture, blur: $("blur").value / 100, type: TYPES[given.format] ?? "image/png" } : null;
  return { query, background: picture, output, reframed, plain: output !== "cutout", wanted, cutout, backdrop };
}

// Show what the choice before it asks for, and what follows from it.
function arrange() {
  const mask = chosen("result") === "mask";
  const behind = chosen("background");
  $("backgrounds").disabled = mask;
  $("bg-choose").hidden = behind !== "image";
  $("blur").hidden = behind !== "blur";
  $("fit").disabled = behind !== "image" || mask;
  $("colours").disabled = $("shadow").disabled = mask;
  $("threshold").disabled = !$("threshold-on").checked;
  $("crop-margin").disabled = !$("crop").checked;
  $("scale").disabled = !$("scale-on").checked;
  $("shadow-opacity").disabled = mask || !$("shadow").checked;
  const jpeg = $("format").querySelector("[value=jpg]");
  jpeg.disabled = mask || behind === "none"; // it holds no transparency
  if (jpeg.disabled && $("format").value === "jpg") $("format").value = "";
  for (const [name, unit] of [["threshold", ""], ["shadow-opacity", " %"], ["scale", " %"]]) $(`${name}-now`).textContent = $(name).value + unit;
}

// `changed` runs when something else is asked for, not while a slider still moves.
export function startOptions(changed) {
  const form = $("options");
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", arrange);
  $("own-colour").addEventListener("input", () => {
    form.querySelector("[value=own]").checked = true;
    arrange();
  });
  form.querySelector("[name=background][value=image]").addEventListener("click", () => background || $("bg-file").click());
  $("bg-file").addEventListener("change", () => {
    background = $("bg-file").files[0] ?? background;
    delete $("bg-name").dataset.t;
    $("bg-name").textContent = background?.name ?? t("background.choose");
  });
  form.addEventListener("change", () => {
    arrange();
    changed();
  });
  arrange();
}
