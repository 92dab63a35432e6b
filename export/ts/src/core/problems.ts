// What can go wrong, with the exit status of each kind.

/** Training diverged, or onnxruntime failed; no file was written. */
export class ClientError extends Error {
  readonly exitCode: number = 1;
}

/** An input is wrong: a file, a bundle or an argument. */
export class InputError extends ClientError {
  override readonly exitCode: number = 2;
}

/** A limit of memory or time is too small: `need` and `have` are bytes or seconds. */
export class BudgetError extends ClientError {
  override readonly exitCode: number = 3;

  constructor(message: string, readonly need: number, readonly have: number) {
    super(message);
  }
}

/** Nobody whom this device trusts signed the bundle; `key` signed it, null if that is not known. */
export class UntrustedError extends InputError {
  constructor(message: string, readonly key: string | null, readonly trusted: readonly string[]) {
    super(message);
  }
}

/** Return the first line of an error's message, or its name. */
export function firstLine(error: unknown): string {
  const text = error instanceof Error ? error.message || error.name : String(error);
  return text.trim().split("\n")[0] ?? "";
}

/** Return `text` without characters that would change a terminal, such as escape codes in the name of a class. */
export function printable(text: string): string {
  return text.replace(/[^\P{C}\n\t]|[\p{Zl}\p{Zp}]/gu, "\ufffd");
}

/** Say what went wrong in one line, and return the exit status. */
export function failed(error: unknown, say: (line: string) => void): number {
  say(`Error: ${printable(error instanceof ClientError ? error.message : firstLine(error))}\n`);
  return error instanceof ClientError ? error.exitCode : 1;
}
