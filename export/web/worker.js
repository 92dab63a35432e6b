// The worker that computes on the processor, by WebAssembly.

import * as ort from "./ort/ort.wasm.min.mjs";
import { work } from "./work.js";

work(ort, "wasm");
