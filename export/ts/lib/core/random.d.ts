export declare class Random {
    private state;
    private readonly increment;
    private left;
    /** The generator `numpy.random.default_rng(seeds)`; seeds are whole numbers from 0. */
    constructor(seeds: readonly (number | bigint)[]);
    /** Where it is, as hexadecimal digits: its state, and after a colon the half of a number that is left for the next draw. */
    get spot(): string;
    set spot(place: string);
    private advance;
    private next32;
    private next64;
    /** Return a number from 0 to below 1. */
    fraction(): number;
    /** Return a whole number from 0 to below `end`, of at most 2³², by Lemire's method as NumPy has it. */
    below(end: number): number;
    /** Return a whole number from 0 to `most`, of at most 2³² − 1: as NumPy shuffles, by dropping numbers that are too large. */
    private upTo;
    /** Return the numbers from 0 to below `count` in random order. */
    permutation(count: number): number[];
}
