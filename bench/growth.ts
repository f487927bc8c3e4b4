/**
 * How a long run grows in Postgres, and how fast a fresh process takes it up again (bench/README.md).
 *
 *   npm run bench:growth -- --turns 50,107,650
 */
import { parseArgs } from "node:util";
import { checkGrowth } from "./src/growth-checks.ts";
import { measureLength, type Length } from "./src/growth-length.ts";
import { growthReport } from "./src/growth-report.ts";
import { machine, findMarkers } from "./src/markdown.ts";
import { openServer } from "./src/server.ts";

const { values: flags } = parseArgs({
  options: {
    turns: { type: "string", default: "50,52,107,200,450,650,2000,10000" },
    postgres: { type: "string" },
    write: { type: "boolean", default: false },
  },
});
const turns = flags.turns.split(",").map(Number);
if (turns.some((n) => !Number.isInteger(n) || n < 1)) throw new Error(`--turns ${flags.turns}: give whole numbers from 1, as in --turns 50,107,650`);

const place = flags.write ? await findMarkers("scaling.md", "growth-table") : undefined;
const server = await openServer(flags.postgres ?? process.env["DATABASE_URL"]);
try {
  const lengths: Length[] = [];
  for (const n of turns) {
    const length = await measureLength(server, n);
    console.log(`  ${n} turns in ${(length.grownMs / 1_000).toFixed(1)} s, resumed in ${length.resumeMs.toFixed(0)} ms`);
    lengths.push(length);
  }
  const checks = checkGrowth(lengths);
  const about = `${new Date().toISOString().slice(0, 10)}, ${machine()}, Postgres ${server.version}. Command: \`npm run bench:growth\`.`;
  const report = growthReport(lengths, checks, about);
  console.log(`\n${report}\n`);
  await place?.write(report);
  const failed = checks.filter((check) => !check.passed);
  if (failed.length > 0) {
    console.error(`${failed.length} bound${failed.length === 1 ? " does" : "s do"} not hold`);
    process.exitCode = 1;
  }
} finally {
  await server.stop();
}
