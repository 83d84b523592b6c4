// Tensors of a model without a page of its own: the sealed sample or pasted JSON as a request, and
// the outputs of the reply in numbers.

import { ask } from "/console/api.js";
import { element } from "/console/dom.js";
import { t } from "/console/i18n.js";
import { NONE, scientific } from "./figures.js";

const LENGTH = "Inference-Header-Content-Length"; // bytes of JSON before raw tensors
const bytesOf = (text) => new TextEncoder().encode(text);
const pathOf = ({ name, version }) => `/v2/models/${encodeURIComponent(name)}/versions/${version}`;
export const sidesOf = (shape) => shape.join(" × ") || "1";

// A body of JSON with raw tensors after it; without the header all of it is JSON.
async function read(response) {
  const body = await response.arrayBuffer();
  const length = Number(response.headers.get(LENGTH) ?? body.byteLength);
  return { document: JSON.parse(new TextDecoder().decode(body.slice(0, length))), raw: body.slice(length) };
}

let sample = { path: "", read: null };

export function sampleOf(model) {
  const path = pathOf(model);
  if (sample.path !== path) {
    const asked = (sample = { path, read: ask(`${path}/sample`).then(read) });
    asked.read.catch(() => (asked.path = "")); // asked for again next time
  }
  return sample.read;
}

// What was pasted and parameters behind it. It is not written anew: that would round large integers.
function withParameters(text, parameters) {
  let own;
  try {
    own = JSON.parse(text);
  } catch {
    return text; // the server says where it is no JSON
  }
  if (!isObject(own) || !isObject(own.parameters ?? {})) return text;
  const comma = Object.keys(own).length ? "," : "";
  return `${text.slice(0, text.lastIndexOf("}"))}${comma}"parameters":${JSON.stringify({ ...own.parameters, ...parameters })}}`;
}

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

// `pasted` is JSON, or null for the sample.
export async function tensorRequest(model, group, pasted, { signal, timeout }) {
  const parameters = { predictor: group, binary_data_output: true, ...(timeout ? { timeout: 1000 * timeout } : {}) };
  const address = `${pathOf(model)}/infer`;
  if (pasted !== null) {
    const headers = { "Content-Type": "application/json" };
    return [address, { method: "POST", headers, body: withParameters(pasted, parameters), signal }];
  }
  const { document, raw } = await sampleOf(model);
  const head = bytesOf(JSON.stringify({ ...document, parameters }));
  const headers = { "Content-Type": "application/octet-stream", [LENGTH]: String(head.length) };
  return [address, { method: "POST", headers, body: new Blob([head, raw]), signal }];
}

function half(bits) {
  const exponent = (bits >> 10) & 31;
  const fraction = (bits & 1023) / 1024;
  const size = exponent === 31 ? (fraction ? NaN : Infinity) : exponent ? 2 ** (exponent - 15) * (1 + fraction) : 2 ** -14 * fraction;
  return bits & 0x8000 ? -size : size;
}

const ARRAYS = { FP32: Float32Array, FP64: Float64Array, INT32: Int32Array, INT8: Int8Array, UINT8: Uint8Array, BOOL: Uint8Array };

// Raw little-endian numbers; null for strings.
export function numbersOf(datatype, raw) {
  if (datatype === "FP16") return Float32Array.from(new Uint16Array(raw), half);
  if (datatype === "INT64") return Float64Array.from(new BigInt64Array(raw), Number);
  return ARRAYS[datatype] ? new ARRAYS[datatype](raw) : null;
}

// Each tensor that the document lists, with its numbers.
export function tensorsOf(listed, raw) {
  let at = 0;
  return listed.map(({ name, datatype, shape, data, parameters }) => {
    const size = parameters?.binary_data_size ?? 0;
    at += size;
    const numbers = data && datatype !== "BYTES" ? data.map(Number) : numbersOf(datatype, raw.slice(at - size, at));
    return { name, datatype, shape, numbers };
  });
}

function summaryOf(numbers) {
  let [least, most, sum] = [Infinity, -Infinity, 0];
  for (const value of numbers) {
    least = Math.min(least, value);
    most = Math.max(most, value);
    sum += value;
  }
  return { least, mean: sum / numbers.length, most };
}

// NaN where only one of two is a number; null where they are not of one shape.
function differenceOf(one, other) {
  if (!other || sidesOf(one.shape) !== sidesOf(other.shape)) return null;
  let most = 0;
  one.numbers.forEach((value, place) => {
    if (!Object.is(value, other.numbers[place])) most = Math.max(most, Math.abs(value - other.numbers[place]));
  });
  return most;
}

let usual = { group: "", outputs: [] }; // the newest answer of the default group, which others are compared with

export const forgetUsual = () => (usual = { group: "", outputs: [] });

// What a card shows of a group's reply.
export async function outputsOf(model, group, response) {
  const { document, raw } = await read(response);
  const outputs = tensorsOf(document.outputs, raw);
  const reference = model.groups.find((each) => each.default)?.name;
  if (group === reference) usual = { group, outputs };
  const known = new Map(usual.group === reference ? usual.outputs.map((output) => [output.name, output]) : []);
  return outputs.map((output) => {
    const { name, datatype, shape, numbers } = output;
    if (!numbers?.length) return { name, datatype, shape };
    const difference = group === reference ? null : { from: reference, value: differenceOf(output, known.get(name)) };
    return { name, datatype, shape, difference, ...summaryOf(numbers) };
  });
}

export function shownOutput({ name, datatype, shape, difference, ...figures }) {
  const row = (words, value, className = "") => element("div", { className }, element("dt", {}, words), element("dd", {}, value));
  const rows = Object.entries(figures).map(([figure, value]) => row(t(`output.${figure}`), scientific(value)));
  if (difference) rows.push(row(t("output.difference", { group: difference.from }), difference.value === null ? NONE : scientific(difference.value), "whole"));
  return element("div", { className: "output" }, element("p", { className: "small" }, element("b", { className: "mono" }, name), ` ${datatype} ${sidesOf(shape)}`), element("dl", { className: "figures" }, ...rows));
}
