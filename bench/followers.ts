/**
 * What a thousand followers of one API process wait for live text, and what they cost the worker's turns (bench/README.md).
 * API, worker and followers are processes of one machine: where its cores are all taken, turns wait for those too.
 *
 *   npm run bench:followers -- --followers 1000 --rounds 3
 */
import { fork, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import { setTimeout as sleep } from "node:timers/promises";
import { parseArgs } from "node:util";
import { createClient } from "../src/client/client.ts";
import { migrate } from "../src/store/migrate.ts";
import { followAll } from "./src/followers/crowd.ts";
import { findMarkers, machine, table } from "./src/markdown.ts";
import { dropDatabase, freshDatabase, onServer, openServer } from "./src/server.ts";
import { quantile, show } from "./src/statistics.ts";

const { values: flags } = parseArgs({
  options: {
    followers: { type: "string", default: "1000" },
    runs: { type: "string", default: "8" },
    turns: { type: "string", default: "10" },
    rounds: { type: "string", default: "3" },
    postgres: { type: "string" },
    gate: { type: "boolean", default: false },
    write: { type: "boolean", default: false },
  },
});
const LATENCY_GOAL_MS = 250;
const DATABASE = "bench_followers";

const place = flags.write ? await findMarkers("following.md", "followers-table") : undefined;
const server = await openServer(flags.postgres ?? process.env["DATABASE_URL"]);
const children: ChildProcess[] = [];

async function start<T>(file: string, url: string): Promise<{ readonly child: ChildProcess; readonly said: T }> {
  const child = fork(new URL(`./src/followers/${file}`, import.meta.url), {
    env: { ...process.env, DATABASE_URL: url, BENCH_TURNS: flags.turns },
    stdio: ["ignore", "ignore", "inherit", "ipc"],
  });
  children.push(child);
  const [said] = (await Promise.race([
    once(child, "message"),
    once(child, "exit").then(([code]: unknown[]) => Promise.reject(new Error(`${file} ended with ${String(code)}`))),
  ])) as [T];
  return { child, said };
}

async function cpuMs(child: ChildProcess): Promise<number> {
  child.send("cpu");
  const [{ cpuMs: ms }] = (await once(child, "message")) as [{ cpuMs: number }];
  return ms;
}

/** From one model call of a run to its next. */
const TURNS = `select ms from (select (extract(epoch from e.at - lag(e.at) over (partition by e.run_id order by e.seq)) * 1000)::float8 as ms
  from capstan.events e where e.run_id = any($1::uuid[]) and e.type = 'model.requested') t where ms is not null`;

try {
  const url = await freshDatabase(server.url, DATABASE);
  await migrate({ connectionString: url });
  await start("worker.ts", url);
  const { child: api, said } = await start<{ url: string }>("api.ts", url);
  const client = createClient({ connectionString: url });
  const sides = [0, Number(flags.followers)].map((followers) => ({ followers, turnsMs: [] as number[], latenciesMs: [] as number[], apiCpuMs: 0, wallMs: 0 }));
  for (let round = 0; round < 2 * Number(flags.rounds); round++) {
    const side = sides[round % 2] as (typeof sides)[number];
    // All follow before the first word.
    const runAt = new Date(Date.now() + 3_000);
    const runs = await Promise.all(Array.from({ length: Number(flags.runs) }, async () => (await client.enqueue("speaker", "go", { runAt })).id));
    const crowd = followAll(Array.from({ length: side.followers }, (_, i) => `${said.url}/v1/runs/${runs[i % runs.length] as string}/events`));
    while (crowd.size < side.followers) await sleep(20);
    const [startedMs, before] = [performance.now(), await cpuMs(api)];
    await Promise.all(runs.map((id) => client.run(id).result()));
    await crowd.ended;
    side.apiCpuMs += (await cpuMs(api)) - before;
    side.wallMs += performance.now() - startedMs;
    for (const ms of crowd.latenciesMs) side.latenciesMs.push(ms);
    side.turnsMs.push(...(await onServer(url, async (db) => (await db.query<{ ms: number }>(TURNS, [runs])).rows.map(({ ms }) => ms))));
  }
  await client.close();
  for (const child of children) child.disconnect();
  await Promise.all(children.map(async (child) => child.exitCode ?? (await once(child, "exit"))));
  await dropDatabase(server.url, DATABASE);

  const row = (name: string, of: (side: (typeof sides)[number]) => number | undefined): string[] => [name, ...sides.map((side) => show(of(side)))];
  const p99 = quantile(sides[1]?.latenciesMs ?? [], 0.99);
  const text = [
    `${new Date().toISOString().slice(0, 10)}, ${machine()}, Postgres ${server.version}. Command: \`npm run bench:followers\`.`,
    `${flags.runs} runs at once of ${flags.turns} turns, each of 20 pieces of text in half a second, ${flags.rounds} rounds with followers and as many without; one API process, one worker, and all followers on the same machine.`,
    "",
    table(
      ["", "nobody follows", `${Number(flags.followers).toLocaleString("en-US")} followers`],
      [
        row("live text p50 ms", ({ latenciesMs }) => (latenciesMs.length === 0 ? undefined : quantile(latenciesMs, 0.5))),
        row("live text p99 ms", ({ latenciesMs }) => (latenciesMs.length === 0 ? undefined : quantile(latenciesMs, 0.99))),
        row("turn p50 ms", ({ turnsMs }) => quantile(turnsMs, 0.5)),
        row("turn p99 ms", ({ turnsMs }) => quantile(turnsMs, 0.99)),
        row("cores that the API takes", ({ apiCpuMs, wallMs }) => apiCpuMs / wallMs),
      ],
    ),
    "",
    `From the model's word to the follower, 80 ms of gathering at the worker included: p99 **${show(p99)} ms** (asked: ≤ ${LATENCY_GOAL_MS} ms).`,
  ].join("\n");
  console.log(`\n${text}\n`);
  await place?.write(text);
  if (p99 > LATENCY_GOAL_MS) console.error(`live text takes ${show(p99)} ms at the 99th percentile (asked: at most ${LATENCY_GOAL_MS})`);
  if (flags.gate && !(p99 <= LATENCY_GOAL_MS)) process.exitCode = 1;
} finally {
  for (const child of children) child.kill("SIGKILL");
  await server.stop();
}
