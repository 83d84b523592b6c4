// Files in a ZIP archive, stored as they are: pictures are packed already.

const TABLE = Uint32Array.from({ length: 256 }, (_, byte) => {
  for (let bit = 0; bit < 8; bit++) byte = byte & 1 ? 0xedb88320 ^ (byte >>> 1) : byte >>> 1;
  return byte;
});
const UTF8_NAMES = 0x0800;
const DOS_DATE = 0x0021; // 1 January 1980, the earliest there is

const crcOf = (bytes) => ~bytes.reduce((crc, byte) => TABLE[(crc ^ byte) & 255] ^ (crc >>> 8), -1) >>> 0;

// Numbers of 2 or 4 bytes, as [value, bytes].
function packed(...fields) {
  const view = new DataView(new ArrayBuffer(fields.reduce((sum, [, size]) => sum + size, 0)));
  let at = 0;
  for (const [value, size] of fields) {
    if (size === 2) view.setUint16(at, value, true);
    else view.setUint32(at, value, true);
    at += size;
  }
  return view.buffer;
}

// `files` are [name, Blob] of different names.
export async function zipped(files) {
  const [parts, directory] = [[], []];
  let [offset, listed] = [0, 0];
  for (const [text, blob] of files) {
    const [name, crc] = [new TextEncoder().encode(text), crcOf(new Uint8Array(await blob.arrayBuffer()))];
    const common = [[20, 2], [UTF8_NAMES, 2], [0, 2], [0, 2], [DOS_DATE, 2], [crc, 4], [blob.size, 4], [blob.size, 4], [name.length, 2], [0, 2]];
    parts.push(packed([0x04034b50, 4], ...common), name, blob);
    directory.push(packed([0x02014b50, 4], [20, 2], ...common, [0, 2], [0, 2], [0, 2], [0, 4], [offset, 4]), name);
    offset += 30 + name.length + blob.size;
    listed += 46 + name.length;
  }
  const end = packed([0x06054b50, 4], [0, 4], [files.length, 2], [files.length, 2], [listed, 4], [offset, 4], [0, 2]);
  return new Blob([...parts, ...directory, end], { type: "application/zip" });
}
