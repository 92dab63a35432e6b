// Which samples each step trains, in an order that a seed decides.

/** A small generator of numbers in [0, 1) (mulberry32): the same seed gives the same batches everywhere. */
export function seeded(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t = (t + Math.imul(t ^ (t >>> 7), t | 61)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

/** Yield the indices of batch after batch without end: every sample once per epoch, the last batch of one may be smaller. */
export function* batches(count, size, random, shuffled = true) {
  const order = Array.from({ length: count }, (_, i) => i);
  for (;;) {
    for (let i = count - 1; shuffled && i > 0; i--) {
      const j = Math.floor(random() * (i + 1));
      [order[i], order[j]] = [order[j], order[i]];
    }
    for (let start = 0; start < count; start += size) yield order.slice(start, start + size);
  }
}
