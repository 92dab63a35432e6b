import type { Inflate } from "../core/npz.js";
import type { Host } from "../core/values.js";
/** Return the host with so many threads for onnxruntime; `watch` receives what is begun, and null when it has ended. */
export declare function nodeHost(threads?: number, watch?: (what: string | null) => void): Host;
/** Return deflated bytes as they were. */
export declare const inflate: Inflate;
/** Tell the watching process, at file 3, what is begun and when it has ended; it is written before onnxruntime blocks this process. */
export declare function tell(what: string | null): void;
