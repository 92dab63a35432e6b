// Where this browser keeps the publishers' keys that it trusts, and what the page says about one that it does not.

import { UntrustedError } from "./core/problems.js";
import { pin } from "./core/trust.js";

const PINS = "edgefl-trusted-keys";
const ROUNDS = "edgefl-met-rounds";
const ONCE = "A bundle is code: its training graph decides what an update tells.";

/** The pinned keys in the site's storage: a list. */
export const pins = {
  where: `${PINS} in this site's data`,
  async read() {
    let text = null;
    try {
      text = localStorage.getItem(PINS);
    } catch {
      // storing a key says why
    }
    try {
      return text === null ? null : JSON.stringify({ keys: JSON.parse(text) });
    } catch {
      return text; // damaged
    }
  },
  async write(text) {
    const { keys } = JSON.parse(text);
    try {
      localStorage.setItem(PINS, JSON.stringify(keys));
    } catch (error) {
      throw new UntrustedError(`This browser stores nothing for this page (${error.message}), so it cannot remember the publisher ${keys.at(-1)}.`, null, []);
    }
  },
};

/** The highest round of each publisher and line in the site's storage. */
export const rounds = {
  where: `${ROUNDS} in this site's data`,
  async read() {
    try {
      return localStorage.getItem(ROUNDS);
    } catch {
      return null; // storing a round says why
    }
  },
  async write(text) {
    try {
      localStorage.setItem(ROUNDS, text);
    } catch (error) {
      throw new UntrustedError(`This browser stores nothing for this page (${error.message}), so it cannot remember the round of the bundle.`, null, []);
    }
  },
};

/** Trust the publisher with this key from now on. */
export const trust = (key) => pin(pins, key);

/** Return what the page says about a bundle that nobody signed whom this browser trusts. */
export function distrust(error) {
  if (error.key) return `The bundle is signed by ${error.key}, and this browser trusts ${error.trusted.join(", ")}. ${ONCE} Compare the key with what its owner says.`;
  return error.message.includes("not signed") ? `The bundle is not signed. ${ONCE} Get a signed one: edgefl export signs.` : error.message;
}
