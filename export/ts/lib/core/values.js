// Values of tensors, and what the core asks of the program around it: onnxruntime, a hash, a clock. Here is no page and no Node.
export const sizeOf = (dims) => dims.reduce((product, side) => product * side, 1);
export const float32 = (dims, data) => ({ type: "float32", dims, data: Float32Array.from(data) });
export const zeros = (dims) => ({ type: "float32", dims, data: new Float32Array(sizeOf(dims)) });
/** Return a value made of float32 values of the same shape, by entry. */
export function mapped(values, make) {
    const [first] = values;
    if (!first)
        throw new Error("no values");
    return { type: "float32", dims: first.dims, data: Float32Array.from({ length: first.data.length }, (_, i) => make(...values.map(({ data }) => Number(data[i])))) };
}
export function isFinite({ data }) {
    return !(data instanceof Float32Array || data instanceof Float64Array) || data.every(Number.isFinite);
}
/** Return the rows `indices` of a value. */
export function rows({ type, dims, data }, indices) {
    const size = sizeOf(dims.slice(1));
    const part = new data.constructor(indices.length * size);
    indices.forEach((index, i) => part.set(data.subarray(index * size, (index + 1) * size), i * size));
    return { type, dims: [indices.length, ...dims.slice(1)], data: part };
}
/** Mirror one sample in place, from left to right: its last dimension is reversed. */
export function mirror({ dims, data }, sample) {
    const [size, width] = [sizeOf(dims.slice(1)), dims.at(-1) ?? 1];
    for (let row = sample * size; row < (sample + 1) * size; row += width)
        data.subarray(row, row + width).reverse();
}
