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
const TRAIN: Record<string, Kind> = {
  graphs: "list", predict: "str", parameters: "str", optimizer: "str", lr: "number", momentum: "number", batch_size: "int", epochs: "int",
  trained: "dict", statistics: "dict", frozen: "dict", personal: "list", upload: "dict", objective: "dict", present: "bool", no_update: "str",
};
/** More elements than any tensor of a sample has, and more classes than any network. */
const LARGEST = 2 ** 31;

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

/** Throw a CheckError unless `manifest` has the keys that the client relies on, apart from those of tiers. */
export function checkManifest(manifest: unknown): asserts manifest is Table {
  const table = requireKeys(manifest, MANIFEST);
  checkShape(table.input_shape, "input_shape");
  for (const [name, entry] of Object.entries(requireKeys(own(table, "inputs") ?? {}, {}, "inputs: "))) {
    checkShape(requireKeys(entry, { shape: "list", dtype: "str", preprocessing: "dict" }, `inputs.${name}: `).shape, `inputs.${name}: shape`);
  }
  const names = table.class_names as Json[];
  const classes = table.classes as number;
  check(names.every(IS.str), "class_names", names, "a list of texts");
  check(classes > 0 && classes < LARGEST, "classes", classes, "at least 1");
  if (Object.hasOwn(table, "target_shape")) checkShape(table.target_shape, "target_shape");
  else check(names.length === classes, "class_names", `${names.length} names`, `one for each of ${classes} classes`);
  for (const [path, entry] of Object.entries(table.files as Table)) requireKeys(entry, { bytes: "int", sha256: "str" }, `files.${path}: `);
  (table.tiers as Json[]).forEach((entry, number) => requireKeys(entry, { label: "str", forward: "str" }, `tiers.${number}: `));
}

/** Throw a CheckError unless a tier's `train` says how it is trained. */
export function checkTraining(table: unknown): asserts table is Table {
  const train = requireKeys(table, TRAIN);
  for (const key of ["graphs", "personal"]) check((train[key] as Json[]).every(IS.str), key, train[key], "a list of texts");
  check((train.graphs as Json[]).length > 0, "graphs", [], "at least one training graph");
  for (const key of ["lr", "momentum"]) check(Number.isFinite(train[key]), key, train[key], "a finite number");
  for (const key of ["batch_size", "epochs"]) check((train[key] as number) > 0 && (train[key] as number) < LARGEST, key, train[key], "at least 1");
  for (const key of ["trained", "statistics", "frozen"]) {
    for (const [name, shape] of Object.entries(train[key] as Table)) checkShape(shape, `${key}.${name}`);
  }
  const objective = requireKeys(train.objective, { name: "str", strength: "number" }, "objective: ");
  check(Number.isFinite(objective.strength), "objective: strength", objective.strength, "a finite number");
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

/** Return `table`, which must have all `keys` with values of the given kinds. */
export function requireKeys(table: unknown, keys: Record<string, Kind>, where = ""): Table {
  if (!isTable(table)) throw new CheckError(`${where}got ${typeName(table)}, expected a table`);
  for (const [key, kind] of Object.entries(keys)) {
    const value = own(table, key) ?? null;
    check(IS[kind](value), `${where}${key}`, value, `a value of type ${kind}`);
  }
  return table;
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

/** Return a value as the Python client's messages show it. */
export function shown(value: unknown): string {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value === "string") return value.includes("'") ? JSON.stringify(value) : `'${JSON.stringify(value).slice(1, -1).replaceAll('\\"', '"')}'`;
  if (Array.isArray(value)) return `[${value.map(shown).join(", ")}]`;
  if (isTable(value)) return `{${Object.entries(value).map(([key, inner]) => `${shown(key)}: ${shown(inner)}`).join(", ")}}`;
  return String(value);
}
