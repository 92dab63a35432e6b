// Runs graphs: which values they get, and where a state takes the place of the bundle's tensors.
import { inputsOf } from "./bundle.js";
import { own, shown, tuple } from "./checks.js";
import { ClientError, InputError, firstLine } from "./problems.js";
import { NOW, isOf } from "./state.js";
import { rows, sizeOf, zeros } from "./values.js";
/** Return input → value: trained tensors are `p.NAME`, statistics `s.NAME`, frozen ones `f.NAME`. */
export function byRole(table, tensors) {
    const roles = [["p", table.trained], ["s", table.statistics], ["f", table.frozen]];
    return new Map(roles.flatMap(([prefix, names]) => Object.keys(names).map((name) => [`${prefix}.${name}`, tensors.get(name) ?? zeros([0])])));
}
/** Return a tier's tensors: those of `state` if it is of this bundle, else the bundle's with personal ones of `state`. */
export function current(bundle, label, given, state) {
    if (!state)
        return given;
    const { about } = state;
    if (about.tier !== label)
        throw new InputError(`--state: it is of tier ${about.tier}, expected ${label}`);
    const same = isOf(state, bundle);
    const round = Number(bundle.manifest.round);
    if (!same && !(Number(about.round) < round)) {
        throw new InputError(`--state: it is of round ${about.round} of another bundle, this one is of round ${round}; expected a state of an earlier round`);
    }
    const found = new Map(given);
    const { personal, trained } = bundle.training(label);
    const agrees = (name, value, expected = []) => {
        if (value && String(value.dims) === String(expected))
            return value;
        throw new InputError(`--state: ${name}: missing or of another shape, expected ${tuple(expected)}: it is of another model`);
    };
    for (const name of same ? [...given.keys()].filter((key) => state.tensors.has(key)) : personal) {
        found.set(name, agrees(name, state.tensors.get(name), given.get(name)?.dims));
    }
    const remembered = ["memory:", "before:", `${NOW}m.`, `${NOW}v.`].flatMap((kind) => Object.keys(trained).map((one) => [kind + one, one]));
    for (const [name, one] of [...remembered, [`${NOW}t`, ""], [`${NOW}seed`, ""]]) {
        const kept = state.tensors.get(name);
        if (kept)
            agrees(name, kept, given.get(one)?.dims);
    }
    return found;
}
/** Run a graph on those of the values that it takes; InputError if it takes another type, ClientError if onnxruntime fails. */
export async function run(bundle, session, values) {
    const { ort, runtime } = bundle.host;
    const feeds = {};
    session.inputNames.forEach((name, i) => {
        const metadata = session.inputMetadata?.[i];
        const value = values.get(name);
        if (!value)
            return;
        const type = metadata?.isTensor ? metadata.type : value.type;
        if (type !== value.type)
            throw new InputError(`input ${name}: got ${value.type}, expected ${type}, as the graph takes it`);
        feeds[name] = new ort.Tensor(value.type, value.data, value.dims);
    });
    try {
        const outputs = await bundle.host.watched("a batch", () => session.run(feeds));
        return new Map(Object.entries(outputs).map(([name, { type, dims, data }]) => [name, { type, dims, data }]));
    }
    catch (error) {
        throw new ClientError(`${runtime} cannot run the graph: ${firstLine(error)}`);
    }
}
/** Throw an InputError unless `data` has exactly the inputs of the graphs. */
export function checkInputs(manifest, data) {
    const bare = (names) => names.map((name) => name.replace(/^x\./, "")).join(", ");
    const [given, expected] = [[...data.keys()].filter((name) => name !== "y"), Object.keys(inputsOf(manifest))];
    if (given.length === expected.length && expected.every((name) => data.has(name)))
        return;
    throw new InputError(`x: got ${bare(given)}, expected ${bare(expected)}`);
}
/**
 * Return probabilities (n, classes) for samples, by the tier's graph, a variant of it, or the weights of `state`; of a regression its outputs.
 */
export async function infer(bundle, label, data, state = null, variant = "") {
    const entry = bundle.tier(label);
    checkInputs(bundle.manifest, data);
    let path = String(entry.forward);
    if (variant) {
        const variants = (own(entry, "variants") ?? []);
        const found = variants.find(({ kind }) => kind === variant);
        if (!found)
            throw new InputError(`--variant: got ${shown(variant)}, tier ${label} has ${variants.map(({ kind }) => kind).join(", ") || "none"}`);
        path = found.graph;
    }
    let weights = new Map();
    if (state) {
        const table = bundle.training(label);
        path = table.predict;
        weights = byRole(table, current(bundle, label, await bundle.parameters(label), state));
    }
    const session = await bundle.session(path);
    const logits = await predicted(bundle, session, data, Number(entry.batch_size), weights);
    await session.release();
    checkFinite(path, logits);
    return Object.hasOwn(bundle.manifest, "target_shape") ? logits : probabilities(logits);
}
/** Return the outputs of a graph for samples, in batches; `weights` are what it takes besides. */
export async function predicted(bundle, session, data, batchSize, weights = new Map()) {
    const parts = [];
    const samples = [...data].filter(([name]) => name !== "y");
    const count = samples[0]?.[1].dims[0] ?? 0;
    for (let start = 0; start < count; start += batchSize) {
        const indices = Array.from({ length: Math.min(batchSize, count - start) }, (_, i) => start + i);
        const batch = samples.map(([name, value]) => [name, rows(value, indices)]);
        const found = await run(bundle, session, new Map([...weights, ...batch]));
        const output = found.get(session.outputNames[0] ?? "");
        if (output)
            parts.push(output);
    }
    const dims = [count, ...(parts[0]?.dims.slice(1) ?? [])];
    const data_ = new Float32Array(sizeOf(dims));
    parts.reduce((at, part) => (data_.set(part.data, at), at + part.data.length), 0);
    return { type: "float32", dims, data: data_ };
}
/** Throw a ClientError if one of the outputs of the graph at `path` is NaN or infinite. */
export function checkFinite(path, { data }) {
    const odd = Array.from(data).find((value) => !Number.isFinite(value));
    if (odd === undefined)
        return;
    const found = Number.isNaN(odd) ? "nan" : odd < 0 ? "-inf" : "inf";
    const spoiled = "the weights are spoiled, or the samples are no samples of this network";
    throw new ClientError(`${path}: the graph computes ${found}, expected finite outputs: ${spoiled}`);
}
/** Return the largest allowed difference of outputs from their reference: 1e-4, as a share of the largest one if that is above 1. */
export function allowedError({ data }) {
    return 1e-4 * data.reduce((largest, value) => Math.max(largest, Math.abs(value)), 1);
}
/** Return the softmax of each row. */
export function probabilities({ dims, data }) {
    const width = dims[1] ?? 1;
    const found = new Float32Array(data.length);
    for (let start = 0; start < data.length; start += width) {
        const logits = Array.from(data.subarray(start, start + width), Number);
        const largest = Math.max(...logits);
        const powers = logits.map((value) => Math.exp(value - largest));
        const total = powers.reduce((sum, value) => sum + value, 0);
        powers.forEach((value, i) => (found[start + i] = value / total));
    }
    return { type: "float32", dims, data: found };
}
