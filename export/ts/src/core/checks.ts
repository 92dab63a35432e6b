// Checks of what a manifest says, before anything relies on it: kinds of values, sizes that add up, numbers that are finite.

export type Json = null | boolean | number | string | Json[] | Table;
export interface Table {
  [key: string]: Json;
}
export type Kind = "int" | "number" | "str" | "bool" | "list" | "dict";

const MANIFEST: Record<string, Kind> = {
  manifest_sha256: "str", round: "int", input_shape: "list", input_dtype: "str", classes: "int", class_names: "list", preprocessing: "dict",
  tiers: "list", files: "dict",
};
const MANIFEST_DEFAULTS: Table = { round: 0, input_dtype: "float32" };
const INPUT_DEFAULTS: Table = { dtype: "float32", preprocessing: {} };
const TIER_DEFAULTS: Table = { variants: [] };
const TRAIN: Record<string, Kind> = {
  graphs: "list", predict: "str", parameters: "str", optimizer: "str", lr: "number", momentum: "number", batch_size: "int", epochs: "int",
  trained: "dict", statistics: "dict", frozen: "dict", personal: "list", upload: "dict", objective: "dict", present: "bool", no_update: "str",
};
const OBJECTIVE_DEFAULTS: Table = { name: "none", strength: 0 };
const TRAIN_DEFAULTS: Table = { personal: [], objective: OBJECTIVE_DEFAULTS, present: false, no_update: "" };
/** More elements than any tensor of a sample has, and more classes than any network. */
const LARGEST = 2 ** 31;
/** No number of a manifest is larger: every whole number up to it fits a register. */
const MOST = 2 ** 62;

/** A value is not what a manifest may hold; the message names key, value and expectation. */
export class CheckError extends Error {}

export const isTable = (value: unknown): value is Table => typeof value === "object" && value !== null && !Array.isArray(value);

/** Return the value of a table's own key, undefined without one: names such as "constructor" are keys like others. */
export function own(table: Table, key: string): Json | undefined {
  return Object.hasOwn(table, key) ? table[key] : undefined;
}

const IS: Record<Kind, (value: unknown) => boolean> = {
  int: (value) => Number.isInteger(value),
  number: (value) => typeof value === "number",
  str: (value) => typeof value === "string",
  bool: (value) => typeof value === "boolean",
  list: Array.isArray,
  dict: isTable,
};

/** Return `manifest` with the defaults of missing keys; CheckError unless it has what the client relies on, except `train`. */
export function checkManifest(manifest: unknown): Table {
  const table = requireKeys(manifest, MANIFEST, "", MANIFEST_DEFAULTS);
  checkPlain(table);
  checkShape(table.input_shape, "input_shape");
  checkPreprocessing(table.preprocessing as Table, "preprocessing: ");
  const inputs = requireKeys(own(table, "inputs") ?? {}, {}, "inputs: ");
  const found = Object.entries(inputs).map(([name, entry]): [string, Table] => {
    const input = requireKeys(entry, { shape: "list", dtype: "str", preprocessing: "dict" }, `inputs.${name}: `, INPUT_DEFAULTS);
    checkShape(input.shape, `inputs.${name}: shape`);
    checkPreprocessing(input.preprocessing as Table, `inputs.${name}: preprocessing: `);
    return [name, input];
  });
  const names = table.class_names as Json[];
  const classes = table.classes as number;
  check(names.every(IS.str), "class_names", names, "a list of texts");
  check(classes > 0 && classes < LARGEST, "classes", classes, "at least 1");
  if (table.target_shape === null) delete table.target_shape;
  if (Object.hasOwn(table, "target_shape")) checkShape(table.target_shape, "target_shape");
  else check(names.length === classes, "class_names", `${names.length} names`, `one for each of ${classes} classes`);
  for (const [path, entry] of Object.entries(table.files as Table)) requireKeys(entry, { bytes: "int", sha256: "str" }, `files.${path}: `);
  const tiers = (table.tiers as Json[]).map((entry, number) => {
    const tier = requireKeys(entry, { label: "str", forward: "str", batch_size: "int", variants: "list" }, `tiers.${number}: `, TIER_DEFAULTS);
    const size = tier.batch_size as number;
    check(size > 0 && size < LARGEST, `tiers.${number}: batch_size`, size, "at least 1");
    for (const variant of tier.variants as Json[]) requireKeys(variant, { kind: "str", graph: "str" }, `tiers.${number}: variants: `);
    return tier;
  });
  return { ...table, inputs: found.length ? Object.fromEntries(found) : null, tiers };
}

/** Return a tier's `train` with the defaults of missing keys; CheckError unless it says how the tier is trained. */
export function checkTraining(table: unknown): Table {
  const train = requireKeys(table, TRAIN, "", TRAIN_DEFAULTS);
  for (const key of ["graphs", "personal"]) check((train[key] as Json[]).every(IS.str), key, train[key], "a list of texts");
  check((train.graphs as Json[]).length > 0, "graphs", [], "at least one training graph");
  for (const key of ["batch_size", "epochs"]) check((train[key] as number) > 0 && (train[key] as number) < LARGEST, key, train[key], "at least 1");
  const known = new Set<Json>();
  for (const key of ["trained", "statistics", "frozen"]) {
    for (const [name, shape] of Object.entries(train[key] as Table)) {
      checkShape(shape, `${key}.${name}`);
      known.add(name);
    }
  }
  const personal = train.personal as Json[];
  for (const name of personal) check(known.has(name), "personal", name, "one of the tier's tensors");
  for (const name of Object.keys(train.upload as Table)) {
    check(known.has(name) && !personal.includes(name), "upload", name, "one of the tier's tensors, not a personal one");
  }
  return { ...train, objective: requireKeys(train.objective, { name: "str", strength: "number" }, "objective: ", OBJECTIVE_DEFAULTS) };
}

/** Throw a CheckError unless the limits in a tier's `budget` are numbers or missing. */
export function checkBudget(budget: unknown): asserts budget is Table {
  const table = requireKeys(budget, {});
  for (const key of ["round_s", "memory_bytes"]) {
    const value = own(table, key) ?? null;
    const right = value === null || (typeof value === "number" && value >= 0 && Number.isFinite(value));
    check(right, `budget: ${key}`, value, "a number from 0, or none");
  }
}

/** Return `given` with the `defaults` of missing keys; it must have all `keys` with values of the given kinds. */
export function requireKeys(given: unknown, keys: Record<string, Kind>, where = "", defaults: Table = {}): Table {
  if (!isTable(given)) throw new CheckError(`${where}got ${typeName(given)}, expected a table`);
  const table = { ...defaults, ...given };
  for (const [key, kind] of Object.entries(keys)) {
    const value = own(table, key) ?? null;
    check(IS[kind](value), `${where}${key}`, value, `a value of type ${kind}`);
  }
  return table;
}

/** Refuse numbers that are not finite or need more than 63 bits, and text that UTF-8 cannot express. */
function checkPlain(table: Table): void {
  const waiting: [string, Json][] = [["manifest", table]];
  for (let next = waiting.pop(); next; next = waiting.pop()) {
    const [where, value] = next;
    if (Array.isArray(value)) for (const inner of value) waiting.push([where, inner]);
    else if (isTable(value)) {
      for (const [key, inner] of Object.entries(value)) {
        checkText(key, "a name");
        waiting.push([key, inner]);
      }
    } else if (typeof value === "string") checkText(value, where);
    else if (typeof value === "number") check(Math.abs(value) <= MOST, where, value, "a finite number of at most 63 bits");
  }
}

function checkText(text: string, where: string): void {
  check(!/\p{Cs}/u.test(text), where, "half a character", "text");
}

/** Refuse values that samples cannot be prepared with; all keys may be missing. */
function checkPreprocessing(how: Table, where: string): void {
  for (const key of ["mean", "scale", "std"].filter((key) => Object.hasOwn(how, key))) {
    const [value] = [how[key]];
    const values = Array.isArray(value) && key !== "scale" ? value : [value];
    const right = values.length > 0 && values.every((one) => typeof one === "number" && (one !== 0 || key !== "std"));
    check(right, `${where}${key}`, value, "numbers, and none of std is 0");
  }
  for (const key of ["alphabet", "raw"].filter((key) => Object.hasOwn(how, key))) check(IS.str(how[key]), `${where}${key}`, how[key], "text");
  const words = own(how, "words") ?? [];
  check(Array.isArray(words) && words.every(IS.str), `${where}words`, words, "a list of texts");
}

function checkShape(shape: unknown, where: string): void {
  const sizes = Array.isArray(shape) && shape.every((size) => Number.isInteger(size) && size >= 0);
  check(sizes && shape.reduce((product: number, size: number) => product * size, 1) < LARGEST, where, shape, "a list of sizes");
}

function check(right: boolean, where: string, value: unknown, expected: string): void {
  if (!right) throw new CheckError(`${where}: got ${shown(value).slice(0, 100)}, expected ${expected}`);
}

function typeName(value: unknown): string {
  if (value === null || value === undefined) return "nothing";
  return Array.isArray(value) ? "list" : { string: "str", boolean: "bool", number: Number.isInteger(value) ? "int" : "float" }[typeof value as string] ?? "dict";
}

/** Return a shape as the Python client's messages show it. */
export const tuple = (dims: readonly number[]): string => (dims.length === 1 ? `(${dims[0]},)` : `(${dims.join(", ")})`);

/** Return a value as the Python client's messages show it. */
export function shown(value: unknown): string {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value === "string") return value.includes("'") ? JSON.stringify(value) : `'${JSON.stringify(value).slice(1, -1).replaceAll('\\"', '"')}'`;
  if (Array.isArray(value)) return `[${value.map(shown).join(", ")}]`;
  if (isTable(value)) return `{${Object.entries(value).map(([key, inner]) => `${shown(key)}: ${shown(inner)}`).join(", ")}}`;
  return String(value);
}
