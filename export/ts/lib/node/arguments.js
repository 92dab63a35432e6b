// The command line: the options of edgefl_client.py.
import { parseArgs } from "node:util";
import { InputError, firstLine } from "../core/problems.js";
import { clientName } from "../core/trust.js";
export const USAGE = `Runs and trains the models of a bundle on a device with Node and onnxruntime-node.

    node cli.js infer  BUNDLE TIER DATA [--variant KIND]
    node cli.js train  BUNDLE TIER DATA --out my.state
    node cli.js update my.state --out my.update.safetensors
    node cli.js enroll --name my-device --out my-device.json
    node cli.js trust  BUNDLE

DATA is an .npz file with x and y, an .npy file of x with y.npy beside it, or a CSV with a column y or label. Options, files and exit status are those of edgefl_client.py:
  infer, train: --state FILE, --key FILE or --allow-unsigned, --allow-older, --threads N, --timeout SECONDS
  train: --epochs, --batch-size, --lr, --max-steps, --max-seconds, --memory-bytes, --seed, --client NAME,
    --progress none|text|json, --checkpoint FILE, --checkpoint-every STEPS
  update: --device-key FILE or --unsigned; enroll: --device-key FILE
`;
const TEXTS = ["state", "out", "name", "client", "variant", "key", "device-key", "checkpoint"];
const NUMBERS = {
    threads: [true, 1], timeout: [false, 0.1], epochs: [true, 1], "batch-size": [true, 1], lr: [false, 1e-12], "max-steps": [true, 1],
    "max-seconds": [false, 0], "memory-bytes": [true, 0], seed: [true, 0], "checkpoint-every": [true, 1],
};
const OF_RUNS = ["state", "key", "allow-unsigned", "allow-older", "threads", "timeout"];
const OPTIONS = {
    infer: [...OF_RUNS, "variant"],
    train: [...OF_RUNS, "out", "epochs", "batch-size", "lr", "max-steps", "max-seconds", "memory-bytes", "seed", "client", "progress", "checkpoint", "checkpoint-every"],
    update: ["out", "device-key", "unsigned"],
    enroll: ["out", "name", "device-key"],
    trust: [],
};
const PLACES = {
    infer: ["bundle", "tier", "data"], train: ["bundle", "tier", "data"], update: ["state"], enroll: [], trust: ["bundle"],
};
const SWITCHES = ["allow-unsigned", "allow-older", "unsigned"];
const REQUIRED = ["out", "name"];
const EXCLUSIVE = [["key", "allow-unsigned"], ["device-key", "unsigned"]];
/** Return what a command line asks for; InputError if that is wrong. */
export function parsed(given) {
    const [command, ...rest] = given;
    if (!command || !Object.hasOwn(OPTIONS, command))
        throw new InputError(`got ${command ?? "no command"}, expected one of ${Object.keys(OPTIONS).join(", ")}`);
    const kind = command;
    const flags = OPTIONS[kind].map((name) => [name, { type: SWITCHES.includes(name) ? "boolean" : "string" }]);
    let found;
    try {
        found = parseArgs({ args: rest, options: Object.fromEntries(flags), allowPositionals: true });
    }
    catch (error) {
        throw new InputError(firstLine(error));
    }
    const values = found.values;
    const places = PLACES[kind];
    if (found.positionals.length !== places.length)
        throw new InputError(`${command}: got ${found.positionals.length} arguments, expected ${places.join(", ").toUpperCase() || "none"}`);
    for (const name of REQUIRED)
        if (OPTIONS[kind].includes(name) && values[name] === undefined)
            throw new InputError(`--${name} is required`);
    for (const pair of EXCLUSIVE)
        if (pair.every((name) => values[name] !== undefined))
            throw new InputError(`--${pair.join(" and --")} exclude each other`);
    const text = (name) => String(values[name] ?? "");
    const number = (name) => (values[name] === undefined ? undefined : checked(name, text(name)));
    for (const name of ["client", "name"])
        if (values[name] !== undefined)
            clientName(text(name));
    const texts = Object.fromEntries(TEXTS.map((name) => [name === "device-key" ? "deviceKey" : name, text(name)]));
    const placed = Object.fromEntries(places.map((name, i) => [name, found.positionals[i] ?? ""]));
    const settings = {
        epochs: number("epochs"), batchSize: number("batch-size"), lr: number("lr"), maxSteps: number("max-steps"), maxSeconds: number("max-seconds"),
        memoryBytes: number("memory-bytes"), seed: values.seed === undefined ? undefined : (checked("seed", text("seed")), BigInt(text("seed"))),
    };
    const progress = text("progress") || "none";
    if (!["none", "text", "json"].includes(progress))
        throw new InputError(`--progress: got ${progress}, expected none, text or json`);
    const flagsGiven = { allowUnsigned: values["allow-unsigned"] === true, allowOlder: values["allow-older"] === true, unsigned: values.unsigned === true };
    return { bundle: "", tier: "", data: "", ...texts, ...placed, ...flagsGiven, command: kind, progress, checkpointEvery: number("checkpoint-every") ?? 10, threads: number("threads") ?? 1, timeout: number("timeout") ?? 600, settings };
}
function checked(name, text) {
    const [whole, least] = NUMBERS[name] ?? [false, 0];
    const right = (whole ? /^\d+$/ : /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i).test(text) && Number(text) >= least && Number.isFinite(Number(text));
    if (right)
        return Number(text);
    throw new InputError(`--${name}: got ${text}, expected ${whole ? "a whole number" : "a number"} of at least ${least}`);
}
