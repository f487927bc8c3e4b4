/**
 * Whether a full pool of summaries slows turns down (bench/README.md).
 *
 *   npm run bench:saturation -- --runs 10 --turns 30 --rounds 1
 */
import { parseArgs } from "node:util";
import { inChild } from "./src/child.ts";
import type { Saturation, SaturationRequest, Side } from "./src/compaction/saturation-cell.ts";
import { findMarkers, machine, table } from "./src/markdown.ts";
import { dropDatabase, freshDatabase, openServer } from "./src/server.ts";
import { quantile, show } from "./src/statistics.ts";

const { values: flags } = parseArgs({
  options: {
    runs: { type: "string", default: "20" },
    turns: { type: "string", default: "60" },
    rounds: { type: "string", default: "4" },
    "model-ms": { type: "string", default: "100" },
    "summary-ms": { type: "string", default: "3000" },
    postgres: { type: "string" },
    gate: { type: "boolean", default: false },
    write: { type: "boolean", default: false },
  },
});
const GOAL = 1.1;
/** Below this the pool was not full, and the ratio says nothing. */
const SATURATED = 0.9;
const DATABASE = "bench_saturation";

const place = flags.write ? await findMarkers("compaction.md", "saturation-table") : undefined;
const server = await openServer(flags.postgres ?? process.env["DATABASE_URL"]);
try {
  const url = await freshDatabase(server.url, DATABASE);
  const request: SaturationRequest = {
    url,
    runs: Number(flags.runs),
    turns: Number(flags.turns),
    rounds: Number(flags.rounds),
    modelMs: Number(flags["model-ms"]),
    summaryMs: Number(flags["summary-ms"]),
  };
  const outcome = await inChild<Saturation>(new URL("./src/compaction/saturation-cell.ts", import.meta.url), request, { killAfterMs: 1_800_000 });
  await dropDatabase(server.url, DATABASE);
  if (!outcome.ok) throw new Error(`the saturation cell failed: ${outcome.error}`);
  const { off, on, saturatedShare, meanOpenTasks, applied, waited } = outcome.value;
  const p99 = (side: Side): number => quantile(side.turnMs, 0.99);
  const ratio = p99(on) / p99(off);
  const row = (name: string, side: Side): string[] => [
    name,
    side.turnMs.length.toLocaleString("en-US"),
    ...[0.5, 0.99].flatMap((q) => [show(quantile(side.turnMs, q)), show(quantile(side.engineMs, q))]),
  ];
  const text = [
    `${new Date().toISOString().slice(0, 10)}, ${machine()}, Postgres ${server.version}. Command: \`npm run bench:saturation\`.`,
    `${request.runs} runs at once of ${request.turns} turns, model calls of ${request.modelMs} ms (± half), ${request.rounds} rounds of both, in turns; summaries of ${request.summaryMs} ms on 2 slots in the same process. With compaction a task waited for a slot in ${show(saturatedShare * 100)} % of looks, ${show(meanOpenTasks)} tasks were open on average, ${applied} summaries were put in, ${waited} runs had to wait for one.`,
    "",
    table(["", "turns", "turn p50 ms", "engine p50 ms", "turn p99 ms", "engine p99 ms"], [row("compaction off", off), row("compaction on, pool full", on)]),
    "",
    `Turn p99 with compaction over without: **${ratio.toFixed(3)}** (asked: ≤ ${GOAL}).`,
  ].join("\n");
  console.log(`\n${text}\n`);
  await place?.write(text);
  const problems = [
    ...(ratio <= GOAL ? [] : [`the ratio is ${ratio.toFixed(3)}`]),
    ...(saturatedShare >= SATURATED ? [] : [`the pool was full in ${show(saturatedShare * 100)} % of looks only: use more runs or slower summaries`]),
    ...(waited === 0 ? [] : [`${waited} runs reached the hard line`]),
  ];
  for (const problem of problems) console.error(problem);
  if (flags.gate && problems.length > 0) process.exitCode = 1;
} finally {
  await server.stop();
}
