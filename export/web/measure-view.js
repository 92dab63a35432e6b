// The section Measure this device: one button, a table, and the CSV file.

import { $, digits, element, guarded, plural, say, save, setting } from "./dom.js";
import { Measurement, toCsv } from "./measurement.js";

const NAMES = { step: "training", forward: "inference" };

export class MeasureView {
  constructor(bundle, training) {
    Object.assign(this, { bundle, training, rows: [], measurement: null });
    $("measuring").addEventListener("submit", (event) => {
      event.preventDefault();
      guarded(() => this.measure(), $("measure"))();
    });
    $("measure-stop").addEventListener("click", () => this.measurement?.stop());
    $("measure-download").addEventListener("click", () => save("steps.csv", [toCsv(this.rows)], "text/csv"));
  }

  /** Measure, show the rows, and return them. */
  async measure({ seconds = 20, minutes = setting("load-minutes") } = {}) {
    if (this.measurement || this.training.running) throw new Error("This device is busy: measure it afterwards.");
    this.measurement = new Measurement(this.bundle, this.training.model.provider);
    this.rows = [];
    this.show();
    this.enable();
    $("measure-stop").focus();
    say("Measuring: leave this page open and in front …");
    const onRows = (rows) => {
      this.rows = rows;
      this.show();
    };
    const onLoad = (minute) => say(`Under load: ${minute} of ${plural(minutes, "minute")} …`);
    try {
      await this.measurement.run({ seconds, minutes, onRows, onLoad });
      say(`Measured: ${plural(this.rows.length, "row")}. Nothing was sent; download steps.csv to use them.`);
      return this.rows;
    } catch (error) {
      if (!this.measurement.stopped) throw error;
      say(`Stopped after ${plural(this.rows.length, "row")}.`);
      return this.rows;
    } finally {
      this.measurement = null;
      const beside = document.activeElement === document.body || document.activeElement === $("measure-stop");
      this.enable();
      if (beside) $(this.rows.length ? "measure-download" : "measure").focus();
    }
  }

  enable() {
    const busy = Boolean(this.measurement);
    $("load-minutes").disabled = busy;
    $("measure-stop").disabled = !busy;
    $("measure-download").disabled = busy || !this.rows.length;
    this.training.measuring = busy;
    this.training.enable();
  }

  show() {
    $("measure-table").hidden = !this.rows.length;
    $("measure-table").classList.toggle("once", this.rows.every((row) => row.sustained_seconds === null));
    $("measure-rows").replaceChildren(
      ...this.rows.map((row) => {
        const { seconds, sustained_seconds: after, low_seconds: low, high_seconds: high } = row;
        const loaded = element("td", { className: "load", textContent: after === null ? "–" : duration([after]) });
        const cells = [NAMES[row.phase], row.batch, duration([seconds]), loaded, duration([low, high]), row.repeats];
        const made = cells.map((cell) => (cell instanceof Node ? cell : element("td", { textContent: cell })));
        return element("tr", {}, element("th", { scope: "row", textContent: row.tier }), ...made);
      }),
    );
  }
}

/** Return one figure of seconds, or a range of two, with a unit and three digits. */
function duration(figures) {
  const [factor, unit] = figures[0] < 1e-3 ? [1e6, "µs"] : figures[0] < 1 ? [1e3, "ms"] : [1, "s"];
  return `${figures.map((seconds) => digits(seconds * factor)).join("–")} ${unit}`;
}
