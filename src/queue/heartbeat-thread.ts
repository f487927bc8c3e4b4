/**
 * Runs in a thread of its own: beats for the worker, and watches its event loop. A tool that blocks the loop cannot
 * stop the beat, so a short block costs nothing; a loop that stays blocked for twice the lease ends the process, since
 * nothing in it can be trusted to end in time, and the sweep hands its runs to others.
 */
import { writeSync } from "node:fs";
import { parentPort, workerData } from "node:worker_threads";
import pg from "pg";
import type { HeartbeatData } from "./heartbeat.ts";
import { BEAT_AT, BUSY, GAPLESS_SINCE, TICKS } from "./heartbeat-slots.ts";

const data = workerData as HeartbeatData;
const slots = new Float64Array(data.shared);
const port = parentPort;

let client: pg.Client | undefined;
let workerId = data.workerId;
let stopped = false;
let lastTicks = slots[TICKS];
let tickedAt = Date.now();
let buriedReported = false;

port?.on("message", (message: { workerId: string } | "stop") => {
  if (message === "stop") {
    stopped = true;
    void client?.end().catch(() => {});
    port.close();
    return;
  }
  workerId = message.workerId;
  buriedReported = false;
});

async function connection(): Promise<pg.Client> {
  if (client !== undefined) return client;
  const fresh = new pg.Client({
    connectionString: data.connectionString,
    application_name: "capstan heartbeat",
    connectionTimeoutMillis: data.everyMs,
    query_timeout: Math.max(1_000, data.everyMs * 2),
    keepAlive: true,
  });
  fresh.on("error", () => {
    if (client === fresh) client = undefined;
  });
  await fresh.connect();
  client = fresh;
  return fresh;
}

async function beat(): Promise<void> {
  try {
    const { rowCount } = await (await connection()).query(data.beatSql, [workerId, Math.max(0, slots[BUSY] ?? 0)]);
    const now = Date.now();
    // A gap as long as a lease: others may have looked dead to us only because we could not see them.
    if (now - (slots[BEAT_AT] ?? 0) > data.leaseMs) slots[GAPLESS_SINCE] = now;
    slots[BEAT_AT] = now;
    if (rowCount === 0 && !buriedReported) {
      buriedReported = true;
      port?.postMessage("buried");
    }
  } catch {
    // The database is away: main's own loops report it. The next beat tries again on a new connection.
    const broken = client;
    client = undefined;
    await broken?.end().catch(() => {});
  }
}

async function watch(): Promise<void> {
  const ticks = slots[TICKS];
  const now = Date.now();
  if (ticks !== lastTicks) {
    lastTicks = ticks;
    tickedAt = now;
    return;
  }
  if (now - tickedAt < 2 * data.leaseMs) return;
  // Past process.stderr: a thread's writes go through the main thread, which is what is blocked.
  writeSync(2, `capstan: the event loop of worker ${workerId} was blocked for ${now - tickedAt} ms (twice the lease): ending the process\n`);
  // Saying so spares the others the wait for the lease; if it cannot be said, the lease runs out by itself.
  const said = connection().then((c) => c.query(data.endSql, [workerId]));
  await Promise.race([said.catch(() => {}), new Promise((resolve) => setTimeout(resolve, 1_000))]);
  process.kill(process.pid, "SIGKILL");
}

while (!stopped) {
  const startedAt = Date.now();
  await Promise.all([beat(), watch()]);
  // A process that was suspended (SIGSTOP, a sleeping machine) sees a jump here, not a blocked loop.
  const spent = Date.now() - startedAt;
  if (spent > 2 * data.leaseMs) tickedAt = Date.now();
  await new Promise((resolve) => setTimeout(resolve, Math.max(50, data.everyMs - spent)));
  if (Date.now() - startedAt > data.everyMs * 3 + data.leaseMs) tickedAt = Date.now();
}
