// The page: opens the bundle beside it, joins its parts, and gives tests and the console `window.edgefl`.

import { openBundle } from "./bundle.js";
import { UntrustedError } from "./core/problems.js";
import { $, bytes, count, element, guarded, percent, plural, problem, say } from "./dom.js";
import { DeviceView } from "./device-view.js";
import { InputView } from "./input-view.js";
import { MeasureView } from "./measure-view.js";
import { Model } from "./model.js";
import { storeBundle, storePage } from "./offline.js";
import { Samples } from "./samples.js";
import { figures, TrainingView } from "./training-view.js";
import { distrust, trust } from "./trust.js";

// In a bundle that carries this page as client/web, the bundle is two folders up.
const base = new URL(import.meta.url.endsWith("/client/web/app.js") ? "../../" : "./bundle/", import.meta.url).href;

async function start() {
  const worker = storePage();
  const bundle = await opened();
  const { manifest } = bundle;
  const model = new Model(bundle);
  const samples = new Samples(manifest);
  const input = new InputView(model, samples);
  const training = new TrainingView(model, samples, () => input.classify());
  const measure = new MeasureView(bundle, training);
  const device = new DeviceView();
  await device.show();
  describe(manifest, bundle.signer);
  $("tier").replaceChildren(
    ...manifest.tiers.map(({ label, device }) => element("option", { value: label, textContent: device ? `${label} – ${device}` : label })),
  );
  const choose = async (label) => {
    say(`Loading tier ${label} …`);
    $("tier").disabled = true;
    try {
      const loaded = await model.choose(label);
      showTier(model, manifest, loaded);
      training.show();
      say(`Tier ${label} is ready: its outputs agree with its reference to ${loaded.maxAbsError.toExponential(0)}.`);
      await input.classify();
    } finally {
      $("tier").disabled = false;
      if (model.entry) $("tier").value = model.entry.label;
    }
  };
  $("tier").addEventListener("change", guarded(() => choose($("tier").value)));
  const compute = async (provider) => {
    say(`Loading onnxruntime for ${provider === "webgpu" ? "the graphics processor" : "the processor"} …`);
    $("provider").disabled = true;
    try {
      const loaded = await model.computeWith(provider);
      showTier(model, manifest, loaded);
      training.show();
      say(`Tier ${model.entry.label} computes on the ${provider === "webgpu" ? "graphics processor" : "processor"}: it agrees with its reference to ${loaded.maxAbsError.toExponential(0)}.`);
      await input.classify();
    } finally {
      $("provider").value = model.provider;
      training.enable();
    }
  };
  $("provider").addEventListener("change", guarded(() => compute($("provider").value)));
  window.edgefl = api(model, samples, choose, compute, input, measure, device);
  await choose(smallest(manifest.tiers));
  window.edgefl.graphics = hasGraphics().then((found) => !($("provider-row").hidden = !found)); // it takes seconds where the graphics are slow to start
  await worker;
  storeBundle(bundle);
}

/** Open the bundle; where its publisher is not trusted, the person decides. */
async function opened() {
  let unchecked = false;
  for (;;) {
    try {
      return await openBundle(base, unchecked);
    } catch (error) {
      if (!(error instanceof UntrustedError)) throw error;
      unchecked = !(await decided(error));
    }
  }
}

/** Ask whether to trust the publisher (true, from now on) or to open the bundle once all the same (false). */
async function decided(error) {
  problem(distrust(error));
  say("The bundle is not open.");
  $("untrusted").hidden = false;
  $("trust").hidden = !error.key;
  const trusted = await new Promise((resolve) => {
    $("trust").addEventListener("click", () => resolve(true), { once: true });
    $("open-once").addEventListener("click", () => resolve(false), { once: true });
  });
  $("untrusted").hidden = true;
  problem(null);
  if (trusted) await trust(error.key);
  return trusted;
}

/** Return whether this browser gives a page the graphics processor. */
async function hasGraphics() {
  try {
    return Boolean(await navigator.gpu?.requestAdapter());
  } catch {
    return false;
  }
}

/** The tier that a page starts with: the smallest that can be trained, or the smallest of all. */
function smallest(tiers) {
  const trainable = tiers.filter((tier) => tier.train);
  return (trainable.length ? trainable : tiers).reduce((least, tier) => (tier.params < least.params ? tier : least)).label;
}

function describe(manifest, signer) {
  const { model, dataset, method, round, edgefl_version: version } = manifest;
  $("title").textContent = `${model} on this device`;
  document.title = `${model} – edgefl`;
  const facts = { "data set": dataset, method, round, classes: manifest.classes, edgefl: version, bundle: manifest.manifest_sha256.slice(0, 12), "signed by": signer ?? "not checked" };
  $("facts").replaceChildren(
    ...Object.entries(facts).map(([term, value]) => element("div", {}, element("dt", { textContent: term }), element("dd", { textContent: value }))),
  );
}

/** Return the accuracy in percent, or the value of a `metric` of the user's own loss. */
function measured(value, metric) {
  return value === null ? "–" : metric ? String(Number(value.toPrecision(4))) : percent(value);
}

function showTier({ entry, provider }, manifest, loaded) {
  const { budget = {}, train } = entry;
  figures($("tier-facts"), [
    ["Sized for", entry.device ?? "no device", budget.memory_bytes ? `${bytes(budget.memory_bytes)} of memory` : ""],
    ["Parameters", count(entry.params), entry.form],
    [manifest.metric ?? "Accuracy", measured(entry.accuracy_onnx, manifest.metric), "of held-out samples, when exported"],
    ["Inference graph", bytes(manifest.files[entry.forward].bytes), "with its weights"],
    ["Training graph", train ? bytes(train.graphs.reduce((sum, path) => sum + manifest.files[path].bytes, 0)) : "none", train ? train.optimizer : ""],
  ]);
  const threads = `${plural(loaded.threads, "thread")}${crossOriginIsolated ? "" : ": this page is not isolated, so there are no more"}`;
  $("runtime").textContent = `onnxruntime-web on ${provider === "webgpu" ? "the graphics processor" : threads}.`;
}

/** What tests and the console use; values are plain numbers and arrays. */
function api(model, samples, choose, compute, input, measure, device) {
  return {
    model,
    samples,
    choose,
    /** wasm or webgpu: compute there from now on, with the parameters of the bundle. */
    compute,
    input,
    manifest: model.manifest,
    /** Logits of one sample or several. */
    predict: (x) => model.predict(x).then((rows) => rows.map((row) => Array.from(row))),
    /** {x, y, steps | epochs, lr, momentum, batchSize, seed, shuffle} → {losses, stopped, diverged, …}. */
    train: (options) => model.train(options),
    /** The update as the bytes of a safetensors file. */
    update: () => model.update().then(({ bytes: content }) => Array.from(content)),
    /** The request to enrol this device under `name`: JSON; updates are signed from then on. */
    enrol: (name) => device.enrol(name),
    reset: () => model.reset(),
    check: () => model.check(),
    /** {seconds, minutes} → the rows of steps.csv. */
    measure: (options) => measure.measure(options),
  };
}

start().catch((error) => {
  say("");
  problem(error);
});
