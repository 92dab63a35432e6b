// Files on this computer: bundles, the keys that this device trusts, and its own key.
import { createPrivateKey, createPublicKey, generateKeyPairSync, sign } from "node:crypto";
import { closeSync, existsSync, fsyncSync, linkSync, lstatSync, mkdirSync, openSync, readFileSync, renameSync, rmSync, statSync, writeSync } from "node:fs";
import { homedir } from "node:os";
import { basename, dirname, isAbsolute, join } from "node:path";
import { getSystemErrorMap } from "node:util";
import { InputError, firstLine } from "../core/problems.js";
import { base64 } from "../core/text.js";
/** Return the system's words for an error. */
export function reason(error) {
    const { errno } = error;
    const text = errno === undefined ? undefined : getSystemErrorMap().get(errno)?.[1];
    return text ? `${text[0]?.toUpperCase()}${text.slice(1)}` : firstLine(error);
}
/** Return a file's content; InputError that ends with `expected` if it cannot be read. */
export function contentOf(path, expected) {
    try {
        const facts = statSync(path); // a pipe would let the reader wait, and a device has no end
        if (!facts.isFile() && !facts.isDirectory())
            throw new Error("not a regular file");
        return Uint8Array.from(readFileSync(path));
    }
    catch (error) {
        throw new InputError(`${path}: ${reason(error)}; ${expected}`);
    }
}
/** Return the files of the bundle in a folder. */
export function bundleFiles(folder) {
    const where = (path = "") => (path ? `${folder}/${path}` : folder);
    return {
        where,
        source: (path) => join(folder, path),
        read: async (path, bytes) => {
            if (bytes === undefined)
                return contentOf(where(path), "expected a folder that edgefl export wrote");
            const parts = path.split("/");
            const plain = parts.every((_, n) => !lstatSync(join(folder, ...parts.slice(0, n + 1)), { throwIfNoEntry: false })?.isSymbolicLink());
            const facts = statSync(where(path), { throwIfNoEntry: false });
            if (!plain || !facts?.isFile())
                throw new InputError(`${where(path)}: missing, or a link; get the bundle again`);
            if (facts.size !== bytes)
                throw new InputError(`${where(path)}: changed: ${facts.size} bytes, expected ${bytes}; get the bundle again`);
            return contentOf(where(path), "get the bundle again");
        },
    };
}
/** Return what the bundle in a folder says about its publisher. */
export function claimOf(folder) {
    const part = (name) => (statSync(join(folder, name), { throwIfNoEntry: false })?.isFile() ? contentOf(join(folder, name), "get the bundle again") : null);
    return { where: bundleFiles(folder).where, signature: part("manifest.sig"), pem: part("manifest.pub") };
}
/** Return the folder of this user for keys, which the Python client uses too: `edgefl` in $XDG_CONFIG_HOME or ~/.config. */
export function configFolder() {
    const base = process.env.XDG_CONFIG_HOME ?? "";
    return join(isAbsolute(base) ? base : join(homedir(), ".config"), "edgefl");
}
/** Where the keys of publishers are that this device trusts. */
export const filePins = () => stored("trusted.json");
/** Where the highest round of each publisher and line is. */
export const fileRounds = () => stored("rounds.json");
function stored(name) {
    const where = join(configFolder(), name);
    return {
        where,
        read: async () => (existsSync(where) ? readFileSync(where, "utf8") : null),
        write: async (text) => {
            mkdirSync(dirname(where), { recursive: true });
            write(where, Buffer.from(text));
        },
    };
}
/** Write a file, whole or not at all. */
export function write(path, content) {
    if (existsSync(path) && !statSync(path).isFile()) {
        throw new InputError(`${path}: is no file, but a folder or a device, which would be replaced; give another --out`);
    }
    try {
        renameSync(temporary(path, content, 0o666), path);
    }
    catch (error) {
        throw new InputError(`${path}: cannot be written (${reason(error)}); give another --out`);
    }
}
/** Return the key in a PEM file; InputError if there is none, or others may read it. */
export function deviceKey(path) {
    const content = contentOf(path, "expected this device's key, which enroll makes");
    let key;
    try {
        key = createPrivateKey({ key: Buffer.from(content), format: "pem" });
        if (key.asymmetricKeyType !== "ed25519")
            throw new Error("another kind of key");
    }
    catch (error) {
        throw new InputError(`${path}: not an Ed25519 private key without a passphrase, PEM (${firstLine(error)})`);
    }
    if (process.platform !== "win32" && statSync(path).mode & 0o077) {
        throw new InputError(`${path}: others may read or change this private key: chmod 600 ${path}`);
    }
    const spki = createPublicKey(key).export({ format: "der", type: "spki" });
    return { public: base64(spki.subarray(12)), sign: async (text) => base64(sign(null, text, key)) };
}
/** Return the key in a PEM file, which is made if there is none; only its owner may read it. */
export function madeKey(path) {
    if (!existsSync(path)) {
        const { privateKey } = generateKeyPairSync("ed25519");
        try {
            mkdirSync(dirname(path), { recursive: true });
            const made = temporary(path, Buffer.from(privateKey.export({ format: "pem", type: "pkcs8" })), 0o600);
            try {
                linkSync(made, path); // unlike a rename, it never replaces a file
            }
            catch (error) {
                if (error.code !== "EEXIST")
                    throw error;
            }
            finally {
                rmSync(made, { force: true });
            }
        }
        catch (error) {
            throw new InputError(`${path}: cannot be written (${reason(error)})`);
        }
    }
    return deviceKey(path);
}
/** Write a new file beside `path` and return its name. */
function temporary(path, content, mode) {
    const name = join(dirname(path), `.${basename(path)}.${process.pid}.${Math.random().toString(36).slice(2)}`);
    const file = openSync(name, "wx", mode);
    try {
        writeSync(file, content);
        fsyncSync(file);
    }
    catch (error) {
        rmSync(name, { force: true });
        throw error;
    }
    finally {
        closeSync(file);
    }
    return name;
}
