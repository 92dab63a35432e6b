import type { InferenceSession } from "onnxruntime-common";
import type { Bundle, Training } from "./bundle.js";
import { type Store } from "./progress.js";
import { type OnStep, type Run, type Settings } from "./settings.js";
import { type State } from "./state.js";
import { type Value, type Values } from "./values.js";
/** Labelled samples: `x`, or `x.NAME` for each of several inputs, and `y`; the first dimension counts samples. */
export type Samples = Values;
export declare class Trainer {
    readonly bundle: Bundle;
    readonly label: string;
    readonly table: Training;
    readonly sessions: readonly InferenceSession[];
    private readonly held;
    private readonly now;
    private readonly objective;
    private readonly said;
    private readonly expires;
    /** Inputs of the graphs that stay from step to step. */
    values: Values;
    steps: number;
    private travelled;
    private samples;
    private labels;
    private place;
    private content;
    private note;
    private before;
    private problem;
    private constructor();
    /** Load a tier's training graphs. A `state` of an earlier round has the personal tensors; one of the same bundle is trained further. */
    static create(bundle: Bundle, label: string, state?: State | null): Promise<Trainer>;
    /** Back to the tensors that training began with. */
    reset(): void;
    /**
     * Train for `steps` steps, or whole epochs. With the seed and the samples of the training before, it continues to the same bits as one
     * training; `state` notes what differs. With a `store`, an interrupted training continues after the last step that was stored.
     */
    run(data: Samples, how: Settings, steps?: number, onStep?: OnStep, store?: Store | null): Promise<Run>;
    private count;
    /** Return the order of the samples, and whether it continues that of the training before, which had `had`; `note` says why it does not. */
    private ordered;
    /** Return a hash of what is trained, and how. */
    private keyOf;
    /** Set what all steps of a run read: rates, the classes in `y`, and the seed of dropout, unless that `continues`. */
    begin(y: Value, how: Required<Settings>, continues?: boolean): void;
    /** Run one step of a graph on a batch and return its loss; if that, or a tensor, is not finite, nothing changes. */
    step(batch: Samples, number: number): Promise<number>;
    /** Return a batch: the samples `indices`, of which images are mirrored for which `mirrored()` is true. */
    batch(data: Samples, indices: readonly number[], mirrored?: () => boolean): Samples;
    /** Refuse a limit that weights, optimizer state and a batch exceed. onnxruntime's own memory cannot be limited here. */
    private checkMemory;
    /** Return all that steps change, the optimizer's state included, as a state or progress has it. */
    changing(): [string, Value][];
    /** Continue from what `changing` returned; InputError, which begins with `where`, if it is of other graphs. */
    restore(values: Values, where: string): void;
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
