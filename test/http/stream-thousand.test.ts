/** A thousand followers of one API process, which is restarted under them, and then its Postgres. */
import { fork, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync } from "node:fs";
import { createServer, type AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import pg from "pg";
import { afterAll, expect, it } from "vitest";
import { createClient } from "../../src/client/client.ts";
import { migrate } from "../../src/store/migrate.ts";
import { startTestPostgres, type TestDatabase, type TestPostgres } from "../../src/testing/postgres.ts";
import { killChildrenAfterAll, startChild } from "../chaos/child-worker.ts";
import { until } from "../engine/harness.ts";
import { connectSse, idsOf, type Sse } from "./sse-client.ts";

const FOLLOWERS = 1_000;
const RUNS = 8;

// A server of its own: restarting the suite's would disturb the files that run beside this one.
const postgres: TestPostgres = await startTestPostgres({ mode: process.env["CAPSTAN_TEST_POSTGRES"] === "container" ? "container" : "embedded" });
const database: TestDatabase = await postgres.createDatabase();
await migrate({ connectionString: database.url });
killChildrenAfterAll();
const client = createClient({ connectionString: database.url });
const db = new pg.Pool({ connectionString: database.url, max: 1 });
db.on("error", () => {});
const apis: ChildProcess[] = [];
afterAll(async () => {
  for (const api of apis) api.kill("SIGKILL");
  await client.close();
  await db.end();
  await postgres.stop();
});

async function startApi(port: number): Promise<ChildProcess> {
  const api = fork(join(import.meta.dirname, "stream-server.ts"), {
    stdio: ["ignore", "inherit", "inherit", "ipc"],
    execArgv: [],
    env: { ...process.env, DATABASE_URL: database.url, STREAM_PORT: String(port) },
  });
  apis.push(api);
  expect(await Promise.race([once(api, "message").then(([message]: unknown[]) => message), once(api, "exit").then(([code]: unknown[]) => code)])).toBe("ready");
  return api;
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, "close");
  return port;
}

interface Returning {
  readonly items: Sse[];
  readonly isOpen: boolean;
  readonly connections: number;
  readonly ended: Promise<void>;
}

/** As any client should: comes again from the last id it has, after a moment, until the stream says that the run has ended. */
function keepFollowing(url: string): Returning {
  const items: Sse[] = [];
  let connections = 0;
  let isOpen = false;
  const follow = async (): Promise<void> => {
    while (items.at(-1)?.event !== "end") {
      const last = items.findLast(({ id }) => id !== undefined)?.id;
      const connection = connectSse(url, {
        headers: last === undefined ? {} : { "last-event-id": String(last) },
        onItem: (item) => void (item.event === "delta" || items.push(item)),
      });
      connection.status.then(
        (status) => {
          isOpen = status === 200;
          if (isOpen) connections++;
        },
        () => {},
      );
      await connection.closed;
      isOpen = false;
      await new Promise((resolve) => setTimeout(resolve, 100 + Math.random() * 400));
    }
  };
  return {
    items,
    ended: follow(),
    get isOpen() {
      return isOpen;
    },
    get connections() {
      return connections;
    },
  };
}

/** From one model call of a run to its next, in ms. */
async function turnTimes(runs: readonly string[]): Promise<string> {
  const { rows } = await db.query<{ n: number; p50: number; p99: number }>(
    `select count(*)::int as n, percentile_cont(0.5) within group (order by ms) as p50, percentile_cont(0.99) within group (order by ms) as p99
     from (select extract(epoch from e.at - lag(e.at) over (partition by e.run_id order by e.seq)) * 1000 as ms from capstan.events e where e.run_id = any($1::uuid[]) and e.type = 'model.requested') t
     where ms is not null`,
    [runs],
  );
  const { n = 0, p50 = 0, p99 = 0 } = rows[0] ?? {};
  return `${n} turns, p50 ${p50.toFixed(0)} ms, p99 ${p99.toFixed(0)} ms`;
}

it("each has every event once and in order through a restart of the API and an immediate one of Postgres", { timeout: 300_000 }, async () => {
  const effects = join(mkdtempSync(join(tmpdir(), "capstan-thousand-")), "effects.jsonl");
  const worker = await startChild({ url: database.url, effects, program: "../http/stream-worker.ts" });
  const enqueue = (name: string, runAt?: Date) =>
    Promise.all(Array.from({ length: RUNS }, async () => (await client.enqueue(name, "go", runAt === undefined ? {} : { runAt })).id));
  // As many at once as later, when they are followed.
  const [alone, beside] = await Promise.all([enqueue("sprint"), enqueue("sprint")]);
  for (const id of [...alone, ...beside]) await client.run(id).result({ timeoutMs: 60_000 });

  const port = await freePort();
  const first = await startApi(port);
  const followed = await enqueue("sprint", new Date(Date.now() + 6_000));
  const runs = await enqueue("marathon", new Date(Date.now() + 6_000));
  const followers = Array.from({ length: FOLLOWERS }, (_, i) => keepFollowing(`http://127.0.0.1:${port}/v1/runs/${[...runs, ...followed][i % (2 * RUNS)] as string}/events`));
  const reached = (what: string, seq: number): Promise<unknown> =>
    until(what, () => followers.every(({ items }, i) => i % (2 * RUNS) >= RUNS || (items.findLast(({ id }) => id !== undefined)?.id ?? 0) >= seq), 120_000);
  await reached("all to follow", 1);
  await reached("all to be in the middle", 10);

  first.send("stop");
  const [code] = (await once(first, "exit")) as [number];
  expect(code).toBe(0);
  await startApi(port);
  await until("all to be back", () => followers.every(({ isOpen, items }) => isOpen || items.at(-1)?.event === "end"), 60_000);
  const connections = followers.map((follower) => follower.connections);
  await reached("all to go on", 25);

  await postgres.restart("immediate");
  await Promise.all(followers.map(({ ended }) => ended));
  await worker.stop();

  const journals = new Map<string, string[]>();
  for (const id of [...runs, ...followed]) {
    const types: string[] = [];
    for await (const { type } of client.run(id).events({ follow: false })) types.push(type);
    journals.set(id, types);
  }
  for (const [i, { items }] of followers.entries()) {
    const types = journals.get([...runs, ...followed][i % (2 * RUNS)] as string) ?? [];
    const given = items.filter(({ id }) => id !== undefined);
    expect(idsOf(given)).toEqual(types.map((_, n) => n + 1));
    expect(given.map(({ event }) => event)).toEqual(types);
    expect(items.at(-1)).toEqual({ event: "end", data: '{"state":"completed"}' });
  }
  // Streams stayed open while Postgres was away.
  expect(followers.map((follower) => follower.connections)).toEqual(connections);
  console.log(`turns without followers: ${await turnTimes(alone)}; with ${FOLLOWERS}, through both restarts: ${await turnTimes(followed)}`);
});
