/**
 * What compaction keeps, and that a very long run stays small (bench/README.md).
 *
 *   npm run bench:compaction -- --parts retention
 */
import { parseArgs } from "node:util";
import { GENERATIONS, stories, summarizers, WINDOW_TOKENS } from "./src/compaction/cast.ts";
import { checkLongRun, longRunReport } from "./src/compaction/long-run-report.ts";
import { measureLongRun } from "./src/compaction/long-run-measure.ts";
import { gate, retentionReport } from "./src/compaction/retention-report.ts";
import { measureRetention, newRetention, type Retention } from "./src/compaction/retention.ts";
import { findMarkers, machine } from "./src/markdown.ts";
import { openServer } from "./src/server.ts";

const { values: flags } = parseArgs({
  options: {
    /** retention,long */
    parts: { type: "string", default: "retention,long" },
    /** Turns of the long run. */
    turns: { type: "string", default: "10000" },
    /** Chains of recordings, and generated transcripts. */
    recorded: { type: "string", default: "8" },
    generated: { type: "string", default: "8" },
    postgres: { type: "string" },
    gate: { type: "boolean", default: false },
    write: { type: "boolean", default: false },
  },
});
const parts = flags.parts.split(",");
const turns = wholeNumber("--turns", flags.turns, 10);
const places = flags.write ? { retention: await findMarkers("compaction.md", "retention-table"), long: await findMarkers("compaction.md", "long-run-table") } : undefined;
const day = new Date().toISOString().slice(0, 10);
const failures: string[] = [];

if (parts.includes("retention")) {
  const told = stories({ recorded: wholeNumber("--recorded", flags.recorded, 0), chained: 6, generated: wholeNumber("--generated", flags.generated, 0) });
  const results: Retention[] = [];
  for (const by of summarizers()) {
    const result = newRetention(by.name);
    for (const story of told) await measureRetention(story, by, GENERATIONS, result);
    console.log(`  ${by.name}: ${result.compactions} compactions, ${result.problems.length} problems`);
    results.push(result);
  }
  const recorded = told.filter(({ name }) => name.startsWith("recorded")).length;
  const about = `${day}, Node ${process.versions.node}. Command: \`npm run bench:compaction\`. ${recorded} chains of six recorded conversations and ${told.length - recorded} generated transcripts, ${GENERATIONS} chained compactions each, ${told.reduce((sum, { needles }) => sum + needles.length, 0)} needles; a window of ${WINDOW_TOKENS.toLocaleString("en-US")} tokens where no other is named. After each compaction the view is checked against the rules of four vendors' protocols and compared with a fold that begins at the marker.`;
  const text = [about, retentionReport(results)].join("\n\n");
  console.log(`\n${text}\n`);
  await places?.retention.write(text);
  failures.push(...gate(results).failures);
}

if (parts.includes("long")) {
  const server = await openServer(flags.postgres ?? process.env["DATABASE_URL"]);
  try {
    const measured = await measureLongRun(server, turns);
    const checks = checkLongRun(measured);
    const text = longRunReport(measured, checks, `${day}, ${machine()}, Postgres ${server.version}. Command: \`npm run bench:compaction\`.`);
    console.log(`\n${text}\n`);
    await places?.long.write(text);
    failures.push(...checks.filter(({ passed }) => !passed).map(({ name, asked, measured: found }) => `${name}: asked ${asked}, measured ${found}`));
  } finally {
    await server.stop();
  }
}

if (failures.length > 0) {
  console.error(`${failures.length} do${failures.length === 1 ? "es" : ""} not hold:\n  ${failures.slice(0, 40).join("\n  ")}`);
  if (flags.gate) process.exitCode = 1;
}

function wholeNumber(name: string, text: string, min: number): number {
  const value = Number(text);
  if (!Number.isInteger(value) || value < min) throw new Error(`${name} ${text}: give a whole number from ${min}`);
  return value;
}
