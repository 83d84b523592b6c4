// A request that was made, as a program that makes it again: curl, Python, JavaScript.
//
// A request is {path, query: [[name, value]], files: [[field, file name]], json, fetchFirst, saveAs}:
// `files` or `json` is its body, `fetchFirst` the address of a sample that has to be fetched before,
// `saveAs` the name of the reply's file, none for a reply that is printed.

const address = (request) => {
  const query = request.query.map((pair) => pair.map(encodeURIComponent).join("=")).join("&");
  return `${location.origin}${request.path}${query ? `?${query}` : ""}`;
};

const KEY = "PADDLEPOOL_KEY";

// In single quotes a shell reads everything as it is; a single quote ends them for itself.
const shell = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

// curl reads , and ; in a form's file name as its own, unless the name is quoted.
const formFile = (name) => (/^[^",;\\]*$/.test(name) && name !== "-" ? name : `"${name.replace(/["\\]/g, "\\$&")}"`);

export function curl(request, keyed) {
  const parts = [`curl -sS --fail-with-body ${shell(address(request))}`];
  if (keyed) parts.push(`-H "X-Api-Key: $${KEY}"`);
  for (const [field, name] of request.files ?? []) parts.push(`-F ${shell(`${field}=@${formFile(name)}`)}`);
  if (request.json) {
    parts.push(`-H 'Content-Type: application/json'`, `-d ${shell(JSON.stringify(request.json))}`);
  }
  if (request.saveAs) parts.push(`-o ${shell(request.saveAs)}`);
  const first = request.fetchFirst ? `curl -sSO ${shell(location.origin + request.fetchFirst)}\n` : "";
  return first + parts.join(" \\\n  ");
}

// JSON's strings and numbers are Python's, too; its words are not.
function literal(value) {
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (value === null) return "None";
  if (typeof value === "object") {
    return `{${Object.entries(value).map(([key, of]) => `${JSON.stringify(key)}: ${literal(of)}`).join(", ")}}`;
  }
  return typeof value === "boolean" ? (value ? "True" : "False") : JSON.stringify(value);
}

export function python(request, keyed) {
  const standard = [keyed ? "import os" : "", request.files ? "from pathlib import Path" : ""].filter(Boolean);
  const lines = [...standard, ...(standard.length ? [""] : []), "import httpx", ""];
  if (request.fetchFirst) {
    const name = request.fetchFirst.split("/").pop();
    lines.push(`Path(${literal(name)}).write_bytes(httpx.get(${literal(location.origin + request.fetchFirst)}).content)`);
  }
  lines.push("reply = httpx.post(", `    ${literal(location.origin + request.path)},`);
  if (request.query.length) lines.push(`    params=${literal(Object.fromEntries(request.query))},`);
  if (keyed) lines.push(`    headers={"X-Api-Key": os.environ["${KEY}"].encode()},`);
  if (request.files) {
    const files = request.files.map(([field, name]) => `${literal(field)}: Path(${literal(name)}).open("rb")`);
    lines.push(`    files={${files.join(", ")}},`);
  }
  if (request.json) lines.push(`    json=${literal(request.json)},`);
  lines.push("    timeout=60,", ")", "reply.raise_for_status()");
  lines.push(request.saveAs ? `Path(${literal(request.saveAs)}).write_bytes(reply.content)` : "print(reply.json())");
  return lines.join("\n");
}

export function javascript(request, keyed) {
  const lines = [];
  const headers = [];
  if (keyed) headers.push(`"X-Api-Key": Buffer.from(process.env.${KEY}).toString("latin1")`);
  if (request.files) {
    lines.push(`import { openAsBlob } from "node:fs";`, `import { writeFile } from "node:fs/promises";`, "");
    if (request.fetchFirst) {
      const [from, name] = [location.origin + request.fetchFirst, request.fetchFirst.split("/").pop()];
      lines.push(`const sample = await fetch(${JSON.stringify(from)});`);
      lines.push(`await writeFile(${JSON.stringify(name)}, Buffer.from(await sample.arrayBuffer()));`);
    }
    lines.push("const body = new FormData();");
    for (const [field, name] of request.files) {
      const quoted = JSON.stringify(name);
      lines.push(`body.set(${JSON.stringify(field)}, await openAsBlob(${quoted}), ${quoted});`);
    }
  } else {
    headers.push(`"Content-Type": "application/json"`);
    lines.push(`const body = JSON.stringify(${JSON.stringify(request.json)});`);
  }
  const options = ["method: \"POST\"", ...(headers.length ? [`headers: { ${headers.join(", ")} }`] : []), "body"];
  lines.push(`const reply = await fetch(${JSON.stringify(address(request))}, { ${options.join(", ")} });`);
  lines.push("if (!reply.ok) throw new Error(await reply.text());");
  const bytes = "Buffer.from(await reply.arrayBuffer())";
  lines.push(request.saveAs ? `await writeFile(${JSON.stringify(request.saveAs)}, ${bytes});` : "console.log(JSON.stringify(await reply.json(), null, 2));");
  return lines.join("\n");
}
