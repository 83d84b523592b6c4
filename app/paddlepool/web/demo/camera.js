// A picture from the camera: looked at in a dialog, taken as JPEG, never sent before.

import { Refusal } from "/console/api.js";
import { $ } from "/console/dom.js";
import { language, t } from "/console/i18n.js";
import { hideRefusal, showRefusal } from "/console/refusal.js";

const QUALITY = 0.95;

// `take(files)` gets the picture.
export function startCamera(take) {
  const [dialog, video] = [$("camera"), $("camera-video")];

  async function open() {
    if (!navigator.mediaDevices) {
      $("camera-file").click(); // over plain http the browser has its own way, if any
      return;
    }
    hideRefusal($("camera-refusal"));
    $("camera-take").disabled = true;
    dialog.showModal();
    try {
      const stream = await navigator.mediaDevices.getUserMedia({ video: { width: { ideal: 1920 } } });
      if (!dialog.open) stop(stream); // closed while the browser still asked
      else video.srcObject = stream;
    } catch (error) {
      const detail = `${t("camera.refused")} (${error.name})`;
      showRefusal($("camera-refusal"), new Refusal({ code: "no_camera", detail, language: language() }));
    }
  }

  const stop = (stream) => stream?.getTracks().forEach((track) => track.stop());

  $("camera-open").addEventListener("click", open);
  $("camera-close").addEventListener("click", () => dialog.close());
  video.addEventListener("loadeddata", () => ($("camera-take").disabled = false));
  dialog.addEventListener("close", () => {
    stop(video.srcObject);
    video.srcObject = null;
  });
  $("camera-take").addEventListener("click", () => {
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [video.videoWidth, video.videoHeight];
    canvas.getContext("2d").drawImage(video, 0, 0);
    canvas.toBlob((blob) => take([new File([blob], "camera.jpg", { type: blob.type })]), "image/jpeg", QUALITY);
    dialog.close();
  });
}
