// The sections Input, Result and Training set: from a drawing, an image, text or files to samples, answers and labelled samples.

import { $, element, guarded, percent, plural, say } from "./dom.js";
import { Pad } from "./pad.js";
import { encoded, inputKind, normalised, planes, ranked, rules } from "./preprocess.js";
import { imageSample, readImage, readSamples } from "./samples.js";

const SHOWN = 5;

export class InputView {
  constructor(model, samples) {
    Object.assign(this, { model, samples, manifest: model.manifest, current: null, picture: null });
    this.kind = inputKind(this.manifest);
    for (const kind of ["image", "text", "file"]) $(`${kind}-input`).hidden = kind !== this.kind;
    $("many-images").hidden = this.kind !== "image";
    for (const list of ["label", "many-label"]) {
      const classes = this.manifest.class_names.map((name, value) => element("option", { value, textContent: name }));
      $(list).replaceChildren(element("option", { value: "", textContent: "Choose …" }), ...classes); // nobody adds a wrong answer unasked
    }
    $("label").addEventListener("change", () => this.enableAdd());
    if (this.kind === "image") this.startImages();
    if (this.kind === "text") this.startText();
    $("add").addEventListener("click", guarded(() => this.add()));
    $("undo").addEventListener("click", () => this.removeLast());
    $("empty").addEventListener("click", () => this.removeAll());
    $("many").addEventListener("change", guarded(() => this.addImages([...$("many").files])));
    $("samples").addEventListener("change", guarded(() => this.addFile($("samples").files[0])));
    this.showSet();
  }

  get rule() {
    return rules(this.manifest)[$("domain").selectedIndex] ?? rules(this.manifest)[0];
  }

  startImages() {
    const [, height, width] = this.manifest.input_shape;
    Object.assign($("seen"), { width, height });
    const choices = rules(this.manifest);
    $("domain-row").hidden = choices.length < 2;
    $("domain").replaceChildren(...choices.map(({ name }) => element("option", { textContent: name })));
    this.pad = new Pad($("pad"), Math.min(28, Math.max(height, width)), guarded(() => this.drawn()), (text) => ($("pad-place").textContent = text));
    $("clear").addEventListener("click", () => this.clear());
    $("fit").addEventListener("change", guarded(() => (this.picture || this.pad.empty ? null : this.drawn())));
    $("upload").addEventListener("change", guarded(() => this.uploaded($("upload").files[0])));
    for (const id of ["invert", "domain"]) $(id).addEventListener("change", guarded(() => this.again()));
    this.see(null);
  }

  startText() {
    const length = this.manifest.preprocessing.window ?? this.manifest.input_shape[0];
    $("text-help").textContent = `The last ${length} characters count; white space and characters that the model does not know are spaces.`;
    $("text").addEventListener("input", guarded(() => this.classify(encoded($("text").value, this.manifest))));
  }

  clear() {
    this.pad.clear();
    $("upload").value = "";
    this.picture = null;
    this.see(null);
    this.current = null;
    this.showAnswer(null);
  }

  drawn() {
    this.picture = null;
    $("upload").value = "";
    return this.pixels(this.pad.pixels($("fit").checked), false);
  }

  async uploaded(file) {
    if (!file) return;
    this.picture = await readImage(file, this.manifest.input_shape);
    this.pad.clear();
    await this.again();
  }

  /** The same picture with other settings. */
  again() {
    if (this.picture) return this.pixels(this.picture, $("invert").checked);
    return this.pad.empty ? null : this.drawn();
  }

  pixels(image, inverted) {
    const lights = planes(image, this.manifest.input_shape, inverted);
    this.see(lights);
    return this.classify(normalised(lights, this.rule));
  }

  /** Show the planes of light that the network sees. */
  see(lights) {
    const { width, height } = $("seen");
    const pixels = new Uint8ClampedArray(4 * width * height);
    for (let i = 0; i < width * height; i++) {
      for (let c = 0; c < 3; c++) pixels[4 * i + c] = lights ? 255 * (lights[c] ?? lights[0])[i] : 0;
      pixels[4 * i + 3] = 255;
    }
    $("seen").getContext("2d").putImageData(new ImageData(pixels, width, height), 0, 0);
  }

  /** Classify the sample `x`; of several in a row only the last is answered. */
  async classify(x = this.current) {
    if (!x || !this.model.entry) return;
    this.current = x;
    const [logits] = await this.model.predict(x);
    if (this.current === x) this.showAnswer(logits);
  }

  enableAdd() {
    $("add").disabled = !this.answered || !$("label").value;
  }

  showAnswer(logits) {
    this.answered = Boolean(logits);
    $("label").value = "";
    this.enableAdd();
    const all = logits ? ranked(logits, logits.length) : [];
    const [rows, rest] = [all.slice(0, SHOWN), all.slice(SHOWN)];
    const names = this.manifest.class_names;
    const others = rest.reduce((sum, { probability }) => sum + probability, 0);
    $("others").textContent = rest.length ? `${plural(rest.length, "other class", "other classes")}: ${percent(others)} together` : "";
    $("answer").textContent = logits ? `Most likely: ${names[rows[0].label]}, ${percent(rows[0].probability)}` : "Nothing to classify yet.";
    $("bars").replaceChildren(
      ...rows.map(({ label, probability }) => {
        const bar = element("i", { ariaHidden: "true" });
        bar.style.width = `${100 * probability}%`;
        return element("li", {}, bar, element("span", { textContent: names[label] }), element("span", { textContent: percent(probability) }));
      }),
    );
  }

  add() {
    const label = Number($("label").value);
    this.samples.add(this.current, label);
    this.showSet();
    $("label").value = "";
    $("label").focus(); // a disabled button cannot keep the focus
    this.enableAdd();
    say(`Added as ${this.manifest.class_names[label]}: ${plural(this.samples.length, "sample")} in the training set.`);
  }

  async addImages(files) {
    if (!$("many-label").value) {
      $("many").value = "";
      throw new Error("Class of the images: nothing chosen, expected one; choose it, then the files.");
    }
    const label = Number($("many-label").value);
    const inverted = $("invert").checked;
    const made = await Promise.all(files.map((file) => imageSample(file, this.manifest, this.rule, inverted)));
    for (const x of made) this.samples.add(x, label);
    this.added(made.length, $("many"));
  }

  async addFile(file) {
    if (!file) return;
    const made = await readSamples(file, this.manifest, this.rule);
    for (const { x, label } of made) this.samples.add(x, label);
    this.added(made.length, $("samples"));
    if (this.kind === "file") await this.classify(made.at(-1).x);
  }

  added(number, field) {
    field.value = "";
    this.showSet();
    say(`Added ${plural(number, "sample")}: ${this.samples.length.toLocaleString("en")} in the training set.`);
  }

  removeLast() {
    const label = this.samples.removeLast();
    this.showSet();
    say(`Removed the last sample, a ${this.manifest.class_names[label]}.`);
  }

  removeAll() {
    this.samples.clear();
    this.showSet();
    say("The training set is empty.");
  }

  showSet() {
    const { length } = this.samples;
    $("undo").disabled = $("empty").disabled = !length;
    $("set-summary").textContent = length
      ? `${plural(length, "sample")}, kept on this page only.`
      : "No samples yet: add what you drew with its right answer, or many at once.";
    const counts = this.samples.counts().map((count, label) => [this.manifest.class_names[label], count]);
    $("counts").replaceChildren(...counts.filter(([, n]) => n).map(([name, n]) => element("li", { textContent: `${name}: ${n}` })));
  }
}
