/**
 * What parked runs cost those who work: a worker's memory, turns of active runs, and the sweeps (bench/README.md).
 *
 *   npm run bench:parked -- --each 1000 --rounds 2
 */
import { writeFile } from "node:fs/promises";
import { parseArgs } from "node:util";
import { inChild } from "./src/child.ts";
import { findMarkers, machine, table } from "./src/markdown.ts";
import type { Active, Idle, ParkedAnswer, ParkedRequest } from "./src/parked-cell.ts";
import { dropDatabase, freshDatabase, openServer } from "./src/server.ts";
import { median, quantile, show } from "./src/statistics.ts";
import { sweepCosts, type StatementCost } from "./src/sweep-plans.ts";

const { values: flags } = parseArgs({
  options: {
    each: { type: "string", default: "10000" },
    runs: { type: "string", default: "20" },
    turns: { type: "string", default: "30" },
    rounds: { type: "string", default: "6" },
    seconds: { type: "string", default: "12" },
    /** File for the sweeps' plans with parked runs. */
    plans: { type: "string" },
    postgres: { type: "string" },
    gate: { type: "boolean", default: false },
    write: { type: "boolean", default: false },
  },
});
/** Megabytes that an idle worker may hold more, of heap and in all; runs that are held would be forty times as much. */
const HEAP_GOAL_MB = 2;
const RSS_GOAL_MB = 8;
const P50_GOAL = 1.1;
const DATABASES = ["bench_parked_none", "bench_parked_many"] as const;

const place = flags.write ? await findMarkers("scaling.md", "parked-table") : undefined;
const server = await openServer(flags.postgres ?? process.env["DATABASE_URL"]);
try {
  const urls: string[] = [];
  for (const name of DATABASES) urls.push(await freshDatabase(server.url, name));
  const cell = async (request: ParkedRequest): Promise<ParkedAnswer> => {
    const outcome = await inChild<ParkedAnswer>(new URL("./src/parked-cell.ts", import.meta.url), request, { execArgv: ["--expose-gc"], killAfterMs: 1_800_000 });
    if (!outcome.ok) throw new Error(`the cell ${request.kind} failed: ${outcome.error}`);
    return outcome.value;
  };
  let parked = 0;
  for (const [i, url] of urls.entries()) parked = (await cell({ kind: "prepare", url, each: i === 0 ? 0 : Number(flags.each) })).parked ?? 0;
  console.log(`  ${parked.toLocaleString("en-US")} runs are parked`);
  const idle: Idle[][] = [[], []];
  // Three of each, by turns: the least is what a worker needs.
  for (let n = 0; n < 6; n++) idle[n % 2]?.push((await cell({ kind: "idle", url: urls[n % 2] as string, seconds: Number(flags.seconds) })).idle as Idle);
  const memory = idle.map((looks) => ({ rssMb: Math.min(...looks.map(({ rssMb }) => rssMb)), heapMb: Math.min(...looks.map(({ heapMb }) => heapMb)) }));
  const active = (await cell({ kind: "active", urls, runs: Number(flags.runs), turns: Number(flags.turns), rounds: Number(flags.rounds) })).active as readonly Active[];
  const costs: StatementCost[][] = [];
  for (const url of urls) costs.push(await sweepCosts(url));
  for (const name of DATABASES) await dropDatabase(server.url, name);

  const column = (i: number): readonly [Idle, Active] => [memory[i] as Idle, active[i] as Active];
  const row = (name: string, of: (side: readonly [Idle, Active]) => number): string[] => [name, ...[0, 1].map((i) => show(of(column(i)))), show(of(column(1)) / of(column(0)))];
  const [none, many] = [column(0), column(1)];
  // Of rounds side by side, since a slow minute of the machine hits both.
  const ratio = median(none[1].rounds.map((turnMs, i) => quantile(many[1].rounds[i] ?? [], 0.5) / quantile(turnMs, 0.5)));
  const text = [
    `${new Date().toISOString().slice(0, 10)}, ${machine()}, Postgres ${server.version}. Command: \`npm run bench:parked\`.`,
    `${Number(flags.each).toLocaleString("en-US")} runs each that wait for input, a timer a year away, children, and (these children) an approval; ${flags.runs} active runs of ${flags.turns} turns at once beside them, on a worker that sweeps every second.`,
    "",
    table(
      ["", "no parked runs", `${parked.toLocaleString("en-US")} parked runs`, "ratio"],
      [
        row("idle worker, heap MB", ([{ heapMb }]) => heapMb),
        row("idle worker, resident MB", ([{ rssMb }]) => rssMb),
        row("turns/s", ([, { turns, ms }]) => (turns / ms) * 1_000),
        row("turn p50 ms", ([, { rounds }]) => quantile(rounds.flat(), 0.5)),
        row("turn p99 ms", ([, { rounds }]) => quantile(rounds.flat(), 0.99)),
        ...(costs[0] ?? []).map(({ name, ms }, i) => [`${name}, ms`, show(ms), show(costs[1]?.[i]?.ms), show((costs[1]?.[i]?.ms ?? Number.NaN) / ms)]),
        ...(costs[0] ?? []).map(({ name, pages }, i) => [`${name}, pages`, show(pages), show(costs[1]?.[i]?.pages), show((costs[1]?.[i]?.pages ?? Number.NaN) / pages)]),
      ],
    ),
    "",
    `Turn p50 with parked runs over without, median of ${none[1].rounds.length} rounds of both: **${ratio.toFixed(3)}** (asked: ≤ ${P50_GOAL}).`,
  ].join("\n");
  console.log(`\n${text}\n`);
  if (flags.plans !== undefined)
    await writeFile(
      flags.plans,
      JSON.stringify(
        costs[1]?.map(({ name, plan }) => ({ name, plan: JSON.parse(plan) as unknown })),
        null,
        1,
      ),
    );
  await place?.write(text);
  const problems = [
    ...(many[0].heapMb - none[0].heapMb <= HEAP_GOAL_MB ? [] : [`an idle worker's heap is ${show(many[0].heapMb - none[0].heapMb)} MB larger (asked: at most ${HEAP_GOAL_MB})`]),
    ...(many[0].rssMb - none[0].rssMb <= RSS_GOAL_MB ? [] : [`an idle worker is ${show(many[0].rssMb - none[0].rssMb)} MB larger (asked: at most ${RSS_GOAL_MB})`]),
    ...(ratio <= P50_GOAL ? [] : [`turns take ${ratio.toFixed(2)} times as long (asked: at most ${P50_GOAL})`]),
  ];
  for (const problem of problems) console.error(problem);
  if (flags.gate && problems.length > 0) process.exitCode = 1;
} finally {
  await server.stop();
}
