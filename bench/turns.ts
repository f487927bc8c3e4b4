/**
 * What a turn costs beyond its model call, ours and peers side by side (bench/README.md).
 *
 *   npm run bench:turns -- --quick --only ours,gw
 */
import { parseArgs } from "node:util";
import { engines, pickEngines, type EngineName } from "./src/engines/index.ts";
import { checkGoals } from "./src/goals.ts";
import { ensurePeers } from "./src/install-peers.ts";
import { machine, findMarkers } from "./src/markdown.ts";
import { runCell, type CellPlan } from "./src/run-cell.ts";
import { commitFloor, openServer } from "./src/server.ts";
import { Results } from "./src/turn-results.ts";
import { goalTable, latencyTable, slowTable, throughputTable } from "./src/turn-tables.ts";

const { values: flags } = parseArgs({
  options: {
    quick: { type: "boolean", default: false },
    full: { type: "boolean", default: false },
    rounds: { type: "string" },
    only: { type: "string" },
    /** throughput,slow,latency */
    parts: { type: "string", default: "throughput,slow,latency" },
    concurrency: { type: "string", default: "1,10,50" },
    /** Latency samples per engine. */
    samples: { type: "string" },
    postgres: { type: "string" },
    gate: { type: "boolean", default: false },
    write: { type: "boolean", default: false },
  },
});

const TURNS = 20;
const SLOW = { runs: flags.quick ? 200 : 1_000, modelMs: 500 };
const rounds = Number(flags.rounds ?? (flags.quick ? 1 : 3));
const samples = Number(flags.samples ?? (flags.full ? 500 : flags.quick ? 20 : 60));
const concurrencies = flags.concurrency.split(",").map(Number);
const picked = pickEngines(flags.only);
const parts = flags.parts.split(",");
const slowEngines = picked.filter((name) => engines[name].kind !== "durable");

/** Enough for a cell to take a second or more; peers that need longer for a turn get fewer runs. */
function runsOf(name: EngineName, concurrency: number): number {
  const base = concurrency === 1 ? 40 : concurrency <= 10 ? 150 : 400;
  const slower = engines[name].pace === "slow" ? (concurrency === 1 ? 0.5 : 0.35) : 1;
  return Math.max(concurrency, Math.round(base * slower * (flags.quick ? 0.5 : 1)));
}

const versions = picked.some((name) => engines[name].kind === "durable") ? await ensurePeers() : new Map<string, string>();
const place = flags.write ? await findMarkers("performance.md", "turn-tables") : undefined;
const server = await openServer(flags.postgres ?? process.env["DATABASE_URL"]);
const results = new Results();
try {
  const floor = await commitFloor(server.url);
  const about = [
    `${new Date().toISOString().slice(0, 10)}, ${machine()}, Postgres ${server.version}, fsync and synchronous_commit on; one client commits ${floor.toLocaleString("en-US")} small rows a second here.`,
    ...(versions.size === 0 ? [] : [`Peers: ${[...versions].map(([name, version]) => `${name} ${version}`).join(", ")}.`]),
    `${rounds} round${rounds === 1 ? "" : "s"}, ${TURNS} turns a run; medians [min–max].`,
  ].join("\n");
  console.log(`${about}\n`);

  const cell = async (plan: Omit<CellPlan, "turns">, key: string): Promise<void> => {
    const result = await runCell(server, { ...plan, turns: TURNS });
    console.log(`  ${key.padEnd(10)} ${plan.engine.padEnd(13)} ${results.add(key, plan.engine, result)}`);
  };
  for (let round = 1; round <= rounds; round++) {
    if (parts.includes("throughput")) {
      console.log(`round ${round} of ${rounds}`);
      for (const concurrency of concurrencies) {
        for (const engine of picked) await cell({ kind: "throughput", engine, concurrency, runs: runsOf(engine, concurrency), modelMs: 0, samples: 0 }, `c=${concurrency}`);
      }
    }
    if (parts.includes("slow")) for (const engine of slowEngines) await cell({ kind: "throughput", engine, concurrency: SLOW.runs, ...SLOW, samples: 0 }, "slow model");
  }
  if (parts.includes("latency")) for (const engine of picked) await cell({ kind: "latency", engine, concurrency: 10, runs: 0, modelMs: 0, samples }, "latency");

  const goals = checkGoals(results);
  const sections = [
    ...(parts.includes("throughput") ? concurrencies.map((concurrency) => throughputTable(results, picked, concurrency)) : []),
    ...(parts.includes("slow") ? [slowTable(results, slowEngines, { ...SLOW, turns: TURNS })] : []),
    ...(parts.includes("latency") ? [latencyTable(results, picked)] : []),
    goalTable(goals),
  ];
  const text = [about, ...sections].join("\n\n");
  console.log(`\n${sections.join("\n\n")}\n`);
  await place?.write(text);
  if (results.failures.length > 0) {
    console.error(`cells that failed:\n  ${results.failures.join("\n  ")}`);
    process.exitCode = 1;
  }
  if (flags.gate && goals.some((goal) => goal.passed !== true)) process.exitCode = 1;
} finally {
  await server.stop();
}
