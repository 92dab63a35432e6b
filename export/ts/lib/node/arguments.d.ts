import type { Settings } from "../core/settings.js";
export declare const USAGE = "Runs and trains the models of a bundle on a device with Node and onnxruntime-node.\n\n    node cli.js infer  BUNDLE TIER DATA [--variant KIND]\n    node cli.js train  BUNDLE TIER DATA --out my.state\n    node cli.js update my.state --out my.update.safetensors\n    node cli.js enroll --name my-device --out my-device.json\n    node cli.js trust  BUNDLE\n\nDATA is an .npz file with x and y, an .npy file of x with y.npy beside it, or a CSV with a column y or label. Options, files and exit status are those of edgefl_client.py:\n  infer, train: --state FILE, --key FILE or --allow-unsigned, --allow-older, --threads N, --timeout SECONDS\n  train: --epochs, --batch-size, --lr, --max-steps, --max-seconds, --memory-bytes, --seed, --client NAME,\n    --progress none|text|json, --checkpoint FILE, --checkpoint-every STEPS\n  update: --device-key FILE or --unsigned; enroll: --device-key FILE\n";
export interface Given {
    command: "infer" | "train" | "update" | "enroll" | "trust";
    bundle: string;
    tier: string;
    data: string;
    state: string;
    out: string;
    name: string;
    client: string;
    variant: string;
    progress: "none" | "text" | "json";
    checkpoint: string;
    checkpointEvery: number;
    key: string;
    allowUnsigned: boolean;
    allowOlder: boolean;
    deviceKey: string;
    unsigned: boolean;
    threads: number;
    timeout: number;
    settings: Settings;
}
/** Return what a command line asks for; InputError if that is wrong. */
export declare function parsed(given: readonly string[]): Given;
