// The command line. A second process does the work: this one ends it when a graph takes too long, because onnxruntime cannot always be
// interrupted, and on Linux limits its memory. Both matter where somebody else has made the graph.

import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import type { Readable } from "node:stream";
import { fileURLToPath } from "node:url";
import { InputError, failed, printable } from "./core/problems.js";
import { type Given, USAGE, parsed } from "./node/arguments.js";

const [LEAST_BYTES, PER_BYTE] = [4 * 2 ** 30, 8];
const HERE = fileURLToPath(import.meta.url);
const WORKING = "EDGEFL_CLIENT_WORKS";

/** Do what the command line says in this process; return the exit status. */
async function work(given: Given): Promise<number> {
  const [{ run }, { tell }] = [await import("./node/commands.js"), await import("./node/host.js")];
  const out = (text: string): void => void process.stdout.write(text);
  const error = (text: string): void => void process.stderr.write(text);
  try {
    await run(given, { out, error, watch: tell });
    return 0;
  } catch (problem) {
    return failed(problem, error);
  }
}

/** Let a second process do it, and return its exit status: 3 if a graph took too long. */
async function watched(given: Given, args: string[]): Promise<number> {
  const environment = { ...process.env, [WORKING]: "1" };
  const [command, ...rest] = limited(given, [process.execPath, HERE, ...args]);
  const child = spawn(command ?? "", rest, { stdio: ["inherit", "inherit", "inherit", "pipe"], env: environment });
  let timer: NodeJS.Timeout | undefined;
  let late = false;
  createInterface({ input: child.stdio[3] as Readable }).on("line", (line) => {
    clearTimeout(timer);
    const what = JSON.parse(line) as string | null;
    if (what === null) return;
    timer = setTimeout(() => {
      late = true;
      process.stderr.write(`Error: ${printable(what)} took more than ${given.timeout} s; --timeout allows more, if you trust the bundle\n`);
      child.kill("SIGKILL");
    }, 1000 * given.timeout);
  });
  for (const signal of ["SIGINT", "SIGTERM"] as const) process.on(signal, () => child.kill(signal));
  const [code, signal] = await new Promise<[number | null, string | null]>((resolve, reject) => {
    child.on("close", (...ended) => resolve(ended));
    child.on("error", reject);
  });
  clearTimeout(timer);
  if (late) return 3;
  const asked = ({ SIGINT: 130, SIGTERM: 143 } as Record<string, number>)[signal ?? ""];
  if (asked) process.stderr.write("Interrupted: nothing was written.\n");
  else if (code === null) process.stderr.write(`Error: the client ended with ${signal}: a graph needs more memory than allowed, or onnxruntime failed\n`);
  return code ?? asked ?? 1;
}

/** Return the command with a limit of memory: 4 GiB, and eight times the bundle. Only Linux limits what a process writes to. */
function limited(given: Given, command: string[]): string[] {
  if (process.platform !== "linux" || (given.command !== "infer" && given.command !== "train")) return command;
  let bytes = 0;
  try {
    const { files } = JSON.parse(readFileSync(join(given.bundle, "manifest.json"), "utf8")) as { files: Record<string, { bytes: number }> };
    for (const entry of Object.values(files)) bytes += Number(entry.bytes);
  } catch {
    // the other process says what is wrong
  }
  const kilobytes = Math.floor((LEAST_BYTES + PER_BYTE * (Number.isSafeInteger(bytes) && bytes > 0 ? bytes : 0)) / 1024);
  return ["/bin/sh", "-c", 'ulimit -d "$0" 2>/dev/null; exec "$@"', String(kilobytes), ...command];
}

/** End this process when its output cannot be written: without a word if the reader of a pipe has gone, which is no error. */
function unwritten(error: NodeJS.ErrnoException): never {
  if (error.code !== "EPIPE") process.stderr.write(`Error: standard output: ${error.message}\n`);
  process.exit(error.code === "EPIPE" ? 0 : 2);
}

async function main(args: string[]): Promise<number> {
  if (args.length === 0 || args.includes("--help") || args.includes("-h")) {
    (args.length ? process.stdout : process.stderr).write(USAGE);
    return args.length ? 0 : 2;
  }
  let given;
  try {
    given = parsed(args);
  } catch (error) {
    if (!(error instanceof InputError)) throw error;
    return failed(error, (text) => process.stderr.write(text));
  }
  return process.env[WORKING] ? work(given) : watched(given, args);
}

process.stdout.on("error", unwritten);
process.exitCode = await main(process.argv.slice(2));
