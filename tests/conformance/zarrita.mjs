// Lets zarrita.js (https://github.com/manzt/zarrita.js) write and read whole Zarr v3 arrays on the
// local file system, so that our Python tests can compare with it. One process does many arrays.
//
// Install:  npm install --prefix DIR zarrita@0.7.5 @zarrita/storage@0.2.0
// Run:      ZARRITA_MODULES=DIR node zarrita.mjs read|write|version
//
//   read     stdin:  ["/path/of/array", ...], each a folder with a zarr.json
//            stdout: [{"shape": [...], "values": [...]} or {"error": "message"}, ...]
//   write    stdin:  [{"path": "/path/of/array", "values": [...]}, ...], a zarr.json being there
//            stdout: [{} or {"error": "message"}, ...]
//   version  stdout: {"zarrita": "0.7.5", "node": "v20..."}
//
// Values are the elements in C order: numbers, true and false, strings; 64-bit integers are decimal
// strings, and what JSON has no number for is "NaN", "Infinity", "-Infinity" or "-0".

import { readFileSync } from "node:fs";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { pathToFileURL } from "node:url";

// `import` looks for packages beside this file only, and `require` refuses packages that export
// nothing but ES modules, so the package's own table of exports is read.
async function load(name, entry = ".") {
  const folder = join(process.env.ZARRITA_MODULES, "node_modules", name);
  const { exports, version } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
  return { version, module: await import(pathToFileURL(join(folder, exports[entry].import))) };
}

const { version, module: zarr } = await load("zarrita");
const { default: FileSystemStore } = (await load("@zarrita/storage", "./fs")).module;

const CONTAINERS = {
  int8: Int8Array, int16: Int16Array, int32: Int32Array, int64: BigInt64Array,
  uint8: Uint8Array, uint16: Uint16Array, uint32: Uint32Array, uint64: BigUint64Array,
  float32: Float32Array, float64: Float64Array, bool: zarr.BoolArray,
  float16: globalThis.Float16Array, // Node 22 has none, Node 24 has it
};

function containerOf(values, dataType) {
  if (dataType === "string") return values;
  const parse = dataType.endsWith("int64") ? BigInt : Number; // both take strings too
  return new CONTAINERS[dataType](values.map(parse));
}

// zarrita's own BoolArray has no indexing by [].
const element = (data, index) => (data.get ? data.get(index) : data[index]);

function toJson(value) {
  if (typeof value === "bigint") return String(value);
  if (Object.is(value, -0)) return "-0";
  return typeof value === "number" && !Number.isFinite(value) ? String(value) : value;
}

function inCOrder({ data, shape, stride }, axis = 0, start = 0) {
  if (axis === shape.length) return [toJson(element(data, start))];
  const indices = Array.from({ length: shape[axis] }, (_, i) => start + i * stride[axis]);
  return indices.flatMap((index) => inCOrder({ data, shape, stride }, axis + 1, index));
}

// `open` without `.v3` would hide why an array is refused: it goes on to look for version 2.
const open = (path) => zarr.open.v3(new FileSystemStore(path), { kind: "array" });

async function read(path) {
  const array = await open(path);
  const all = await zarr.get(array);
  if (array.shape.length === 0) return { shape: [], values: [toJson(all)] };
  return { shape: all.shape, values: inCOrder(all) };
}

async function write({ path, values }) {
  const array = await open(path);
  const { shape } = array;
  const stride = shape.map((_, axis) => shape.slice(axis + 1).reduce((a, b) => a * b, 1));
  const size = shape.reduce((a, b) => a * b, 1);
  if (values.length !== size) throw new Error(`${values.length} values for ${size} elements`);
  const data = containerOf(values, array.dtype);
  const all = shape.length === 0 ? element(data, 0) : { data, shape, stride };
  await zarr.set(array, null, all);
  return {};
}

// The codec's own message is in the cause.
const explain = (error) => (error.cause ? `${error.message}: ${explain(error.cause)}` : `${error}`);

const action = { read, write }[process.argv[2]];
if (action) {
  const results = [];
  for (const request of JSON.parse(await text(process.stdin)))
    results.push(await action(request).catch((error) => ({ error: explain(error) })));
  console.log(JSON.stringify(results));
} else if (process.argv[2] === "version") {
  console.log(JSON.stringify({ zarrita: version, node: process.version }));
} else {
  throw new Error("usage: zarrita.mjs read|write|version");
}
