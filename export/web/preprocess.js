// From pixels or characters to what a network takes, as the manifest's `preprocessing` says.

/** What kind of input a bundle takes: "image", "text", or "file" where the page cannot make one itself. */
export function inputKind(manifest) {
  const shape = manifest.input_shape;
  if (manifest.preprocessing.alphabet || manifest.preprocessing.words) return "text";
  if (manifest.preprocessing.differences) return "file"; // its channels are no colours
  return manifest.input_dtype === "float32" && shape.length === 3 && (shape[0] === 1 || shape[0] === 3) ? "image" : "file";
}

/** The rules to choose from: one, or one per domain of a mix of data sets. */
export function rules(manifest) {
  const domains = manifest.preprocessing.domains;
  return domains ? Object.entries(domains).map(([name, rule]) => ({ name, ...rule })) : [{ name: "", ...manifest.preprocessing }];
}

/** Return the share of each source pixel in each of `size` pixels that cover `have`: [first, weights] of each. */
function shares(have, size) {
  return Array.from({ length: size }, (_, i) => {
    const [low, high] = [(i * have) / size, ((i + 1) * have) / size];
    const first = Math.floor(low);
    const count = Math.max(1, Math.ceil(high - 1e-9) - first);
    const weights = Array.from({ length: count }, (_, k) => (Math.min(high, first + k + 1) - Math.max(low, first + k)) / (high - low));
    return [first, weights];
  });
}

/** Average one plane of `width` × `height` to `toWidth` × `toHeight`, each new pixel over the area that it covers. */
export function resized(plane, width, height, toWidth, toHeight) {
  const across = shares(width, toWidth);
  const down = shares(height, toHeight);
  const narrow = new Float32Array(toWidth * height);
  for (let row = 0; row < height; row++) {
    across.forEach(([first, weights], x) => {
      let sum = 0;
      for (let k = 0; k < weights.length; k++) sum += weights[k] * plane[row * width + first + k];
      narrow[row * toWidth + x] = sum;
    });
  }
  const small = new Float32Array(toWidth * toHeight);
  down.forEach(([first, weights], y) => {
    for (let x = 0; x < toWidth; x++) {
      let sum = 0;
      for (let k = 0; k < weights.length; k++) sum += weights[k] * narrow[(first + k) * toWidth + x];
      small[y * toWidth + x] = sum;
    }
  });
  return small;
}

/** Return RGBA pixels (0 to 255) as planes of light, 0 to 1: [channels][height · width], at the size that the network takes. */
export function planes(image, shape, inverted = false) {
  const [channels, height, width] = shape;
  const pixels = image.width * image.height;
  const weights = channels === 3 ? [[1, 0, 0], [0, 1, 0], [0, 0, 1]] : [[0.299, 0.587, 0.114]];
  return weights.map(([red, green, blue]) => {
    const plane = new Float32Array(pixels);
    for (let i = 0; i < pixels; i++) {
      const [r, g, b] = [image.data[4 * i], image.data[4 * i + 1], image.data[4 * i + 2]];
      const light = (red * r + green * g + blue * b) / 255;
      plane[i] = inverted ? 1 - light : light;
    }
    return resized(plane, image.width, image.height, width, height);
  });
}

/** Return one sample from planes of light: `pixel · scale` of a raw pixel is its light, so what is left is (light − mean) / std. */
export function normalised(lights, rule) {
  const of = (value, channel, otherwise) => (Array.isArray(value) ? value[channel] : (value ?? otherwise));
  const size = lights[0].length;
  const x = new Float32Array(lights.length * size);
  lights.forEach((plane, channel) => {
    const [mean, std] = [of(rule.mean, channel, 0), of(rule.std, channel, 1)];
    for (let i = 0; i < size; i++) x[channel * size + i] = (plane[i] - mean) / std;
  });
  return x;
}

/** Return the last `length` known words of `text` as their places in `words`, from 1; 0 pads in front. */
function wordIds(text, words, length) {
  const found = text.replace(/<[^>]*>/g, " ").toLowerCase().match(/[\p{L}\p{N}]+(?:'[\p{L}\p{N}]+)*/gu) ?? [];
  const ids = found.map((word) => words.indexOf(word) + 1).filter(Boolean).slice(-length);
  return BigInt64Array.from([...Array(length - ids.length).fill(0), ...ids], BigInt);
}

/** Return the last window of `text` as places in the alphabet: what is outside of it and white space are one space, spaces lead. */
export function encoded(text, manifest) {
  const { alphabet, words, window } = manifest.preprocessing;
  if (words) return wordIds(text, words, window ?? manifest.input_shape[0]);
  const length = window ?? manifest.input_shape[0];
  const space = Math.max(0, alphabet.indexOf(" "));
  const ids = [];
  for (const character of text) {
    const id = /\s/.test(character) ? space : alphabet.indexOf(character);
    const plain = id < 0 ? space : id;
    if (plain !== space || (ids.length && ids.at(-1) !== space)) ids.push(plain);
  }
  const x = new BigInt64Array(length).fill(BigInt(space));
  const last = ids.slice(-length);
  last.forEach((id, i) => (x[length - last.length + i] = BigInt(id)));
  return x;
}

/** Return the indices of the `count` largest logits with their probabilities. */
export function ranked(logits, count) {
  const largest = Math.max(...logits);
  const powers = Array.from(logits, (value) => Math.exp(value - largest));
  const total = powers.reduce((sum, value) => sum + value, 0);
  const order = powers.map((value, label) => ({ label, probability: value / total }));
  return order.sort((a, b) => b.probability - a.probability).slice(0, count);
}
