/**
 * The draws of a training: the samples of each step, its graph, and the samples that it mirrors, by a generator each. `place` is text, from
 * which `move` continues, also within an epoch and with another size of batches.
 */
export declare class Order {
    private readonly samples;
    private readonly size;
    private readonly seed;
    private readonly shuffle;
    private readonly generators;
    private indices;
    private taken;
    private epoch;
    constructor(samples: number, size: number, seed: number | bigint, shuffle?: boolean);
    /** Return the indices of the next samples, shuffled in every epoch; the last batch of an epoch may be smaller. */
    batch(): number[];
    private permutation;
    /** Return the number of the next step's graph, of so many. */
    graph(count: number): number;
    /** Return whether the next sample is mirrored. */
    mirrored(): boolean;
    /** Return the seed, the samples taken of this epoch, and each generator: the first as it was before the epoch. */
    place(): string;
    /** Continue at a `place`; InputError, which begins with `where`, if it is none of this order. */
    move(place: string, where: string): void;
}
/** Return the words of a place, the seed first; InputError, which begins with `where`, if it is none. */
export declare function parts(place: string, where: string): string[];
