// What a person can do with a bundle, without the page: choose a tier, classify, train, make an update.

import { InputError } from "./core/problems.js";
import { hex } from "./core/text.js";
import { Engine } from "./engine.js";
import { deviceKeys } from "./identity.js";
import { ranked } from "./preprocess.js";

export class Model {
  /** `provider` is wasm or webgpu. */
  constructor({ base, manifest }, provider = "wasm") {
    Object.assign(this, { base, manifest, entry: null, steps: 0, downloadedBytes: 0 }); // entry: the tier in use, as the manifest has it
    this.start(provider);
    this.client = hex(crypto.getRandomValues(new Uint8Array(8)));
  }

  start(provider) {
    this.provider = provider;
    this.engine = new Engine(provider);
    this.opened = this.engine.call("open", { base: this.base, manifest: this.manifest });
  }

  /** Compute with `provider` from now on, from the bundle's parameters; if the tier in use cannot be loaded there, all stays as it is. */
  async computeWith(provider) {
    const before = { engine: this.engine, opened: this.opened, provider: this.provider, prepared: this.prepared, steps: this.steps };
    this.start(provider);
    try {
      const loaded = await this.choose(this.entry.label);
      before.engine.close("The page computes elsewhere now.");
      return loaded;
    } catch (error) {
      this.engine.close(error.message);
      Object.assign(this, before);
      throw error;
    }
  }

  /** Load the tier called `label` for inference; if that fails, the one before stays. Returns how far it is from its reference. */
  async choose(label) {
    const entry = this.manifest.tiers.find((tier) => tier.label === label);
    if (!entry) throw new InputError(`no tier ${label}; there are ${this.manifest.tiers.map((tier) => tier.label).join(", ")}`);
    await this.opened;
    const loaded = await this.engine.call("load", { label });
    Object.assign(this, { entry, prepared: null, steps: 0, downloadedBytes: loaded.downloadedBytes });
    return loaded;
  }

  get sampleSize() {
    return this.manifest.input_shape.reduce((product, side) => product * side, 1);
  }

  /** Return `values` (numbers, nested or not) as the tensor that the network takes. */
  flat(values) {
    const { input_shape: shape, input_dtype: type } = this.manifest;
    const [Kind, number] = type === "int64" ? [BigInt64Array, BigInt] : [Float32Array, Number];
    const plain = ArrayBuffer.isView(values) ? values : Array.from(values).flat(Infinity);
    const data = plain instanceof Kind ? plain : Kind.from(plain, number);
    const count = data.length / this.sampleSize;
    if (!data.length || !Number.isInteger(count)) {
      throw new Error(`${data.length} values, expected a multiple of ${this.sampleSize}: samples of ${shape.join(" × ")}`);
    }
    return { type: type === "int64" ? type : "float32", dims: [count, ...shape], data };
  }

  /** Return the logits of each sample of `values`. */
  async predict(values) {
    const x = this.flat(values);
    const { logits } = await this.engine.call("predict", { x });
    const { classes } = this.manifest;
    return Array.from({ length: x.dims[0] }, (_, i) => logits.slice(i * classes, (i + 1) * classes));
  }

  /** Return the share of the samples whose most likely class is `y`. */
  async accuracy(values, y) {
    const outputs = await this.predict(values);
    return outputs.filter((logits, i) => ranked(logits, 1)[0].label === y[i]).length / y.length;
  }

  /** Fetch what training needs, once per tier. */
  async prepare() {
    const train = this.entry?.train;
    if (!this.entry) throw new InputError("No tier is loaded.");
    if (!train) throw new InputError(`tier ${this.entry.label} comes without a training graph: it can only classify.`);
    this.prepared ??= this.engine.call("prepare");
    try {
      const found = await this.prepared;
      this.downloadedBytes = found.downloadedBytes;
      return found;
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
    const x = this.flat(values);
    const labels = Array.from(y, Number);
    if (x.dims[0] !== labels.length) throw new Error(`${x.dims[0]} samples but ${labels.length} classes, expected as many`);
    const wrong = labels.find((label) => !Number.isInteger(label) || label < 0 || label >= this.manifest.classes);
    if (wrong !== undefined) throw new Error(`class ${wrong}, expected whole numbers from 0 to ${this.manifest.classes - 1}`);
    this.stopping = false;
    await this.prepare();
    if (this.stopping) return { losses: [], stopped: true, diverged: false, seconds: 0, totalSteps: this.steps };
    const { train } = this.entry;
    const settings = { lr: lr ?? train.lr, momentum: momentum ?? train.momentum, batchSize: batchSize ?? train.batch_size, seed, shuffle, augment: train.augment };
    const all = steps ?? (epochs ?? train.epochs) * Math.ceil(labels.length / settings.batchSize);
    const targets = { type: "int64", dims: [labels.length], data: BigInt64Array.from(labels, BigInt) };
    const result = await this.engine.call("train", { x, y: targets, steps: all, settings }, onProgress);
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
    const { train } = this.entry;
    if (train.no_update) throw new Error(`This tier's updates cannot be sent: ${train.no_update}`);
    return this.engine.call("update", { client: this.client, keys: await deviceKeys() });
  }

  /** Back to the model that came with the bundle. */
  async reset() {
    await this.engine.call("reset");
    this.steps = 0;
  }

  /**
   * Train three steps on the tier's synthetic batch: {losses, expected}, which agree to a thousandth on a sound device, and `apart`, at most
   * 1 there: how far the tensors are from those of the reference.
   */
  async check() {
    await this.prepare();
    return this.engine.call("check");
  }
}
