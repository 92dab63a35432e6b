// The client: reads a bundle, infers, trains, and writes the update for the server. Here is no page and no Node.
export { Bundle, readBundle } from "./bundle.js";
export { readSamples, samplesOf } from "./data.js";
export { readArray, readTable } from "./table.js";
export { BudgetError, ClientError, InputError, UntrustedError } from "./problems.js";
export { checkFresh } from "./rounds.js";
export { infer } from "./run.js";
export { enrolment, readState, stateBytes, update } from "./state.js";
export { train } from "./train.js";
export { Trainer } from "./trainer.js";
export { checkOwner, checkPinned, claimed, pin, pinned, publicKey } from "./trust.js";
