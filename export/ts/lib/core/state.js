// The result of training, which stays on the device, and what leaves it: the update for the server, signed by the device's own key.
import { requireKeys } from "./checks.js";
import { refused } from "./bundle.js";
import { InputError, firstLine } from "./problems.js";
import { readTensors, writeTensors } from "./safetensors.js";
import { byBytes, encoded, hex } from "./text.js";
/** Begins the names of what a state has of the optimizer and of dropout, so that a training continues. */
export const NOW = "now:";
export const stateBytes = ({ tensors, about }) => writeTensors(tensors, about);
/** Return the state in a file's content, which messages call `where`; InputError if it holds none. */
export function readState(content, where) {
    let found;
    try {
        found = readTensors(content);
    }
    catch (error) {
        throw new InputError(`${where}: not a state that train wrote (${firstLine(error)})`);
    }
    const { tensors, metadata: about } = found;
    if (about.format !== "edgefl-state" || about.version !== "1") {
        throw new InputError(`${where}: format: got ${about.format === undefined ? "None" : `'${about.format}'`}, expected 'edgefl-state' of version '1'`);
    }
    const keys = ["bundle", "round", "tier", "samples", "steps", "client", "upload", "no_update"];
    refused(where, () => requireKeys(about, Object.fromEntries(keys.map((key) => [key, "str"]))));
    const state = { tensors, about, losses: [], seconds: 0, note: "" };
    if (!isSound(state))
        throw new InputError(`${where}: not a state that train wrote (damaged metadata): train again`);
    return state;
}
function isSound({ tensors, about }) {
    const numbers = [about.round, about.samples, about.steps, ...(about.labels ?? "").split(",").filter(Boolean)];
    let upload;
    try {
        upload = JSON.parse(about.upload ?? "");
    }
    catch {
        return false;
    }
    const named = Array.isArray(upload) && upload.every((name) => typeof name === "string" && tensors.has(name));
    return named && numbers.every((text) => /^\d{1,18}$/.test(text ?? "")) && Number.isFinite(Number(about.lr_sum ?? "0"));
}
export const isOf = (state, bundle) => state.about.bundle === bundle.manifest.manifest_sha256;
/** Return the update file of a state: only the tensors that the server aggregates, signed with `key` unless it is null. */
export async function update(host, state, key = null) {
    const { about } = state;
    if (about.no_update)
        throw new InputError(`updates of this model cannot be aggregated outside of a simulation: ${about.no_update}`);
    const names = [...JSON.parse(about.upload ?? "[]"), ...[...state.tensors.keys()].filter((name) => name.startsWith("control:"))];
    const keys = ["version", "bundle", "round", "tier", "samples", "steps", "client", "labels", "deadline"];
    const metadata = { format: "edgefl-update", ...Object.fromEntries(keys.filter((name) => name in about).map((name) => [name, about[name] ?? ""])) };
    const tensors = new Map();
    for (const name of names) {
        const value = state.tensors.get(name);
        if (!value)
            throw new InputError(`the state lacks ${name}, which an update has: train again`);
        tensors.set(name, value.type === "float32" ? value : { type: "float32", dims: value.dims, data: Float32Array.from(value.data) });
    }
    return writeTensors(tensors, key ? await signed(host, metadata, tensors, key) : metadata);
}
/** Return the metadata `about` of an update with the device's key and its signature of all metadata and tensors. */
export async function signed(host, about, tensors, key) {
    const found = { ...about, key: key.public };
    const lines = ["edgefl update signature 1", ...Object.keys(found).sort().map((name) => `${name}=${found[name]}`), `content=${await contentSha256(host, tensors)}`];
    return { ...found, signature: await key.sign(encoded(lines.map((line) => `${line}\n`).join(""))) };
}
/** Return the SHA-256 of tensors by the bytes of their names: name, zero byte, shape as 2,3, zero byte, float32 values. */
export async function contentSha256(host, tensors) {
    const parts = [];
    for (const name of byBytes(tensors.keys())) {
        const value = tensors.get(name);
        if (!value)
            continue;
        const { dims, data } = value;
        parts.push(encoded(`${name}\0${Array.from(dims).join(",")}\0`), new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
    }
    const all = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
    let at = 0;
    for (const part of parts) {
        all.set(part, at);
        at += part.length;
    }
    return hex(await host.sha256(all));
}
/** Return the text of a request to enrol this device under `name`: JSON, signed with its key. */
export async function enrolment(name, key) {
    const signature = await key.sign(encoded(`edgefl enrolment 1\nname=${name}\nkey=${key.public}\n`));
    return `${JSON.stringify({ format: "edgefl-enrolment", version: "1", name, key: key.public, signature }, null, 2)}\n`;
}
