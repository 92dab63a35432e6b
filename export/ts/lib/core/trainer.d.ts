import type { InferenceSession } from "onnxruntime-common";
import type { Bundle, Training } from "./bundle.js";
import { type Table } from "./checks.js";
import { type State } from "./state.js";
import { type Value, type Values } from "./values.js";
/** Labelled samples: `x`, or `x.NAME` for each of several inputs, and `y`; the first dimension counts samples. */
export type Samples = Values;
/** Settings of training. Undefined: the manifest's value. A limit of 0: no limit. */
export interface Settings {
    epochs?: number | undefined;
    batchSize?: number | undefined;
    lr?: number | undefined;
    momentum?: number | undefined;
    maxSteps?: number | undefined;
    maxSeconds?: number | undefined;
    memoryBytes?: number | undefined;
    seed?: number | bigint | undefined;
    /** False keeps the order of the samples. */
    shuffle?: boolean | undefined;
    /** The number of a graph, instead of drawing one for each step. */
    graph?: number | undefined;
    /** True counts every class as present. */
    everyClass?: boolean | undefined;
    augment?: string | undefined;
}
/** What training came to; `diverged`: a further step computed NaN or infinity, and the last sound tensors are kept. */
export interface Run {
    losses: number[];
    seconds: number;
    stopped: boolean;
    diverged: boolean;
    /** Which step diverged, and what it computed; empty if none did. */
    problem: string;
}
/** Return settings with the values of a tier's entry where they have none. */
export declare function settled(how: Settings, entry: Table, table: Training): Required<Settings>;
/** Yield the indices of each step's samples without end, shuffled in every epoch; the last batch of an epoch may be smaller. */
export declare function batches(samples: number, size: number, seed: number | bigint, shuffle?: boolean): Generator<number[]>;
export declare class Trainer {
    readonly bundle: Bundle;
    readonly label: string;
    readonly table: Training;
    readonly sessions: readonly InferenceSession[];
    private readonly held;
    private readonly objective;
    private readonly said;
    /** Inputs of the graphs that stay from step to step. */
    values: Values;
    steps: number;
    private travelled;
    private samples;
    private labels;
    private before;
    private problem;
    private constructor();
    /** Load a tier's training graphs. A `state` of an earlier round has the personal tensors; one of the same bundle is trained further. */
    static create(bundle: Bundle, label: string, state?: State | null): Promise<Trainer>;
    /** Back to the tensors that training began with. */
    reset(): void;
    /** Train for `steps` steps, or whole epochs. `onStep(done, loss)` is awaited after each step; false stops. */
    run(data: Samples, how: Settings, steps?: number, onStep?: (done: number, loss: number) => Promise<boolean | void>): Promise<Run>;
    /** Take back the last step of this run, if there is one. */
    private undo;
    /** Set what all steps of a run read: rates, the classes in `y`, and the seed of dropout. */
    begin(y: Value, how: Required<Settings>): void;
    /** Run one step of a graph on a batch and return its loss; if that, or a tensor, is not finite, nothing changes. */
    step(batch: Samples, number: number): Promise<number>;
    /** Return a batch: the samples `indices`, of which images are mirrored for which `mirrored()` is true. */
    batch(data: Samples, indices: readonly number[], mirrored?: () => boolean): Samples;
    /** Refuse a limit that weights, optimizer state and a batch exceed. onnxruntime's own memory cannot be limited here. */
    private checkMemory;
    /** Return a function that brings back the trainer as it is now. */
    kept(): () => void;
    /**
     * Return how far the tensors are from those that a training `reference` has after its steps, every k-th value of each: 1 is as far as a
     * device may be, a thousandth of the largest and 1e-5. Adam makes a whole step of a gradient that is only rounding.
     */
    apart(reference: Values): number;
    /** Return the state after training, which stays on the device; `client` is the name in updates; empty: that of the state before, or a random one. */
    state(client: string, { losses, seconds }?: Pick<Run, "losses" | "seconds">): State;
    release(): Promise<void>;
}
