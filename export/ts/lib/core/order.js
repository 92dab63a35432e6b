// The order of a training: which samples each step takes, by generators whose place is part of a state.
import { InputError } from "./problems.js";
import { Random } from "./random.js";
const PLACE = /^\d{1,4000} \d{1,18}( [0-9a-f]{1,32}(:[0-9a-f]{1,8})?){3}$/;
const DAMAGED = "its order of samples is damaged: train again";
/**
 * The draws of a training: the samples of each step, its graph, and the samples that it mirrors, by a generator each. `place` is text, from
 * which `move` continues, also within an epoch and with another size of batches.
 */
export class Order {
    samples;
    size;
    seed;
    shuffle;
    generators;
    indices = [];
    taken = 0;
    epoch; // the first generator before this epoch
    constructor(samples, size, seed, shuffle = true) {
        this.samples = samples;
        this.size = size;
        this.seed = seed;
        this.shuffle = shuffle;
        this.generators = [new Random([seed, 0]), new Random([seed, 1]), new Random([seed, 2])];
        this.epoch = this.generators[0].spot;
    }
    /** Return the indices of the next samples, shuffled in every epoch; the last batch of an epoch may be smaller. */
    batch() {
        if (this.taken === 0 || this.taken === this.samples) {
            this.epoch = this.generators[0].spot;
            this.taken = 0;
            this.indices = this.permutation();
        }
        const found = this.indices.slice(this.taken, this.taken + this.size);
        this.taken += found.length;
        return found;
    }
    permutation() {
        return this.shuffle ? this.generators[0].permutation(this.samples) : Array.from({ length: this.samples }, (_, i) => i);
    }
    /** Return the number of the next step's graph, of so many. */
    graph(count) {
        return Math.floor(this.generators[1].fraction() * count);
    }
    /** Return whether the next sample is mirrored. */
    mirrored() {
        return this.generators[2].below(2) === 1;
    }
    /** Return the seed, the samples taken of this epoch, and each generator: the first as it was before the epoch. */
    place() {
        return [this.seed, this.taken, this.epoch, this.generators[1].spot, this.generators[2].spot].join(" ");
    }
    /** Continue at a `place`; InputError, which begins with `where`, if it is none of this order. */
    move(place, where) {
        const [seed, taken, ...spots] = parts(place, where);
        if (seed !== String(this.seed) || Number(taken) > this.samples)
            throw new InputError(`${where}: ${DAMAGED}`);
        [this.epoch, this.taken] = [spots[0] ?? "", Number(taken)];
        this.generators.forEach((generator, i) => (generator.spot = spots[i] ?? ""));
        if (this.taken)
            this.indices = this.permutation();
    }
}
/** Return the words of a place, the seed first; InputError, which begins with `where`, if it is none. */
export function parts(place, where) {
    if (!PLACE.test(place))
        throw new InputError(`${where}: ${DAMAGED}`);
    return place.split(" ");
}
