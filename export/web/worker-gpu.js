// The worker that computes on the graphics processor, by WebGPU. Its onnxruntime is loaded only where it is asked for.

import * as ort from "./ort/ort.webgpu.min.mjs";
import { work } from "./work.js";

work(ort, "webgpu");
