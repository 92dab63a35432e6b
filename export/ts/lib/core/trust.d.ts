import type { Host } from "./values.js";
/** Where this device keeps the keys that it trusts. */
export interface Pins {
    /** Return the stored text, null without one. */
    read(): Promise<string | null>;
    write(text: string): Promise<void>;
    /** What messages call the place. */
    readonly where: string;
}
/** Return the 32 bytes of an Ed25519 public key, from PEM or raw bytes; null if there is none. */
export declare function publicKey(content: Uint8Array): Uint8Array<ArrayBuffer> | null;
/** Return the keys that this device trusts; InputError if what is stored is damaged. */
export declare function pinned(pins: Pins): Promise<string[]>;
/** Trust the publisher with this key from now on. */
export declare function pin(pins: Pins, key: string): Promise<void>;
/** What a bundle says about its publisher: contents of manifest.sig and manifest.pub, null if missing; `where` is as in Files. */
export interface Claim {
    readonly where: (path?: string) => string;
    readonly signature: Uint8Array<ArrayBuffer> | null;
    readonly pem: Uint8Array<ArrayBuffer> | null;
}
/** Return the text of the key that the bundle says it was signed with; an error unless it was. */
export declare function claimed(host: Host, manifest: Uint8Array<ArrayBuffer>, claim: Claim): Promise<string>;
/** Throw unless the owner of `key` signed the manifest; `from` is what messages call the key. */
export declare function checkOwner(host: Host, manifest: Uint8Array<ArrayBuffer>, claim: Claim, key: Uint8Array<ArrayBuffer>, from: string): Promise<void>;
/** Return the key that signed the bundle once this device trusts it, and whether it has been pinned just now, being the first. */
export declare function checkPinned(host: Host, manifest: Uint8Array<ArrayBuffer>, claim: Claim, pins: Pins): Promise<{
    key: string;
    first: boolean;
}>;
/** Return a name of a device or client; InputError if it is none. */
export declare function clientName(name: string): string;
