// NumPy's default generator: PCG64 (O'Neill 2014), seeded by SeedSequence. The same seed gives the same order of samples as the Python client.

const [M64, M128] = [(1n << 64n) - 1n, (1n << 128n) - 1n];
const MULTIPLIER = 0x2360ed051fc65da44385df649fccf645n;
const POOL = 4;

/** Return `count` 64-bit words made of the words of `entropy`, as NumPy's SeedSequence makes them. */
function seedWords(entropy: readonly number[], count: number): bigint[] {
  let constant = 0x43b0d7e5;
  const hashed = (value: number): number => {
    value ^= constant;
    constant = Math.imul(constant, 0x931e8875);
    value = Math.imul(value, constant);
    return (value ^ (value >>> 16)) >>> 0;
  };
  const mixed = (x: number, y: number): number => {
    const result = (Math.imul(0xca01f9dd, x) - Math.imul(0x4973f715, y)) | 0;
    return (result ^ (result >>> 16)) >>> 0;
  };
  const pool = Array.from({ length: POOL }, (_, i) => hashed(entropy[i] ?? 0));
  const mix = (from: number, to: number): void => void (pool[to] = mixed(pool[to] ?? 0, hashed(from)));
  for (let from = 0; from < POOL; from++) for (let to = 0; to < POOL; to++) if (from !== to) mix(pool[from] ?? 0, to);
  for (const word of entropy.slice(POOL)) for (let to = 0; to < POOL; to++) mix(word, to);
  constant = 0x8b51f9dd;
  const words = Array.from({ length: 2 * count }, (_, i) => {
    let value = (pool[i % POOL] ?? 0) ^ constant;
    constant = Math.imul(constant, 0x58f38ded);
    value = Math.imul(value, constant);
    return BigInt((value ^ (value >>> 16)) >>> 0);
  });
  return Array.from({ length: count }, (_, i) => (words[2 * i] ?? 0n) | ((words[2 * i + 1] ?? 0n) << 32n));
}

export class Random {
  private state: bigint;
  private readonly increment: bigint;
  private left: number | null = null; // the upper half of the last number, which is the next one of 32 bits

  /** The generator `numpy.random.default_rng(seeds)`; seeds are whole numbers from 0. */
  constructor(seeds: readonly (number | bigint)[]) {
    const entropy = seeds.flatMap((seed) => {
      const words = [Number(BigInt(seed) & 0xffffffffn)];
      for (let rest = BigInt(seed) >> 32n; rest; rest >>= 32n) words.push(Number(rest & 0xffffffffn));
      return words;
    });
    const [a = 0n, b = 0n, c = 0n, d = 0n] = seedWords(entropy, 4);
    this.increment = ((((c << 64n) | d) << 1n) | 1n) & M128;
    this.state = 0n;
    this.advance();
    this.state = (this.state + ((a << 64n) | b)) & M128;
    this.advance();
  }

  /** Where it is, as hexadecimal digits: its state, and after a colon the half of a number that is left for the next draw. */
  get spot(): string {
    return this.state.toString(16) + (this.left === null ? "" : `:${this.left.toString(16)}`);
  }

  set spot(place: string) {
    const [state = "0", left] = place.split(":");
    this.state = BigInt(`0x${state}`) & M128;
    this.left = left === undefined ? null : parseInt(left, 16);
  }

  private advance(): void {
    this.state = (this.state * MULTIPLIER + this.increment) & M128;
  }

  private next32(): number {
    if (this.left !== null) {
      const value = this.left;
      this.left = null;
      return value;
    }
    const value = this.next64();
    this.left = Number(value >> 32n);
    return Number(value & 0xffffffffn);
  }

  private next64(): bigint {
    this.advance();
    const word = ((this.state >> 64n) ^ this.state) & M64;
    const turn = this.state >> 122n;
    return ((word >> turn) | (word << (64n - turn))) & M64;
  }

  /** Return a number from 0 to below 1. */
  fraction(): number {
    return Number(this.next64() >> 11n) / 2 ** 53;
  }

  /** Return a whole number from 0 to below `end`, of at most 2³², by Lemire's method as NumPy has it. */
  below(end: number): number {
    if (end <= 1) return 0;
    let product = BigInt(this.next32()) * BigInt(end);
    if ((product & 0xffffffffn) < BigInt(end)) {
      const threshold = BigInt((2 ** 32 - end) % end);
      while ((product & 0xffffffffn) < threshold) product = BigInt(this.next32()) * BigInt(end);
    }
    return Number(product >> 32n);
  }

  /** Return a whole number from 0 to `most`, of at most 2³² − 1: as NumPy shuffles, by dropping numbers that are too large. */
  private upTo(most: number): number {
    const unused = Math.clz32(most);
    for (;;) {
      const value = this.next32() & (0xffffffff >>> unused);
      if (value >>> 0 <= most) return value >>> 0;
    }
  }

  /** Return the numbers from 0 to below `count` in random order. */
  permutation(count: number): number[] {
    const order = Array.from({ length: count }, (_, i) => i);
    for (let i = count - 1; i > 0; i--) {
      const j = this.upTo(i);
      [order[i], order[j]] = [order[j] ?? 0, order[i] ?? 0];
    }
    return order;
  }
}
