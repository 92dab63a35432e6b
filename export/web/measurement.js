// Measures this device with all tiers of a bundle, as rows of steps.csv for `edgefl calibrate --from`.

import { Model } from "./model.js";

export const COLUMNS = [
  "network", "method", "tier", "batch", "phase", "seconds", "sustained_seconds", "low_seconds", "high_seconds", "repeats", "input", "classes", "optimizer", "macs",
];

export class Measurement {
  /** Models are loaded into a worker of their own, which ends afterwards: the page's model stays as it is. */
  constructor(bundle, provider = "wasm") {
    Object.assign(this, { manifest: bundle.manifest, stopped: false });
    this.model = new Model(bundle, provider);
  }

  /**
   * Return one row per tier, phase and batch, with the keys of COLUMNS. All rows together take about `seconds`, and half of that to warm up;
   * `minutes` of load come before a second measurement, unless 0. `onRows(rows)` is called after each row, `onLoad(minute)` after each minute of load.
   */
  async run({ seconds = 20, minutes = 0, onRows = () => {}, onLoad = () => {} } = {}) {
    const awake = await navigator.wakeLock?.request("screen").catch(() => null);
    try {
      const rows = [];
      await this.every(seconds, (row) => {
        rows.push(row);
        onRows(rows);
      });
      if (!minutes) return rows;
      await this.prepare(this.manifest.tiers[0]);
      onLoad(0);
      await this.model.engine.call("sustain", { seconds: 60 * minutes }, ({ minute }) => onLoad(minute));
      await this.every(seconds, ({ tier, phase, batch, seconds: after }) => {
        const row = rows.find((one) => one.tier === tier && one.phase === phase && one.batch === batch);
        row.sustained_seconds = after;
        onRows(rows);
      });
      return rows;
    } finally {
      this.model.engine.close("The measurement has ended.");
      await awake?.release().catch(() => {});
    }
  }

  async every(seconds, onRow) {
    const { model: network, method, tiers, input_shape: shape, classes } = this.manifest;
    for (const tier of tiers) {
      await this.prepare(tier);
      const about = { network, method, tier: tier.label, input: shape.join("x"), classes, sustained_seconds: null };
      await this.model.engine.call("measure", { seconds: seconds / (4 * tiers.length) }, (row) => {
        onRow({ ...about, optimizer: row.phase === "step" ? tier.train.optimizer : null, ...row });
      });
    }
  }

  async prepare(tier) {
    await this.model.choose(tier.label);
    if (tier.train) await this.model.prepare();
  }

  /** End the measurement at once; `run` then throws. */
  stop() {
    this.stopped = true;
    this.model.engine.close("The measurement was stopped.");
  }
}

/** Return the rows as the text of a CSV file. */
export function toCsv(rows) {
  const cell = (value) => {
    const text = value === null ? "" : typeof value === "number" && !Number.isInteger(value) ? String(Number(value.toPrecision(6))) : String(value);
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [COLUMNS.join(","), ...rows.map((row) => COLUMNS.map((column) => cell(row[column])).join(",")), ""].join("\n");
}
