import type { Bundle } from "./bundle.js";
import type { Pins } from "./trust.js";
/** What a bundle says of its age: its line of rounds, and the second after which nobody should run it, in UTC; null: no end. */
interface Freshness {
    line: string;
    expires: string | null;
}
/** Store the round of a bundle that `publisher` signed; an error if the device has met a later round of its line, or it has expired. */
export declare function checkFresh(bundle: Bundle, publisher: string, rounds: Pins, now?: Date): Promise<void>;
/** Return what a bundle says of its age, null if it says nothing; an error if that is not what it should be. */
export declare function freshness(bundle: Bundle): Promise<Freshness | null>;
export {};
