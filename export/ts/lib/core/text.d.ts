/** Return the UTF-8 bytes of a text. */
export declare function encoded(text: string): Uint8Array<ArrayBuffer>;
/** Return the text of UTF-8 bytes; what is not UTF-8 becomes U+FFFD, or with `strict` an Error. */
export declare function decoded(bytes: Uint8Array, strict?: boolean): string;
/** Return the base64 of bytes. */
export declare function base64(bytes: Uint8Array): string;
/** Return the bytes of a base64 text, null if it is none. */
export declare function fromBase64(text: string): Uint8Array<ArrayBuffer> | null;
/** Return bytes as hexadecimal digits. */
export declare function hex(bytes: Uint8Array): string;
/** Return names in the order of their UTF-8 bytes. */
export declare function byBytes(names: Iterable<string>): string[];
