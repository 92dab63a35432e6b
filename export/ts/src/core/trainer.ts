// Trains a tier: a training graph is run step by step, its outputs being the next step's inputs.

import type { InferenceSession } from "onnxruntime-common";
import type { Bundle, Training } from "./bundle.js";
import { own, tuple } from "./checks.js";
import { Objective } from "./objective.js";
import { Order, parts } from "./order.js";
import { BudgetError, ClientError, InputError } from "./problems.js";
import { Checkpoint, type Store } from "./progress.js";
import { freshness } from "./rounds.js";
import { byRole, current, run } from "./run.js";
import { type OnStep, type Run, type Settings, plannedSteps, settled } from "./settings.js";
import { NOW, type State, contentSha256, isOf } from "./state.js";
import { encoded, hex } from "./text.js";
import { type Value, type Values, float32, isFinite, mirror, rows, zeros } from "./values.js";

/** Labelled samples: `x`, or `x.NAME` for each of several inputs, and `y`; the first dimension counts samples. */
export type Samples = Values;

export class Trainer {
  /** Inputs of the graphs that stay from step to step. */
  values: Values = new Map();
  steps = 0;
  private travelled = 0; // sum of the learning rates of all steps
  private samples = 0;
  private labels = new Set<number>();
  private place = ""; // of the order of samples
  private content = ""; // a hash of the samples
  private note = "";
  private before: { values: Values; steps: number; travelled: number } | null = null;
  private problem = ""; // of the last step

  private constructor(
    readonly bundle: Bundle, readonly label: string, readonly table: Training, readonly sessions: readonly InferenceSession[],
    private readonly held: Values, private readonly now: Values, private readonly objective: Objective, private readonly said: Readonly<Record<string, string>>,
    private readonly expires: string | null,
  ) {
    this.reset();
  }

  /** Load a tier's training graphs. A `state` of an earlier round has the personal tensors; one of the same bundle is trained further. */
  static async create(bundle: Bundle, label: string, state: State | null = null): Promise<Trainer> {
    const table = bundle.training(label);
    const given = await bundle.parameters(label);
    const held = current(bundle, label, given, state);
    const said = state && isOf(state, bundle) ? state.about : null;
    const objective = new Objective(table, given, (name) => state?.tensors.get(`${said ? "before" : "memory"}:${name}`));
    const sessions = [];
    for (const path of table.graphs) sessions.push(await bundle.session(path));
    const now = [...(said ? (state?.tensors ?? []) : [])].filter(([name]) => /^now:([mv]\.|t$|seed$)/.test(name)).map(([name, value]): [string, Value] => [name.slice(NOW.length), value]);
    return new Trainer(bundle, label, table, sessions, held, new Map(now), objective, said ?? {}, (await freshness(bundle))?.expires ?? null);
  }

  /** Back to the tensors that training began with. */
  reset(): void {
    const { table, held, said } = this;
    this.values = new Map([...byRole(table, held), ...this.objective.feeds(), ["lr", scalar(0)], ["beta", scalar(table.momentum)], ["seed", scalar(0)], ...this.now]);
    this.steps = Number(said.steps ?? 0);
    this.travelled = Number(said.lr_sum ?? 0);
    this.labels = new Set((said.labels ?? "").split(",").filter(Boolean).map(Number));
    [this.place, this.content, this.note] = [said.order ?? "", said.data ?? "", ""];
    this.before = null;
    for (const name of this.sessions.flatMap((session) => session.inputNames)) {
      if (name === "x" || name === "y" || name === "present" || name.startsWith("x.") || this.values.has(name)) continue;
      const beside = this.values.get(`p.${name.slice(2)}`);
      if (name === "t") this.values.set(name, scalar(0));
      else if (/^[mv]\./.test(name) && beside) this.values.set(name, zeros(beside.dims));
      else throw new InputError(`a training graph has an input '${name}', for which the bundle has no value`);
    }
  }

  /**
   * Train for `steps` steps, or whole epochs. With the seed and the samples of the training before, it continues to the same bits as one
   * training; `state` notes what differs. With a `store`, an interrupted training continues after the last step that was stored.
   */
  async run(data: Samples, how: Settings, steps?: number, onStep: OnStep = async () => {}, store: Store | null = null): Promise<Run> {
    const had = this.place ? parts(this.place, "--state") : [];
    const all = settled({ ...how, seed: how.seed ?? BigInt(had[0] ?? 0) }, this.bundle.tier(this.label), this.table);
    const y = targets(data);
    const count = y.dims[0] ?? 0;
    const most = Math.min(steps ?? plannedSteps(all, count), all.maxSteps);
    this.checkMemory(data, all);
    const [order, continues] = await this.ordered(data, count, all, had);
    this.begin(y, all, continues);
    const checkpoint = store && new Checkpoint(store, await this.keyOf(all));
    const result: Run = { losses: checkpoint?.restored(this, order) ?? [], seconds: 0, stopped: false, diverged: false, problem: "" };
    const { losses } = result;
    const restored = losses.length;
    for (let i = 0; i < restored; i++) this.count(all.lr);
    const started = this.bundle.host.now();
    while (losses.length < most && !result.stopped) {
      // Stop if the next step would exceed the limit, should it take as long as the average step.
      const taken = losses.length - restored;
      if (all.maxSeconds && taken && (result.seconds * (taken + 1)) / taken > all.maxSeconds) break;
      const batch = this.batch(data, order.batch(), all.augment === "flip" ? () => order.mirrored() : () => false);
      const drawn = order.graph(this.sessions.length);
      const loss = await this.step(batch, all.graph < 0 ? drawn : all.graph);
      result.seconds = this.bundle.host.now() - started;
      if (this.problem) {
        Object.assign(result, { diverged: true, problem: `step ${losses.length + 1}: ${this.problem}` });
        if (!Number.isFinite(loss)) Object.assign(this, this.before); // the tensors that this loss was computed with are no good either
        break;
      }
      losses.push(loss);
      this.count(all.lr);
      checkpoint?.stored(this, order, losses);
      if (all.maxSeconds && losses.length === 1 && result.seconds > all.maxSeconds) {
        const [took, allowed] = [brief(result.seconds), brief(all.maxSeconds)];
        throw new BudgetError(`the first step took ${took} s, ${allowed} s are allowed for all`, result.seconds, all.maxSeconds);
      }
      result.stopped = (await onStep(losses.length, loss, result.seconds)) === false;
    }
    this.samples = count;
    if (y.type === "int64") for (const label of y.data) this.labels.add(Number(label));
    this.place = order.place();
    this.before = null;
    return result;
  }

  private count(lr: number): void {
    this.steps += 1;
    this.travelled += lr; // one after the other: the same sum for two trainings as for one
  }

  /** Return the order of the samples, and whether it continues that of the training before, which had `had`; `note` says why it does not. */
  private async ordered(data: Samples, count: number, how: Required<Settings>, had: readonly string[]): Promise<[Order, boolean]> {
    const content = (how.shuffle ? "" : "in order ") + (await contentSha256(this.bundle.host, data));
    const order = new Order(count, how.batchSize, how.seed, how.shuffle);
    let of = had.length ? `of seed ${had[0]}, not ${how.seed}` : "of an earlier version, without an order of samples";
    if (had[0] === String(how.seed)) of = content === this.content ? "" : "of other samples";
    this.note = of && (had.length || this.said.format) ? `--state: ${of}: training shuffles the samples anew` : "";
    if (!of) order.move(this.place, "--state");
    [this.place, this.content] = [order.place(), content];
    return [order, !of];
  }

  /** Return a hash of what is trained, and how. */
  private async keyOf(how: Required<Settings>): Promise<string> {
    const { maxSeconds, memoryBytes, ...own } = how;
    const facts = [this.bundle.manifest.manifest_sha256 ?? "", this.label, { ...own, seed: String(own.seed) }, this.said, this.place, this.content];
    const held = await contentSha256(this.bundle.host, this.held);
    return hex(await this.bundle.host.sha256(encoded(JSON.stringify([...facts, held]))));
  }

  /** Set what all steps of a run read: rates, the classes in `y`, and the seed of dropout, unless that `continues`. */
  begin(y: Value, how: Required<Settings>, continues = false): void {
    this.before = null;
    this.values.set("lr", scalar(how.lr)).set("beta", scalar(how.momentum));
    const seen = new Set(Array.from(y.data, Number));
    const present = Uint8Array.from({ length: Number(this.bundle.manifest.classes) }, (_, label) => Number(how.everyClass || seen.has(label)));
    if (this.table.present) this.values.set("present", { type: "bool", dims: [present.length], data: present });
    // Of dropout, if the tier has it: another one for each step. Each step returns its successor.
    if (!continues) this.values.set("seed", scalar(Number((BigInt(how.seed) * 40_503n + BigInt(this.steps)) % BigInt(2 ** 23))));
  }

  /** Run one step of a graph on a batch and return its loss; if that, or a tensor, is not finite, nothing changes. */
  async step(batch: Samples, number: number): Promise<number> {
    const session = this.sessions[number];
    if (!session) throw new Error(`graph ${number}: there are ${this.sessions.length}`);
    const outputs = await run(this.bundle, session, new Map([...this.values, ...batch]));
    const loss = Number(outputs.get("loss")?.data[0]);
    const odd = [...outputs].find(([name, value]) => /^[ps]\..*\.out$/.test(name) && !isFinite(value))?.[0].slice(2, -4);
    this.problem = !Number.isFinite(loss) ? `the loss is ${loss}` : odd === undefined ? "" : `${odd} would hold NaN or infinity`;
    if (this.problem) return loss;
    this.before = { values: this.values, steps: this.steps, travelled: this.travelled };
    this.values = new Map(this.values);
    for (const [name, value] of outputs) if (name.endsWith(".out")) this.values.set(name.slice(0, -4), value);
    return loss;
  }

  /** Return a batch: the samples `indices`, of which images are mirrored for which `mirrored()` is true. */
  batch(data: Samples, indices: readonly number[], mirrored: () => boolean = () => false): Samples {
    const batch: Samples = new Map([...data].map(([name, value]) => [name, rows(value, indices)]));
    const x = batch.get("x");
    if (x) for (let i = 0; i < indices.length; i++) if (mirrored()) mirror(x, i);
    return batch;
  }

  /** Refuse a limit that weights, optimizer state and a batch exceed. onnxruntime's own memory cannot be limited here. */
  private checkMemory(data: Samples, how: Required<Settings>): void {
    if (!how.memoryBytes) return;
    const changing = new Map(this.changing());
    let need = 0;
    for (const [name, value] of this.values) need += value.data.byteLength * (changing.has(NOW + name) ? 2 : 1);
    for (const { data: part, dims } of data.values()) need += (part.byteLength / (dims[0] || 1)) * Math.min(how.batchSize, dims[0] ?? 0);
    if (need < how.memoryBytes) return;
    const have = how.memoryBytes;
    throw new BudgetError(`weights, optimizer state and a batch take ${need.toLocaleString("en")} bytes, ${have.toLocaleString("en")} are allowed`, need, have);
  }

  /** Return all that steps change, the optimizer's state included, as a state or progress has it. */
  changing(): [string, Value][] {
    const written = new Set(this.sessions.flatMap((session) => session.outputNames));
    return [...this.values].filter(([name]) => written.has(`${name}.out`)).map(([name, value]) => [NOW + name, value]);
  }

  /** Continue from what `changing` returned; InputError, which begins with `where`, if it is of other graphs. */
  restore(values: Values, where: string): void {
    for (const [name, { type, dims }] of this.changing()) {
      const value = values.get(name);
      if (value?.type !== type || String(value.dims) !== String(dims)) {
        throw new InputError(`${where}: ${name.slice(NOW.length)}: missing or of another shape, expected ${tuple(dims)}`);
      }
      this.values.set(name.slice(NOW.length), value);
    }
  }

  /** Return a function that brings back the trainer as it is now. */
  kept(): () => void {
    const { values, steps, travelled, samples, labels, place, content, note } = this;
    const kept = { values, steps, travelled, samples, labels: new Set(labels), place, content, note };
    return () => void Object.assign(this, kept);
  }

  /**
   * Return how far the tensors are from those that a training `reference` has after its steps, every k-th value of each: 1 is as far as a
   * device may be, a thousandth of the largest and 1e-5. Adam makes a whole step of a gradient that is only rounding.
   */
  apart(reference: Values): number {
    const slack = 1e-5 + (this.table.optimizer === "adam" ? 6 * this.table.lr : 0);
    const shares = [...reference].filter(([key]) => key.startsWith("after:")).map(([key, { data }]) => {
      const name = key.slice(6);
      const now = (this.values.get(`p.${name}`) ?? this.values.get(`s.${name}`))?.data as Float32Array | undefined;
      if (!now) throw new InputError(`${key}: expected one of the tier's tensors`);
      const every = Math.max(1, Math.ceil(now.length / 256));
      const expected = Array.from(data as Float32Array);
      const largest = expected.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
      return expected.reduce((most, value, i) => Math.max(most, Math.abs(value - (now[i * every] ?? NaN))), 0) / (1e-3 * largest + slack);
    });
    return shares.reduce((most, share) => (share <= most ? most : share), 0);
  }

  /** Return the state after training, which stays on the device; `client` is the name in updates; empty: that of the state before, or a random one. */
  state(client: string, { losses, seconds }: Pick<Run, "losses" | "seconds"> = { losses: [], seconds: 0 }): State {
    const { table, bundle } = this;
    const trained = [...this.values].filter(([name]) => /^[ps]\./.test(name)).map(([name, value]): [string, Value] => [name.slice(2), value]);
    const stays = Object.keys(table.frozen).filter((name) => name in table.upload || table.personal.includes(name));
    const tensors: Values = new Map([...trained, ...stays.flatMap((name): [string, Value][] => [[name, this.held.get(name) ?? zeros([0])]])]);
    for (const [name, value] of this.objective.finish(tensors, this.travelled)) tensors.set(name, value);
    for (const [name, value] of this.changing()) if (!/^now:[ps]\./.test(name)) tensors.set(name, value);
    for (const [name, value] of tensors) {
      if (!isFinite(value)) throw new ClientError(`${name} holds NaN or infinity after ${this.steps} steps: training diverged; a smaller --lr may help`);
    }
    const about: Record<string, string> = {
      format: "edgefl-state", version: "1", bundle: String(bundle.manifest.manifest_sha256), round: String(bundle.manifest.round), tier: this.label,
      samples: String(this.samples), steps: String(this.steps), lr_sum: String(this.travelled), client: client || this.said.client || hex(bundle.host.random(8)),
      upload: JSON.stringify(Object.keys(table.upload)), no_update: table.no_update, order: this.place, data: this.content,
    };
    if (this.expires !== null) about.deadline = this.expires;
    if (own(table, "labels")) about.labels = [...this.labels].sort((a, b) => a - b).join(",");
    return { tensors, about, losses, seconds, note: this.note };
  }

  async release(): Promise<void> {
    for (const session of this.sessions) await session.release();
  }
}

const scalar = (value: number): Value => float32([], [value]);
const brief = (seconds: number): string => String(Number(seconds.toPrecision(3)));

function targets(data: Samples): Value {
  const y = data.get("y");
  if (!y) throw new InputError("y: no labels, expected one per sample: training needs them");
  return y;
}
