// The client: reads a bundle, infers, trains, and writes the update for the server. Here is no page and no Node.

export { Bundle, type Files, readBundle } from "./bundle.js";
export { readSamples, samplesOf } from "./data.js";
export { readArray, readTable } from "./table.js";
export { BudgetError, ClientError, InputError, UntrustedError } from "./problems.js";
export { checkFresh } from "./rounds.js";
export { infer } from "./run.js";
export { type DeviceKey, type State, enrolment, readState, stateBytes, update } from "./state.js";
export { train } from "./train.js";
export type { Store } from "./progress.js";
export type { OnStep, Settings } from "./settings.js";
export { type Samples, Trainer } from "./trainer.js";
export { type Claim, type Pins, checkOwner, checkPinned, claimed, pin, pinned, publicKey } from "./trust.js";
export type { Host, Value, Values } from "./values.js";
