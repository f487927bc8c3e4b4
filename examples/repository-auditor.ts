/** An auditor of a repository: a child per folder, at most three at a time, and one report of what all have found. */
import { readdir, readFile, writeFile } from "node:fs/promises";
import { join, resolve, sep } from "node:path";
import { agent, createCapstan, tool } from "../src/index.ts"; // in your project: from "capstan"
import { z } from "zod";

const root = resolve(process.argv[2] ?? ".");
const model = process.env["CAPSTAN_MODEL"] ?? "anthropic:claude-sonnet-5";

/** A model chooses these paths: none leads out of the repository. */
function inside(path: string): string {
  const full = resolve(root, path);
  if (full !== root && !full.startsWith(root + sep)) throw new Error(`${path} is outside of the repository`);
  return full;
}

const list = tool({
  name: "list_folder",
  description: "Names the files and folders in a folder.",
  input: z.object({ path: z.string() }),
  effect: "read",
  execute: async ({ path }) => (await readdir(inside(path), { withFileTypes: true })).map((entry) => (entry.isDirectory() ? `${entry.name}/` : entry.name)).toSorted(),
});
const read = tool({
  name: "read_file",
  description: "Gives a file's text.",
  input: z.object({ path: z.string() }),
  effect: "read",
  execute: ({ path }) => readFile(inside(path), "utf8"),
});
const report = tool({
  name: "write_report",
  description: "Writes the report.",
  input: z.object({ markdown: z.string() }),
  effect: "idempotent", // twice is the same file
  execute: async ({ markdown }) => {
    await writeFile(join(root, "AUDIT.md"), markdown);
    return "written to AUDIT.md";
  },
});

const reader = agent({
  name: "folder-reader",
  model,
  instructions: "Read the folder you are given, file by file, and tell what somebody should mend.",
  tools: [list, read],
  input: z.object({ folder: z.string() }),
  output: z.object({ findings: z.array(z.string()) }), // what the parent gets is of this shape, or an error
});
const auditor = agent({
  name: "repository-auditor",
  model,
  instructions: "List the repository, have a folder-reader read each folder, all in one call, then write a report and say in a line what it says.",
  tools: [list, report],
  spawn: { agents: ["folder-reader"], concurrency: 3 },
  compaction: { enabled: true }, // children inherit it, field by field
});

const capstan = createCapstan({ agents: [auditor, reader] }); // reads DATABASE_URL
await capstan.migrate();
await capstan.startWorker();

const run = await capstan.enqueue(auditor, "Audit the repository.");
console.log(await run.result());
await capstan.close();
