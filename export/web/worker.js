// onnxruntime lives here, so that the page stays responsive. A message {id, kind, ...} is answered by {id, result} or {id, error};
// training sends {id, progress} meanwhile.

import * as ort from "./ort/ort.wasm.min.mjs";
import { signedMetadata } from "./identity.js";
import { readTensors, writeTensors } from "./safetensors.js";
import { cases, median, spread } from "./timing.js";
import { Trainer, predicted } from "./trainer.js";

// onnxruntime tells nobody how large its heap is: remember the memory that it makes for itself.
const Memory = WebAssembly.Memory;
let heap = null;
WebAssembly.Memory = function (descriptor) {
  const memory = new Memory(descriptor);
  if (descriptor.initial > 0) heap = memory;
  return memory;
};
ort.env.wasm.wasmPaths = new URL("./ort/", import.meta.url).href;
ort.env.logLevel = "error";

const MAX_ERROR = 1e-4; // absolute, or relative to the largest output of the reference if that is above 1
const PROGRESS_MS = 60;
let tier = null; // {manifest, entry, forward, trainer, samples: its reference inputs}
let training = false;
let lastStopped = 0; // trainings up to this call were asked to end
let queue = Promise.resolve(); // onnxruntime runs one thing at a time, in the order asked

const handlers = {
  /** Make a tier ready for inference, once its forward graph computes its own reference here; otherwise the last one stays. */
  async load({ manifest, entry, forward, reference }) {
    const session = await ort.InferenceSession.create(forward, { executionProviders: ["wasm"] });
    const tensors = readTensors(reference, entry.reference);
    const { data, dims } = tensors.get("x");
    const found = await predicted(ort, session, manifest, data, dims[0], entry.batch_size);
    const expected = tensors.get("logits").data;
    const maxAbsError = farthest(found, expected);
    const largest = expected.reduce((most, value) => Math.max(most, Math.abs(value)), 1);
    if (!(maxAbsError <= MAX_ERROR * largest)) {
      await session.release();
      throw new Error(`tier ${entry.label}: this browser's outputs differ from its reference by ${maxAbsError.toExponential(1)}; it is not used.`);
    }
    await tier?.forward.release();
    await tier?.trainer?.release();
    tier = { manifest, entry, forward: session, trainer: null, samples: data };
    return { maxAbsError, ...usage() };
  },

  /** Make a tier ready for training. */
  async prepare({ graphs, predict, parameters }) {
    const { manifest, entry } = tier;
    const tensors = readTensors(parameters, entry.train.parameters);
    tier.trainer = await Trainer.create(ort, manifest, entry.train, { graphs, predict }, tensors);
    return usage();
  },

  async predict({ x, count }) {
    return { logits: await logits(x, count) };
  },

  async train({ id, x, y, steps, options }) {
    training = true;
    let [sent, losses] = [performance.now(), []];
    const result = await tier.trainer.train(x, y, steps, options, async (done, loss) => {
      losses.push(loss);
      if (performance.now() - sent > PROGRESS_MS || done === steps) {
        postMessage({ id, progress: { done, losses, ...usage() } });
        [sent, losses] = [performance.now(), []];
      }
      await turn(); // "stop" is a message too
      return id > lastStopped;
    });
    return { ...result, totalSteps: tier.trainer.steps, ...usage() };
  },

  /** Three steps of the first graph on the tier's synthetic batch, and the losses expected of them. What was trained stays. */
  async check({ reference }) {
    const { trainer, entry } = tier;
    const tensors = readTensors(reference, entry.train.reference);
    const kept = { state: trainer.state, steps: trainer.steps, rateSum: trainer.rateSum, samples: trainer.samples, labels: trainer.labels };
    trainer.reset();
    const { lr, momentum } = entry.train;
    const y = Array.from(tensors.get("y").data, Number);
    const options = { lr, momentum, batchSize: y.length, shuffle: false, graph: 0, everyClass: true };
    const expected = Array.from(tensors.get("losses").data);
    const { losses } = await trainer.train(tensors.get("x").data, y, expected.length, options, async () => true);
    Object.assign(trainer, kept);
    return { losses, expected };
  },

  /** Time the tier's training step, if it is prepared for training, and its inference; `progress` is a row for each batch size. */
  async measure({ id, seconds }) {
    for await (const { phase, batch, macs, times, run } of cases(ort, tier)) {
      const found = (await spread(run, seconds)).map((s) => s / times);
      const row = { phase, batch, macs, seconds: median(found), low_seconds: found[0], high_seconds: found.at(-1), repeats: found.length };
      postMessage({ id, progress: row });
    }
  },

  /** Run the first of the tier's cases for that many seconds; `progress` is {minute} after each minute. */
  async sustain({ id, seconds }) {
    const { value } = await cases(ort, tier).next();
    const begun = performance.now();
    for (let minute = 1, past = 0; past < seconds; past = (performance.now() - begun) / 1000) {
      await value.run();
      if (past >= 60 * minute) postMessage({ id, progress: { minute: minute++ } });
    }
  },

  async update({ metadata, keys }) {
    const { trainer, entry } = tier;
    const { steps, samples } = trainer;
    const about = { ...metadata, steps: String(steps), samples: String(samples) };
    if (entry.train.labels) about.labels = [...trainer.labels].sort((a, b) => a - b).join(",");
    const tensors = trainer.update();
    return { bytes: writeTensors(tensors, keys ? await signedMetadata(about, tensors, keys) : about), steps, samples };
  },

  async reset() {
    tier.trainer?.reset();
    return usage();
  },
};

function logits(x, count) {
  const { manifest, entry, forward, trainer } = tier;
  return trainer?.steps ? trainer.predict(x, count) : predicted(ort, forward, manifest, x, count, entry.batch_size);
}

function farthest(found, expected) {
  if (found.length !== expected.length) return Infinity;
  const worst = found.reduce((most, value, i) => Math.max(most, Math.abs(value - expected[i])), 0);
  return found.every(Number.isFinite) ? worst : Infinity;
}

function usage() {
  return { heapBytes: heap?.buffer.byteLength ?? 0, threads: ort.env.wasm.numThreads ?? 1, steps: tier?.trainer?.steps ?? 0 };
}

/** Let messages in: a turn of the event loop, without the pause that timers have. */
function turn() {
  return new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      port1.close();
      resolve();
    };
    port2.postMessage(null);
  });
}

onmessage = ({ data }) => {
  if (data.kind === "stop") {
    lastStopped = data.last;
    return;
  }
  // A question to the model does not wait for the end of training: it is answered between two steps.
  if (training && data.kind === "predict") answer(data);
  else queue = queue.then(() => answer(data));
};

async function answer(data) {
  try {
    postMessage({ id: data.id, result: await handlers[data.kind](data) });
  } catch (error) {
    postMessage({ id: data.id, error: String(error?.message ?? error) });
  } finally {
    if (data.kind === "train") training = false;
  }
}
