// What may be wrong with a bundle.

/** Something is wrong with the bundle; the message says what, and is for the person. */
export class BundleProblem extends Error {}
