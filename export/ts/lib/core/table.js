// Samples in a CSV, or in an .npy file with another of labels beside it, by the rules of the Python client.
import { inputsOf } from "./bundle.js";
import { own, shown } from "./checks.js";
import { samplesOf } from "./data.js";
import { readNpy } from "./npz.js";
import { InputError, firstLine } from "./problems.js";
import { decoded } from "./text.js";
import { sizeOf } from "./values.js";
/** Names of a table's column of labels or targets. */
const LABELS = ["y", "label", "labels", "target", "class"];
const WHOLE = /^[+-]?\d+$/;
const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;
const ODD = { nan: NaN, inf: Infinity, infinity: Infinity };
/** Return the samples in the content of an .npy file, with those of a file y.npy as labels; null: there is none. */
export function readArray(path, content, labels, manifest, needed) {
    const array = (where, bytes) => {
        try {
            return readNpy(bytes, "it");
        }
        catch (error) {
            throw new InputError(`${where}: not an .npy file of a plain array (${firstLine(error)})`);
        }
    };
    const arrays = new Map([[onlyInput(path, manifest), array(path, content)]]);
    if (labels)
        arrays.set("y", array(labels.path, labels.content));
    return samplesOf(path, arrays, manifest, needed);
}
/** Return the samples in the content of a CSV: a column is a feature, except one that `LABELS` names, of the names or numbers of classes, or of targets. */
export function readTable(path, content, manifest, needed) {
    const name = onlyInput(path, manifest);
    const { shape, dtype, preprocessing } = Object.values(inputsOf(manifest))[0];
    const [head, ...lines] = linesOf(path, content);
    const rows = lines.filter((row) => row.length);
    const labels = [...head.keys()].filter((place) => LABELS.includes((head[place] ?? "").trim().toLowerCase()));
    if (labels.length > 1)
        throw new InputError(`${path}: columns ${labels.map((place) => head[place]).join(", ")}; expected one of labels`);
    const features = [...head.keys()].filter((place) => !labels.includes(place));
    if (features.length !== sizeOf(shape) || !rows.length) {
        throw new InputError(`${path}: ${rows.length} rows of ${features.length} features, expected rows of ${sizeOf(shape)} without a label`);
    }
    const whole = dtype === "int64";
    const numbers = rows.flatMap((row, i) => features.map((place) => number(path, head, row, i + 2, place, whole)));
    const kind = whole ? "int64" : Object.hasOwn(preprocessing, "raw") ? "float64" : "float32";
    const data = whole ? BigInt64Array.from(numbers, BigInt) : kind === "float64" ? Float64Array.from(numbers) : Float32Array.from(numbers);
    const arrays = new Map([[name, { type: kind, shape: [rows.length, ...shape], data }]]);
    const [place] = labels;
    if (place !== undefined)
        arrays.set("y", labelsOf(path, head, rows, place, manifest));
    return samplesOf(path, arrays, manifest, needed);
}
function onlyInput(path, manifest) {
    const names = Object.keys(inputsOf(manifest)).map((key) => key.replace(/^x\./, ""));
    if (names.length > 1)
        throw new InputError(`${path}: has one input, the network takes ${names.join(", ")}; expected an .npz file with these arrays`);
    return names[0] ?? "x";
}
function number(path, head, row, line, place, whole) {
    const text = row[place]?.trim() ?? "";
    const odd = ODD[text.replace(/^[+-]/, "").toLowerCase()];
    if (!whole && odd !== undefined)
        return odd;
    if ((whole ? WHOLE : NUMBER).test(text))
        return Number(text);
    const got = row[place] === undefined ? "nothing" : shown(row[place]);
    throw new InputError(`${path}: line ${line}, column ${shown(head[place])}: got ${got}, expected a ${whole ? "whole " : ""}number`);
}
/** Return the numbers of the classes that a column names, or its targets. */
function labelsOf(path, head, rows, place, manifest) {
    const target = own(manifest, "target_shape");
    if (target) {
        if (sizeOf(target) !== 1)
            throw new InputError(`${path}: has one target, the network has ${sizeOf(target)}; expected an .npz file with y`);
        const data = Float64Array.from(rows, (row, i) => number(path, head, row, i + 2, place, false));
        return { type: "float64", shape: [rows.length, ...target], data };
    }
    const names = manifest.class_names;
    const data = BigInt64Array.from(rows, (row, i) => {
        const text = row[place]?.trim() ?? "";
        const known = names.indexOf(text);
        if (known >= 0)
            return BigInt(known);
        if (/^\d{1,18}$/.test(text))
            return BigInt(text);
        const expected = `expected a class, such as ${names.slice(0, 5).join(", ")}, or its number`;
        throw new InputError(`${path}: line ${i + 2}, column ${shown(head[place])}: got ${shown(text)}, ${expected}`);
    });
    return { type: "int64", shape: [rows.length], data };
}
function linesOf(path, content) {
    try {
        const [head, ...rows] = cells(decoded(content, true).replace(/^\ufeff/, ""));
        if (!head)
            throw new Error("it is empty");
        return [head, ...rows];
    }
    catch (error) {
        throw new InputError(`${path}: not a CSV with a line of names first (${firstLine(error)})`);
    }
}
/** Return the cells of each line of a CSV, which may be quoted; none for an empty line. */
function cells(text) {
    const rows = [];
    let row = [];
    const cell = /("(?:[^"]|"")*(?:"|$))?([^,\r\n]*)(,|\r\n|\r|\n|$)/y;
    while (cell.lastIndex < text.length) {
        const [, quoted, plain = "", end] = cell.exec(text) ?? [];
        const inner = quoted === undefined ? "" : quoted.replace(/^"|"$/g, "").replaceAll('""', '"');
        if (row.length || inner || plain || quoted !== undefined || end === ",")
            row.push(inner + plain);
        if (end === "," && cell.lastIndex < text.length)
            continue;
        if (end === ",")
            row.push("");
        rows.push(row);
        row = [];
    }
    return rows;
}
