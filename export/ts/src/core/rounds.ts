// The rounds that this device has met: a bundle that is older than one before it, or that has expired, is refused.

import type { Bundle } from "./bundle.js";
import { type Table, own } from "./checks.js";
import { InputError, UntrustedError } from "./problems.js";
import { decoded } from "./text.js";
import type { Pins } from "./trust.js";

const FRESHNESS = "freshness.json";

/** What a bundle says of its age: its line of rounds, and the second after which nobody should run it, in UTC; null: no end. */
interface Freshness {
  line: string;
  expires: string | null;
}

/** Store the round of a bundle that `publisher` signed; an error if the device has met a later round of its line, or it has expired. */
export async function checkFresh(bundle: Bundle, publisher: string, rounds: Pins, now = new Date()): Promise<void> {
  const fresh = await freshness(bundle);
  if (!fresh) return;
  const remedy = "get the newest bundle; --allow-older uses this one";
  if (fresh.expires !== null && new Date(fresh.expires) < now) refuse(`${bundle.files.where()}: expired at ${fresh.expires}; ${remedy}`);
  const known = await met(rounds);
  const line = `${publisher}/${fresh.line}`;
  const before = known.get(line) ?? -1;
  const round = bundle.manifest.round as number;
  if (round < before) refuse(`${bundle.files.where()}: is of round ${round}, and this device has met round ${before} of it; ${remedy}`);
  if (round === before) return;
  known.set(line, round);
  try {
    await rounds.write(`${JSON.stringify({ rounds: Object.fromEntries(known) }, null, 2)}\n`);
  } catch (error) {
    if (error instanceof UntrustedError) throw error;
    throw new InputError(`${rounds.where}: cannot be written, to store the round of the bundle; --allow-older does not store it`);
  }
}

function refuse(message: string): never {
  throw new UntrustedError(message, null, []);
}

/** Return what a bundle says of its age, null if it says nothing; an error if that is not what it should be. */
export async function freshness(bundle: Bundle): Promise<Freshness | null> {
  if (!own(bundle.manifest.files as Table, FRESHNESS)) return null;
  const content = await bundle.content(FRESHNESS);
  try {
    const { line, expires = null } = JSON.parse(decoded(content, true)) as { line: unknown; expires?: unknown };
    const time = expires === null || (typeof expires === "string" && /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$/.test(expires) && !Number.isNaN(Date.parse(expires)));
    if (typeof line === "string" && /^[0-9a-f]{64}$/.test(line) && time) return { line, expires: expires as string | null };
  } catch {
    // as any other text
  }
  throw new InputError(`${bundle.files.where(FRESHNESS)}: expected a line of rounds, and when the bundle expires`);
}

async function met(rounds: Pins): Promise<Map<string, number>> {
  const text = await rounds.read();
  if (text === null) return new Map();
  try {
    const found = (JSON.parse(text) as { rounds: unknown }).rounds;
    const entries = typeof found === "object" && found !== null && !Array.isArray(found) ? Object.entries(found as Record<string, unknown>) : null;
    if (entries?.every(([, round]) => Number.isSafeInteger(round) && (round as number) >= 0)) return new Map(entries as [string, number][]);
  } catch {
    // as any other text
  }
  throw new InputError(`${rounds.where}: expected the rounds that this device has met; repair it, or remove it`);
}
