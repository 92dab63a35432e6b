// Plays cases in one process: an order is a line of JSON, and so is its answer. Usage: node node_cases.mjs FOLDER_OF_THE_CLIENT

import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const lib = pathToFileURL(`${process.argv[2]}/lib/`);
const [{ run }, { parsed }, { failed }] = await Promise.all(
  ["node/commands.js", "node/arguments.js", "core/problems.js"].map((name) => import(new URL(name, lib))),
);

for await (const line of createInterface({ input: process.stdin })) {
  const { args, config } = JSON.parse(line);
  process.env.XDG_CONFIG_HOME = config;
  let [status, output, errors, fault] = [0, "", "", ""];
  try {
    await run(parsed(args), { out: (text) => (output += text), error: (text) => (errors += text), watch: () => {} });
  } catch (problem) {
    status = failed(problem, (text) => (errors += text));
    if (problem instanceof TypeError || problem instanceof ReferenceError) fault = String(problem.stack);
  }
  process.stdout.write(`${JSON.stringify({ status, output, errors, fault })}\n`);
}
