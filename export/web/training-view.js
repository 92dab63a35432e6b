// The sections Training and Update: settings, the run with its curve and figures, and the file for the server.

import { draw, table } from "./chart.js";
import { $, bytes, digits, element, guarded, percent, plural, save, say, setting } from "./dom.js";

const JUDGED = 1000; // samples on which accuracy before and after is taken

const short = (loss) => (loss < 0.001 ? "under 0.001" : digits(loss));

/** Fill a list of figures: [term, value, remark] each. */
export function figures(list, rows) {
  list.replaceChildren(
    ...rows.map(([term, value, remark]) => {
      const parts = [element("dt", { textContent: term }), element("dd", { textContent: value })];
      if (remark) parts.push(element("dd", { textContent: remark }));
      return element("div", {}, ...parts);
    }),
  );
}

export class TrainingView {
  /** `after` is called when the model has changed. */
  constructor(model, samples, after) {
    Object.assign(this, { model, samples, after, losses: [], running: false, measuring: false });
    $("training").addEventListener("submit", (event) => {
      event.preventDefault();
      guarded(() => this.train(), $("train"))();
    });
    new ResizeObserver(() => draw($("chart"), this.losses)).observe($("chart"));
    $("stop").addEventListener("click", () => this.model.stop());
    $("reset").addEventListener("click", guarded(() => this.reset()));
    $("download").addEventListener("click", guarded(() => this.download()));
  }

  /** Show a tier that was just loaded. */
  show() {
    const { train, label } = this.model.entry;
    $("training").hidden = $("training-facts").hidden = !train;
    $("no-training").hidden = Boolean(train);
    $("no-training").textContent = `Tier ${label} comes without a training graph: it can only classify.`;
    if (train) {
      $("epochs").value = train.epochs;
      $("batch").value = train.batch_size;
      $("rate").value = train.lr;
    }
    this.losses = [];
    this.result = null;
    this.showRun();
    this.enable();
  }

  enable() {
    const { running } = this;
    const busy = running || this.measuring;
    const trained = this.model.steps > 0;
    for (const id of ["train", "tier", "provider", "epochs", "batch", "rate", "seed"]) $(id).disabled = busy || !this.model.entry;
    $("measure").disabled = busy;
    $("stop").disabled = !running;
    $("reset").disabled = busy || !trained;
    const hindrance = this.model.entry?.train?.no_update;
    $("download").disabled = running || !trained || Boolean(hindrance);
    if (hindrance) $("update-note").textContent = `Updates of this tier cannot be sent: ${hindrance}`;
    else if (!trained) $("update-note").textContent = "After training, the update for the server can be downloaded here.";
    else {
      const what = plural(this.model.steps, "step");
      $("update-note").textContent = `The trained parameters after ${what}, about ${bytes(this.uploadBytes)}. No sample is in the file; it says how many there were.`;
    }
  }

  /** What the tensors of an update take; SCAFFOLD sends a control variate with each that is trained. */
  get uploadBytes() {
    const { upload = {}, trained = {}, objective } = this.model.entry?.train ?? {};
    const size = (name) => 4 * upload[name].reduce((product, side) => product * side, 1);
    return Object.keys(upload).reduce((sum, name) => sum + size(name) * (objective.name === "scaffold" && name in trained ? 2 : 1), 0);
  }

  async train() {
    const [epochs, batchSize, lr, seed] = ["epochs", "batch", "rate", "seed"].map(setting);
    if (!this.samples.length) throw new Error("There is nothing to train on: add labelled samples first.");
    const [x, y] = [this.samples.flat(), [...this.samples.y]];
    this.running = true;
    this.enable();
    $("stop").focus();
    say(`Training on ${plural(y.length, "sample")} …`);
    try {
      await this.model.prepare();
      const before = await this.judge(x, y);
      const epochSteps = Math.ceil(y.length / batchSize);
      const done = this.losses.length;
      $("progress").max = epochs * epochSteps;
      const onProgress = (progress) => {
        this.losses.push(...progress.losses);
        $("progress").value = progress.done;
        this.showRun();
      };
      this.result = await this.model.train({ x, y, epochs, batchSize, lr, seed, onProgress });
      this.losses.length = done;
      this.losses.push(...this.result.losses);
      this.result.epochSteps = epochSteps;
      this.result.accuracies = [before, await this.judge(x, y)];
      this.showRun();
      this.measure();
      await this.after();
      this.finished();
    } finally {
      this.running = false;
      const beside = document.activeElement === document.body || document.activeElement === $("stop");
      this.enable();
      if (beside) $("train").focus(); // a disabled button cannot keep the focus
    }
  }

  judge(x, y) {
    const size = x.length / y.length;
    return this.model.accuracy(x.subarray(0, JUDGED * size), y.slice(0, JUDGED));
  }

  /** Ask the browser for the memory of the page and its worker, where it tells; it answers when it next collects garbage. */
  async measure() {
    const { result } = this;
    try {
      result.pageBytes = (await performance.measureUserAgentSpecificMemory()).bytes;
      if (result === this.result && !this.running) this.showRun();
    } catch {
      // not every browser measures it
    }
  }

  finished() {
    const { losses, stopped, problem, accuracies } = this.result;
    if (problem) throw new Error(`Training stopped at ${problem}. The last sound parameters are kept. Try a smaller learning rate.`);
    if (!losses.length) return say("Stopped before the first step.");
    const epoch = Math.min(losses.length, this.result.epochSteps);
    const [first, last] = [losses.slice(0, epoch), losses.slice(-epoch)].map((part) => short(part.reduce((sum, loss) => sum + loss, 0) / epoch));
    const end = `${stopped ? "Stopped" : "Done"} after ${plural(losses.length, "step")}: mean loss ${first} in the first epoch, ${last} in the last; `;
    return say(`${end}${percent(accuracies[0])} to ${percent(accuracies[1])} of your samples are right.`);
  }

  showRun() {
    const { losses, result } = this;
    const { entry } = this.model;
    for (const id of ["curve", "curve-table", "progress"]) $(id).hidden = !losses.length;
    draw($("chart"), losses);
    const rows = losses.length ? table(losses) : [];
    $("loss-rows").replaceChildren(
      ...rows.map(([first, last, loss]) => element("tr", {}, element("th", { scope: "row", textContent: first === last ? first : `${first}–${last}` }), element("td", { textContent: loss.toFixed(4) }))),
    );
    $("chart-title").textContent = losses.length
      ? `Loss of every training step: ${short(losses[0])} at first, ${short(losses.at(-1))} at step ${losses.length}. The bold line is a running mean.`
      : "Loss of every training step";
    const train = entry.train;
    const accuracies = result?.accuracies?.map(percent);
    figures($("training-facts"), [
      ["Speed", result?.losses.length ? `${digits(result.losses.length / Math.max(result.seconds, 1e-9))} steps/s` : "–", result?.threads ? this.model.provider === "webgpu" ? "by WebGPU" : `${plural(result.threads, "thread")} of WebAssembly` : ""],
      ["Your samples right", accuracies ? accuracies[1] : "–", accuracies ? `${accuracies[0]} before` : ""],
      ["WebAssembly heap", result?.heapBytes ? bytes(result.heapBytes) : "–", "all of onnxruntime, at its largest"],
      ...(result?.pageBytes ? [["Page in all", bytes(result.pageBytes), "as the browser measures it"]] : []),
      ["Predicted memory", bytes(train?.predicted_memory_bytes), train ? `of a step of ${train.batch_size}${train.onnx_peak_bytes ? `; onnxruntime's peak was ${bytes(train.onnx_peak_bytes)}` : ""}` : ""],
      ["Downloaded", bytes(this.model.downloadedBytes), "graphs and parameters of this tier"],
      ["Upload", train && !train.no_update ? bytes(this.uploadBytes) : "–", "parameters of an update"],
    ]);
  }

  async reset() {
    await this.model.reset();
    this.losses = [];
    this.result = null;
    this.showRun();
    this.enable();
    $("train").focus();
    say("The model is again the one that came with the bundle.");
    await this.after();
  }

  async download() {
    const { bytes: content } = await this.model.update();
    const name = `update-round${this.model.manifest.round}-tier${this.model.entry.label}-${this.model.client}.safetensors`;
    save(name, [content]);
    say(`${name}: ${bytes(content.length)}, handed to the browser's downloads.`);
  }
}
