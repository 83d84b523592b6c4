// A picture that the server would refuse for its size, made smaller here.

const PIXELS = 16e6; // what the canvas of every browser holds
const TYPES = ["image/webp", "image/jpeg"]; // a browser that writes no WebP returns a PNG

// `limits` are those of /info. Throws where the browser cannot read the picture.
export async function shrunk(file, limits) {
  const whole = await createImageBitmap(file);
  const type = TYPES[Number(file.type === "image/jpeg")]; // JPEG has no transparency
  for (let pixels = Math.min(PIXELS, limits.image_max_pixels); ; pixels /= 2) {
    const scale = Math.min(1, Math.sqrt(pixels / (whole.width * whole.height)), limits.image_max_side / Math.max(whole.width, whole.height));
    const [width, height] = [whole.width, whole.height].map((side) => Math.max(1, Math.floor(side * scale)));
    const canvas = Object.assign(document.createElement("canvas"), { width, height });
    const pen = canvas.getContext("2d");
    pen.imageSmoothingQuality = "high";
    pen.drawImage(whole, 0, 0, width, height);
    const made = await new Promise((resolve) => canvas.toBlob(resolve, type, 0.92));
    if (!made) throw new Error("this browser cannot write the picture");
    if (made.size > limits.segment_max_bytes * 0.9 && pixels > 1) continue; // the form around it counts as well
    const name = `${file.name.replace(/\.[^.]{1,5}$/, "")}-smaller.${made.type.split("/").pop().replace("jpeg", "jpg")}`;
    return new File([made], name, { type: made.type });
  }
}
