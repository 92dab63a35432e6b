// Local training of one tier: a training graph is run step by step, its outputs being the next step's inputs.
// No page and no network here; `ort` comes from outside.

import { batches, seeded } from "./batches.js";

const OPTIONS = { executionProviders: ["wasm"] };

const sizeOf = (dims) => dims.reduce((product, side) => product * side, 1);
const finite = (tensors) => tensors.every((tensor) => tensor.data.every(Number.isFinite));

export class Trainer {
  /** `entry` is a tier's `train` of the manifest, `files` its graphs and predict graph as bytes, `tensors` what parameters holds. */
  static async create(ort, manifest, entry, files, tensors) {
    for (const [name, dims] of Object.entries({ ...entry.trained, ...entry.statistics, ...entry.frozen })) {
      const found = tensors.get(name);
      if (!found) throw new Error(`${entry.parameters}: ${name} is missing`);
      if (String(found.dims) !== String(dims)) throw new Error(`${entry.parameters}: ${name} is ${found.dims}, the manifest says ${dims}`);
    }
    const sessions = [];
    for (const graph of files.graphs) sessions.push(await ort.InferenceSession.create(graph, OPTIONS));
    const predict = await ort.InferenceSession.create(files.predict, OPTIONS);
    return new Trainer(ort, manifest, entry, sessions, predict, tensors);
  }

  constructor(ort, manifest, entry, sessions, predictSession, tensors) {
    Object.assign(this, { ort, manifest, entry, sessions, predictSession, initial: tensors });
    this.reset();
  }

  /** Back to the parameters that came with the bundle. */
  reset() {
    this.state = new Map();
    Object.assign(this, { steps: 0, samples: 0, rateSum: 0, before: null, labels: new Set() });
    for (const session of this.sessions) {
      session.inputNames.forEach((name, i) => {
        if (name.includes(".") || name === "t" || name === "seed") this.state.set(name, this.first(name, session.inputMetadata[i]));
      });
    }
    for (const name of this.predictSession.inputNames) {
      if (name !== "x" && !this.state.has(name)) this.state.set(name, this.first(name));
    }
  }

  /** Return the tensor that an input starts from: a parameter, what an objective starts with, or zeros. */
  first(input, metadata) {
    const [role, name] = input.includes(".") ? [input[0], input.slice(2)] : [input, ""];
    const { trained } = this.entry;
    let source = "psf".includes(role) ? this.initial.get(name) : undefined;
    if (!source && role === "f" && name.startsWith("start.")) source = this.initial.get(name.slice(6));
    // SCAFFOLD's shift is the server's control variate less the device's own, which is zero at first.
    if (!source && role === "f" && name.startsWith("shift.")) source = this.initial.get(`control:${name.slice(6)}`);
    if (source) return this.tensor(source.type, source.data, source.dims);
    const shifted = role === "f" && name.startsWith("shift.") ? name.slice(6) : name;
    const dims = role === "t" || role === "seed" ? [] : trained[shifted];
    if (!dims || !["f", "m", "v", "t", "seed"].includes(role)) throw new Error(`the graph asks for ${input}, which the bundle does not hold`);
    return this.tensor(metadata?.type ?? "float32", new Float32Array(sizeOf(dims)), dims);
  }

  tensor(type, data, dims) {
    return new this.ort.Tensor(type, data, dims);
  }

  /** Return what all steps read: learning rate, momentum, and which classes are present in the data. */
  constants(lr, momentum, isPresent) {
    const scalar = (value) => this.tensor("float32", Float32Array.of(value), []);
    const present = Uint8Array.from({ length: this.manifest.classes }, (_, label) => Number(isPresent(label)));
    return { lr: scalar(lr), beta: scalar(momentum), present: this.tensor("bool", present, [present.length]) };
  }

  /** Return a batch as tensors: the samples `indices` of x (flat) and y (numbers); images for which `mirrored()` is true are mirrored. */
  batch(x, y, indices, mirrored = () => false) {
    const { input_shape: shape, input_dtype: type = "float32" } = this.manifest;
    const size = sizeOf(shape);
    const data = new x.constructor(indices.length * size);
    const width = shape.at(-1);
    indices.forEach((index, i) => {
      data.set(x.subarray(index * size, (index + 1) * size), i * size);
      if (!mirrored()) return;
      for (let row = i * size; row < (i + 1) * size; row += width) data.subarray(row, row + width).reverse();
    });
    const labels = BigInt64Array.from(indices, (index) => BigInt(y[index]));
    return { x: this.tensor(type, data, [indices.length, ...shape]), y: this.tensor("int64", labels, [indices.length]) };
  }

  /** One optimizer step. Returns its loss; where that is not finite, nothing is updated. Tensors lie in JavaScript's own memory. */
  async step(session, feeds) {
    const inputs = Object.fromEntries(session.inputNames.map((name) => [name, feeds[name] ?? this.state.get(name)]));
    const outputs = await session.run(inputs);
    const loss = Number(outputs.loss.data[0]);
    if (!Number.isFinite(loss)) return loss;
    this.before = this.state;
    this.state = new Map(this.state);
    for (const [name, value] of Object.entries(outputs)) {
      if (name.endsWith(".out")) this.state.set(name.slice(0, -4), value);
    }
    return loss;
  }

  /** Undo the last step: a loss that is not finite, or what it left is not. */
  undo(lr) {
    if (!this.before) return;
    this.state = this.before;
    this.steps -= 1;
    this.rateSum -= lr;
  }

  /**
   * Train for `steps` steps. `x` is flat (samples × input_shape), `y` one class number per sample.
   * `options`: lr, momentum, batchSize, seed; shuffle: false keeps the order of the samples, graph: the number of one instead of drawing
   * it, everyClass: true counts every class as present, augment: "flip" mirrors images with chance ½. `progress(done, loss)` is awaited after each step; returning false stops.
   * Returns {losses, stopped, diverged, seconds}.
   */
  async train(x, y, steps, options, progress) {
    const { lr, momentum, batchSize, seed = 0, shuffle = true, graph = null, everyClass = false, augment = "none" } = options;
    const [random, flips] = [seeded(seed), seeded(~seed)];
    const mirrored = () => augment === "flip" && flips() < 0.5;
    const fixed = this.constants(lr, momentum, (label) => everyClass || y.includes(label));
    // The seed of dropout, if the tier has it: as in Python, another one for each step. Each step returns its successor.
    if (this.state.has("seed")) this.state.set("seed", this.tensor("float32", Float32Array.of((seed * 40503 + this.steps) % 2 ** 23), []));
    const next = batches(y.length, batchSize, random, shuffle);
    const result = { losses: [], stopped: false, diverged: false, seconds: 0 };
    this.before = null;
    for (let k = 0; k < steps && !result.stopped; k++) {
      const started = performance.now();
      const drawn = this.sessions.length > 1 && graph === null ? Math.floor(random() * this.sessions.length) : (graph ?? 0);
      const loss = await this.step(this.sessions[drawn], { ...fixed, ...this.batch(x, y, next.next().value, mirrored) });
      result.seconds += (performance.now() - started) / 1000;
      result.diverged = !Number.isFinite(loss);
      if (result.diverged) break;
      result.losses.push(loss);
      this.steps += 1;
      this.rateSum += lr;
      result.stopped = (await progress(k + 1, loss)) === false;
    }
    result.diverged ||= !finite(this.parameters()); // no later step has looked at what the last one made
    if (result.diverged) this.undo(lr); // to the parameters of the last finite loss
    this.before = null;
    this.samples = y.length;
    for (const label of y) this.labels.add(label);
    return result;
  }

  parameters() {
    return [...this.state].filter(([name]) => /^[ps]\./.test(name)).map(([, tensor]) => tensor).filter((tensor) => tensor.type === "float32");
  }

  /** Return the tensors of an update: exactly `upload`, and SCAFFOLD's change of the control variate, whose own part was zero. */
  update() {
    const tensors = new Map();
    for (const [name, dims] of Object.entries(this.entry.upload)) {
      const { data } = this.state.get(`p.${name}`) ?? this.state.get(`s.${name}`) ?? this.initial.get(name);
      tensors.set(name, { dims, data });
      if (this.entry.objective.name !== "scaffold" || !(name in this.entry.trained) || !this.rateSum) continue;
      const start = this.initial.get(name).data;
      const control = this.initial.get(`control:${name}`)?.data;
      tensors.set(`control:${name}`, { dims, data: data.map((value, i) => (start[i] - value) / this.rateSum - (control?.[i] ?? 0)) });
    }
    return tensors;
  }

  /** Return the logits of `count` samples with the parameters as they are now. */
  async predict(x, count) {
    return predicted(this.ort, this.predictSession, this.manifest, x, count, this.entry.batch_size, this.state);
  }

  async release() {
    for (const session of [...this.sessions, this.predictSession]) await session.release();
  }
}

/** Return the logits, flat, of `count` samples `x`, in batches; `state` holds what the graph takes besides x. */
export async function predicted(ort, session, manifest, x, count, batchSize, state = new Map()) {
  const { input_shape: shape, input_dtype: type = "float32", classes } = manifest;
  const size = sizeOf(shape);
  const logits = new Float32Array(count * classes);
  for (let start = 0; start < count; start += batchSize) {
    const end = Math.min(count, start + batchSize);
    const batch = new ort.Tensor(type, x.slice(start * size, end * size), [end - start, ...shape]);
    const inputs = Object.fromEntries(session.inputNames.map((name) => [name, name === "x" ? batch : state.get(name)]));
    logits.set((await session.run(inputs)).logits.data, start * classes);
  }
  return logits;
}
