// What the core needs, by onnxruntime-node and Node's own modules.

import { createHash, createPublicKey, randomBytes, verify } from "node:crypto";
import { writeSync } from "node:fs";
import { promisify } from "node:util";
import { inflateRaw } from "node:zlib";
import ort from "onnxruntime-node";
import type { Inflate } from "../core/npz.js";
import type { Host } from "../core/values.js";

// onnxruntime would send figures of models and of the device to its maker. It reads the variable before its first session.
process.env.ORT_DISABLE_TELEMETRY ??= "1";

const SPKI = Buffer.from("302a300506032b6570032100", "hex");
const inflated = promisify(inflateRaw);

/** Return the host with so many threads for onnxruntime; `watch` receives what is begun, and null when it has ended. */
export function nodeHost(threads = 1, watch: (what: string | null) => void = () => {}): Host {
  return {
    ort,
    runtime: `onnxruntime ${ort.env.versions.node ?? ort.env.versions.common}`,
    options: { intraOpNumThreads: threads, interOpNumThreads: 1, executionProviders: ["cpu"], logSeverityLevel: 4, enableMemPattern: false },
    sha256: async (content) => createHash("sha256").update(content).digest(),
    verify: async (key, signature, content) =>
      verify(null, content, createPublicKey({ key: Buffer.concat([SPKI, key]), format: "der", type: "spki" }), signature),
    now: () => performance.now() / 1000,
    random: (count) => randomBytes(count),
    watched: async (what, work) => {
      watch(what);
      try {
        return await work();
      } finally {
        watch(null);
      }
    },
  };
}

/** Return deflated bytes as they were. */
export const inflate: Inflate = async (content, mostBytes) => Uint8Array.from(await inflated(content, { maxOutputLength: Math.max(1, mostBytes) }));

/** Tell the watching process, at file 3, what is begun and when it has ended; it is written before onnxruntime blocks this process. */
export function tell(what: string | null): void {
  writeSync(3, `${JSON.stringify(what)}\n`);
}
