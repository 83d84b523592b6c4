// A cut-out put on a background here, so that another background asks nothing of the server.

const BLURS = [8, 1]; // the wide one shows only where the narrow one has nothing near
const LAYERS = 6; // a blur of what is left around the subject is thin at its edge

// The result as a file of `type`, as /segment makes it: `colour`, or `picture`, a file that fills the
// canvas, or `blur`, the standard deviation as a share of the longer side. Throws where the browser
// cannot read one of the pictures or cannot write the type.
export async function compose(cutout, original, { colour, picture, blur, type }) {
  const front = await createImageBitmap(cutout);
  const { width, height } = front;
  const canvas = canvasOf(width, height);
  const pen = canvas.getContext("2d");
  if (colour) {
    pen.fillStyle = colour;
    pen.fillRect(0, 0, width, height);
  } else if (picture) {
    const behind = await createImageBitmap(picture);
    const scale = Math.max(width / behind.width, height / behind.height);
    const [wide, high] = [behind.width * scale, behind.height * scale];
    pen.imageSmoothingQuality = "high";
    pen.drawImage(behind, (width - wide) / 2, (height - high) / 2, wide, high);
  } else drawBlurred(pen, await createImageBitmap(original), front, blur * Math.max(width, height));
  pen.drawImage(front, 0, 0);
  const made = await new Promise((resolve) => canvas.toBlob(resolve, type, 0.95));
  if (made?.type !== type) throw new Error(`this browser writes no ${type}`);
  return made;
}

const canvasOf = (width, height) => Object.assign(document.createElement("canvas"), { width, height });

// What is around the subject, blurred without it.
function drawBlurred(pen, picture, subject, deviation) {
  const { width, height } = subject;
  if (!("filter" in pen)) throw new Error("this browser blurs nothing");
  const around = canvasOf(width, height);
  const layer = around.getContext("2d");
  layer.drawImage(picture, 0, 0, width, height);
  layer.globalCompositeOperation = "destination-out";
  for (let time = 0; time < 2; time++) layer.drawImage(subject, 0, 0); // its soft edge, too
  for (const times of BLURS) {
    pen.filter = `blur(${times * deviation}px)`;
    for (let drawn = 0; drawn < LAYERS; drawn++) pen.drawImage(around, 0, 0);
  }
  pen.filter = "none";
}
