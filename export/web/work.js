// What a worker does, so that the page stays responsive. A message {id, kind, ...} is answered by {id, result} or {id, error};
// training sends {id, progress} meanwhile.

import { PageBundle } from "./bundle.js";
import { allowedError, checkFinite, predicted } from "./core/run.js";
import { update } from "./core/state.js";
import { Trainer } from "./core/trainer.js";
import { host } from "./host.js";
import { signing } from "./identity.js";
import { cases, median, spread } from "./timing.js";

// onnxruntime tells nobody how large its heap is: remember the memory that it makes for itself.
const Memory = WebAssembly.Memory;
let heap = null;
WebAssembly.Memory = function (descriptor) {
  const memory = new Memory(descriptor);
  if (descriptor.initial > 0) heap = memory;
  return memory;
};

const PROGRESS_MS = 60;
let ort = null;
let provider = "";
let bundle = null;
let tier = null; // {entry, forward, samples: its reference inputs, trainer, predict}
let training = false;
let lastStopped = 0; // trainings up to this call were asked to end
let queue = Promise.resolve(); // onnxruntime runs one thing at a time, in the order asked

const handlers = {
  /** Use the bundle at `base`, whose manifest the page has checked. */
  async open({ base, manifest }) {
    bundle = new PageBundle(base, manifest, { ...host, ort, watched: inTurn, options: { executionProviders: [provider] } });
  },

  /** Make a tier ready for inference, once its forward graph computes its own reference here; otherwise the last one stays. */
  async load({ label }) {
    const before = bundle.downloadedBytes;
    const entry = bundle.tier(label);
    const session = await bundle.session(entry.forward);
    const reference = await bundle.tensors(entry.reference);
    const samples = new Map([["x", reference.get("x")]]);
    const found = await predicted(bundle, session, samples, entry.batch_size);
    const expected = reference.get("logits");
    const maxAbsError = farthest(found.data, expected.data);
    if (!(maxAbsError <= allowedError(expected))) {
      await session.release();
      throw new Error(`tier ${label}: this browser's outputs differ from its reference by ${maxAbsError.toExponential(1)}; it is not used.`);
    }
    await Promise.all([tier?.forward.release(), tier?.trainer?.release(), tier?.predict?.release()]);
    bundle.downloadedBytes -= before; // what the tier before took
    tier = { entry, forward: session, samples, trainer: null, predict: null };
    return { maxAbsError, ...usage() };
  },

  /** Make a tier ready for training. */
  async prepare() {
    const { label, train } = tier.entry;
    tier.predict = await bundle.session(train.predict);
    tier.trainer = await Trainer.create(bundle, label);
    return usage();
  },

  async predict({ x }) {
    const found = await logits(new Map([["x", x]]));
    checkFinite(`tier ${tier.entry.label}`, found);
    return { logits: found.data };
  },

  async train({ id, x, y, steps, settings }) {
    training = true;
    let [sent, losses] = [performance.now(), []];
    const result = await tier.trainer.run(new Map([["x", x], ["y", y]]), unlimited(settings), steps, async (done, loss) => {
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

  /**
   * Three steps of the first graph on the tier's synthetic batch, with the losses expected of them, and how far the tensors are from those
   * expected: 1 is as far as allowed. What was trained stays.
   */
  async check() {
    const { trainer, entry } = tier;
    const { downloadedBytes } = bundle;
    const reference = await bundle.tensors(entry.train.reference);
    bundle.downloadedBytes = downloadedBytes; // no cost of the tier
    const back = trainer.kept();
    trainer.reset();
    const expected = Array.from(reference.get("losses").data);
    const data = new Map([...reference].filter(([name]) => name !== "losses" && !name.startsWith("after:")));
    const settings = { batchSize: data.get("y").dims[0], shuffle: false, graph: 0, everyClass: true, augment: "none" };
    const { losses } = await trainer.run(data, unlimited(settings), expected.length);
    const apart = trainer.apart(reference);
    back();
    return { losses, expected, apart };
  },

  /** Time the tier's training step, if it is prepared for training, and its inference; `progress` is a row for each batch size. */
  async measure({ id, seconds }) {
    for await (const { phase, batch, macs, times, run } of cases(bundle, tier)) {
      const found = (await spread(run, seconds)).map((s) => s / times);
      const row = { phase, batch, macs, seconds: median(found), low_seconds: found[0], high_seconds: found.at(-1), repeats: found.length };
      postMessage({ id, progress: row });
    }
  },

  /** Run the first of the tier's cases for that many seconds; `progress` is {minute} after each minute. */
  async sustain({ id, seconds }) {
    const { value } = await cases(bundle, tier).next();
    const begun = performance.now();
    for (let minute = 1, past = 0; past < seconds; past = (performance.now() - begun) / 1000) {
      await value.run();
      if (past >= 60 * minute) postMessage({ id, progress: { minute: minute++ } });
    }
  },

  async update({ client, keys }) {
    const state = tier.trainer.state(client);
    const { steps, samples } = state.about;
    return { bytes: await update(host, state, keys ? await signing(keys) : null), steps: Number(steps), samples: Number(samples) };
  },

  async reset() {
    tier.trainer?.reset();
    return usage();
  },
};

/** The budgets of the bundle are those of a simulated fleet's devices: here a person decides when to stop. */
const unlimited = (settings) => ({ ...settings, maxSeconds: 0, memoryBytes: 0 });

function logits(data) {
  const { entry, forward, trainer, predict } = tier;
  return trainer?.steps ? predicted(bundle, predict, data, entry.batch_size, trainer.values) : predicted(bundle, forward, data, entry.batch_size);
}

function farthest(found, expected) {
  if (found.length !== expected.length) return Infinity;
  const worst = found.reduce((most, value, i) => Math.max(most, Math.abs(value - expected[i])), 0);
  return found.every(Number.isFinite) ? worst : Infinity;
}

function usage() {
  const { downloadedBytes } = bundle;
  return { heapBytes: heap?.buffer.byteLength ?? 0, threads: ort.env.wasm.numThreads ?? 1, steps: tier?.trainer?.steps ?? 0, downloadedBytes };
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

/** Answer the page's messages with a module of onnxruntime, which runs graphs by `provider`: wasm or webgpu. */
export function work(module, by) {
  [ort, provider] = [module, by];
  ort.env.wasm.wasmPaths = new URL("./ort/", import.meta.url).href;
  ort.env.logLevel = "error";
  onmessage = ({ data }) => {
    if (data.kind === "stop") {
      lastStopped = data.last;
      return;
    }
    // A question to the model does not wait for the end of training: it is answered between two steps.
    if (training && data.kind === "predict") answer(data);
    else queue = queue.then(() => answer(data));
  };
}

let running = Promise.resolve();

/** Run `use` after all that was given before: by WebGPU, onnxruntime is not done when it returns, and takes one thing at a time. */
function inTurn(_, use) {
  const result = running.then(use);
  running = result.catch(() => {});
  return result;
}

async function answer(data) {
  try {
    postMessage({ id: data.id, result: await handlers[data.kind](data) });
  } catch (error) {
    postMessage({ id: data.id, error: String(error?.message ?? error) });
  } finally {
    if (data.kind === "train") training = false;
  }
}
