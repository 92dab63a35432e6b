import type { Bundle } from "./bundle.js";
import type { Pins } from "./trust.js";
/** Store the round of a bundle that `publisher` signed; an error if the device has met a later round of its line, or it has expired. */
export declare function checkFresh(bundle: Bundle, publisher: string, rounds: Pins, now?: Date): Promise<void>;
