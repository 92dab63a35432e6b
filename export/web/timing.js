// Times training steps and inference of one tier. No page and no network here; the clock comes from outside.

import { run } from "./core/run.js";
import { rows } from "./core/values.js";

const SHORTEST_S = 0.02; // browsers round their clock, to 0.1 ms if the page is not isolated
const LEAST = 5;
const seconds = () => performance.now() / 1000;

/**
 * Return the seconds of at least five repeats of `run`, in ascending order; a short `run` is called several times per repeat.
 * A warm-up of half of `lasting` seconds comes first, because browsers compile WebAssembly again, and faster, while it runs.
 */
export async function spread(run, lasting, clock = seconds) {
  const repeat = async (times) => {
    const begun = clock();
    for (let i = 0; i < times; i++) await run();
    return clock() - begun;
  };
  const begun = clock();
  do await run();
  while (clock() - begun < lasting / 2);
  let times = 1;
  while ((await repeat(times)) < SHORTEST_S) times *= 2;
  const found = [];
  const started = clock();
  while (found.length < LEAST || clock() - started < lasting) found.push((await repeat(times)) / times);
  return found.sort((a, b) => a - b);
}

/** Return the median of sorted numbers. */
export function median(sorted) {
  const [low, high] = [sorted[Math.floor((sorted.length - 1) / 2)], sorted[Math.floor(sorted.length / 2)]];
  return (low + high) / 2;
}

/**
 * Yield what is timed of a tier: {phase, batch, macs, times, run}; `run` does `times` steps or inferences, one per training graph.
 * The inputs are the tier's reference samples, repeated. The learning rate is 0: the work is the same, and weights stay finite.
 * A smaller batch that a graph does not take is left out.
 */
export async function* cases(bundle, { entry, forward, trainer, samples }) {
  const { costs = {}, train } = entry;
  const size = (train ?? entry).batch_size;
  const given = samples.get("x");
  if (trainer) {
    const sampleMacs = costs.macs_drawn ?? costs.macs_forward + costs.macs_backward;
    for (const batch of new Set([size, Math.max(1, size >> 2)])) {
      const data = new Map([["x", repeated(given, batch)], ["y", classes(bundle.manifest.classes, batch)]]);
      trainer.begin(data.get("y"), { lr: 0, momentum: train.momentum, everyClass: true, seed: 0 });
      const steps = async () => {
        for (const number of trainer.sessions.keys()) {
          const loss = await trainer.step(data, number);
          if (!Number.isFinite(loss)) throw new Error(`tier ${entry.label}: the loss of a step of ${batch} samples is ${loss}, expected a finite number`);
        }
      };
      try {
        await steps();
      } catch (error) {
        if (batch === size) throw error;
        continue;
      }
      yield { phase: "step", batch, macs: whole(batch * sampleMacs + costs.macs_compose), times: trainer.sessions.length, run: steps };
    }
  }
  for (const batch of new Set([size, 1])) {
    const data = new Map([["x", repeated(given, batch)]]);
    yield { phase: "forward", batch, macs: whole(batch * (costs.macs_inference ?? costs.macs_forward)), times: 1, run: () => run(bundle, forward, data) };
  }
}

const whole = (count) => (Number.isInteger(count) ? count : null);

/** Return a batch of the samples, repeated. */
const repeated = (samples, batch) => rows(samples, Array.from({ length: batch }, (_, i) => i % samples.dims[0]));

/** Return the classes in turn. */
const classes = (count, batch) => ({ type: "int64", dims: [batch], data: BigInt64Array.from({ length: batch }, (_, i) => BigInt(i % count)) });
