// Texts as bytes: UTF-8, base64 and hexadecimal digits. Not every engine of JavaScript has functions for them.
const DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
/** Return the UTF-8 bytes of a text. */
export function encoded(text) {
    const bytes = [];
    for (const character of text) {
        const code = character.codePointAt(0) ?? 0;
        const point = code >= 0xd800 && code < 0xe000 ? 0xfffd : code;
        if (point < 0x80)
            bytes.push(point);
        else if (point < 0x800)
            bytes.push(0xc0 | (point >> 6), 0x80 | (point & 63));
        else if (point < 0x10000)
            bytes.push(0xe0 | (point >> 12), 0x80 | ((point >> 6) & 63), 0x80 | (point & 63));
        else
            bytes.push(0xf0 | (point >> 18), 0x80 | ((point >> 12) & 63), 0x80 | ((point >> 6) & 63), 0x80 | (point & 63));
    }
    return Uint8Array.from(bytes);
}
/** Return the text of UTF-8 bytes; what is not UTF-8 becomes U+FFFD, or with `strict` an Error. */
export function decoded(bytes, strict = false) {
    const parts = [];
    let points = [];
    for (let at = 0; at < bytes.length;) {
        const [point, length] = pointAt(bytes, at);
        if (point < 0 && strict)
            throw new Error(`not UTF-8 at byte ${at}`);
        points.push(point < 0 ? 0xfffd : point);
        at += length;
        if (points.length === 4096) {
            parts.push(String.fromCodePoint(...points));
            points = [];
        }
    }
    return parts.join("") + String.fromCodePoint(...points);
}
/** Return the code point at a byte and its length; -1 where there is none. */
function pointAt(bytes, at) {
    const lead = bytes[at] ?? 0;
    if (lead < 0x80)
        return [lead, 1];
    const more = lead >= 0xc2 && lead < 0xe0 ? 1 : lead >= 0xe0 && lead < 0xf0 ? 2 : lead >= 0xf0 && lead < 0xf5 ? 3 : 0;
    let point = lead & (0x3f >> more);
    for (let k = 1; k <= more; k++) {
        const next = bytes[at + k] ?? 0;
        if ((next & 0xc0) !== 0x80)
            return [-1, k];
        point = (point << 6) | (next & 63);
    }
    const least = [0, 0x80, 0x800, 0x10000][more] ?? 0;
    const sound = more > 0 && point >= least && point < 0x110000 && !(point >= 0xd800 && point < 0xe000);
    return [sound ? point : -1, more + 1];
}
/** Return the base64 of bytes. */
export function base64(bytes) {
    let text = "";
    for (let at = 0; at < bytes.length; at += 3) {
        const three = ((bytes[at] ?? 0) << 16) | ((bytes[at + 1] ?? 0) << 8) | (bytes[at + 2] ?? 0);
        const four = [18, 12, 6, 0].map((shift) => DIGITS[(three >> shift) & 63]).join("");
        text += four.slice(0, Math.min(3, bytes.length - at) + 1).padEnd(4, "=");
    }
    return text;
}
/** Return the bytes of a base64 text, null if it is none. */
export function fromBase64(text) {
    if (text.length % 4 || !/^[A-Za-z0-9+/]*={0,2}$/.test(text))
        return null;
    const digits = text.replace(/=+$/, "");
    const bytes = new Uint8Array(Math.floor((digits.length * 3) / 4));
    for (let at = 0, bits = 0, held = 0, end = 0; at < digits.length; at++) {
        held = ((held << 6) | DIGITS.indexOf(digits[at] ?? "")) & 0xffff;
        bits += 6;
        if (bits >= 8)
            bytes[end++] = held >> (bits -= 8);
    }
    return bytes;
}
/** Return bytes as hexadecimal digits. */
export function hex(bytes) {
    return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
/** Return names in the order of their UTF-8 bytes. */
export function byBytes(names) {
    return Array.from(names, (name) => [hex(encoded(name)), name]).sort(([a], [b]) => (a < b ? -1 : 1)).map(([, name]) => name);
}
