// What a person can do with a bundle, without the page: choose a tier, classify, train, make an update.

import { Engine } from "./engine.js";
import { deviceKeys } from "./identity.js";
import { ranked } from "./preprocess.js";
import { BundleProblem } from "./problems.js";

export class Model {
  constructor(bundle) {
    this.bundle = bundle;
    this.manifest = bundle.manifest;
    this.entry = null; // the tier in use, as the manifest has it
    this.steps = 0;
    this.engine = new Engine();
    this.client = Array.from(crypto.getRandomValues(new Uint8Array(8)), (byte) => byte.toString(16).padStart(2, "0")).join("");
  }

  /** Load the tier called `label` for inference; if that fails, the one before stays. Returns how far it is from its reference. */
  async choose(label) {
    const entry = this.manifest.tiers.find((tier) => tier.label === label);
    if (!entry) throw new BundleProblem(`no tier ${label}; there are ${this.manifest.tiers.map((tier) => tier.label).join(", ")}`);
    const before = this.bundle.downloadedBytes;
    const [forward, reference] = [await this.bundle.file(entry.forward), await this.bundle.file(entry.reference)];
    const loaded = await this.engine.call("load", { manifest: this.about(), entry, forward, reference });
    this.bundle.downloadedBytes -= before; // what the tier before took
    Object.assign(this, { entry, prepared: null, steps: 0 });
    return loaded;
  }

  /** The part of the manifest that computing needs. */
  about() {
    const { input_shape, input_dtype, classes } = this.manifest;
    return { input_shape, input_dtype, classes };
  }

  get sampleSize() {
    return this.manifest.input_shape.reduce((product, side) => product * side, 1);
  }

  /** Return `values` (numbers, nested or not) as the flat typed array that the network takes, and how many samples it holds. */
  flat(values) {
    const [Kind, number] = this.manifest.input_dtype === "int64" ? [BigInt64Array, BigInt] : [Float32Array, Number];
    const plain = ArrayBuffer.isView(values) ? values : Array.from(values).flat(Infinity);
    const x = plain instanceof Kind ? plain : Kind.from(plain, number);
    const count = x.length / this.sampleSize;
    if (!x.length || !Number.isInteger(count)) {
      throw new Error(`${x.length} values, expected a multiple of ${this.sampleSize}: samples of ${this.manifest.input_shape.join(" × ")}`);
    }
    return { x, count };
  }

  /** Return the logits of each sample of `values`. */
  async predict(values) {
    const { x, count } = this.flat(values);
    const { logits } = await this.engine.call("predict", { x, count });
    const { classes } = this.manifest;
    return Array.from({ length: count }, (_, i) => logits.slice(i * classes, (i + 1) * classes));
  }

  /** Return the share of the samples whose most likely class is `y`. */
  async accuracy(values, y) {
    const outputs = await this.predict(values);
    return outputs.filter((logits, i) => ranked(logits, 1)[0].label === y[i]).length / y.length;
  }

  /** Fetch what training needs, once per tier. */
  async prepare() {
    const train = this.entry?.train;
    if (!this.entry) throw new BundleProblem("No tier is loaded.");
    if (!train) throw new BundleProblem(`tier ${this.entry.label} comes without a training graph: it can only classify.`);
    this.prepared ??= (async () => {
      const [parameters, predict] = [await this.bundle.file(train.parameters), await this.bundle.file(train.predict)];
      const graphs = [];
      for (const path of train.graphs) graphs.push(await this.bundle.file(path));
      return this.engine.call("prepare", { graphs, predict, parameters });
    })();
    try {
      return await this.prepared;
    } catch (error) {
      this.prepared = null;
      throw error;
    }
  }

  /**
   * Train on the samples `x` with classes `y` (numbers), for `steps` steps or whole `epochs`; a second call goes on from the first.
   * lr, momentum, batchSize and epochs are the manifest's where not given; seed decides batches; shuffle: false keeps the order.
   */
  async train({ x: values, y, steps, epochs, lr, momentum, batchSize, seed = 0, shuffle = true, onProgress = null }) {
    if (!y?.length) throw new Error("There is nothing to train on: add labelled samples first.");
    const { x, count } = this.flat(values);
    const labels = Array.from(y, Number);
    if (count !== labels.length) throw new Error(`${count} samples but ${labels.length} classes, expected as many`);
    const wrong = labels.find((label) => !Number.isInteger(label) || label < 0 || label >= this.manifest.classes);
    if (wrong !== undefined) throw new Error(`class ${wrong}, expected whole numbers from 0 to ${this.manifest.classes - 1}`);
    this.stopping = false;
    await this.prepare();
    if (this.stopping) return { losses: [], stopped: true, diverged: false, seconds: 0, totalSteps: this.steps };
    const { train } = this.entry;
    const options = { lr: lr ?? train.lr, momentum: momentum ?? train.momentum, batchSize: batchSize ?? train.batch_size, seed, shuffle, augment: train.augment };
    const all = steps ?? (epochs ?? train.epochs) * Math.ceil(count / options.batchSize);
    const result = await this.engine.call("train", { x, y: labels, steps: all, options }, onProgress);
    this.steps = result.totalSteps;
    return result;
  }

  stop() {
    this.stopping = true; // also where nothing has reached the worker yet
    this.engine.stop();
  }

  /** Return {bytes, steps, samples}: the update as a safetensors file, signed if this device has a key. */
  async update() {
    if (!this.steps) throw new Error("There is no update yet: train first.");
    const { label, train } = this.entry;
    if (train.no_update) throw new Error(`This tier's updates cannot be sent: ${train.no_update}`);
    const { manifest_sha256: bundle, round } = this.manifest;
    const metadata = { format: "edgefl-update", version: "1", bundle, round: String(round), tier: label, client: this.client };
    return this.engine.call("update", { metadata, keys: await deviceKeys() });
  }

  /** Back to the model that came with the bundle. */
  async reset() {
    await this.engine.call("reset");
    this.steps = 0;
  }

  /** Train three steps on the tier's synthetic batch: {losses, expected}, which agree to a thousandth on a sound device. */
  async check() {
    await this.prepare();
    return this.engine.call("check", { reference: await this.bundle.file(this.entry.train.reference, false) });
  }
}
