/** Ticks with worker processes: five at once, and one that is killed in the middle of a tick. */
import { join } from "node:path";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { afterAll, afterEach, expect, it } from "vitest";
import { killChildrenAfterAll, quickEnv, startChild, type ChildWorker } from "../chaos/child-worker.ts";
import { createTestDatabase } from "../support/database.ts";
import { scheduleBench } from "./schedule-bench.ts";

const database = await createTestDatabase();
const { db, schedules, runsOf, makeDue } = scheduleBench(database.url);
const folder = await mkdtemp(join(tmpdir(), "capstan-schedules-"));
const started: ChildWorker[] = [];
killChildrenAfterAll();
/** A test that failed must not leave a worker that serves the next one's schedules. */
afterEach(async () => {
  for (const worker of started.splice(0)) {
    if (worker.isAlive()) worker.kill("SIGKILL");
    await worker.ended;
  }
});
afterAll(() => rm(folder, { recursive: true, force: true }));

/** Its model answers three times, and the run is done. */
const agent = "answers";
const yearly = "0 0 1 1 *";
/** Processes take long to start where others are at work. */
const TIMEOUT_MS = 240_000;
/** With leases of the usual length: nothing here waits for a takeover, and five processes at once may well be silent for a second. */
async function start(pool = "turn"): Promise<ChildWorker> {
  const env = { ...quickEnv, CAPSTAN_LEASE_MS: "60000", CAPSTAN_LOST_JOB_MS: "60000" };
  const worker = await startChild({ url: database.url, effects: join(folder, "effects"), pool, agents: [agent], env });
  started.push(worker);
  return worker;
}

async function until(what: string, holds: () => Promise<boolean>): Promise<void> {
  for (const deadline = performance.now() + 120_000; !(await holds());) {
    if (performance.now() > deadline) throw new Error(`not within 120 s: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

const isServed = (names: readonly string[]) => async (): Promise<boolean> => {
  const { rows } = await db.query<{ n: number }>(
    "select count(*)::int as n from capstan.schedules s join capstan.runs r on r.id = s.last_run_id where s.name = any($1) and r.state = 'completed'",
    [names],
  );
  return rows[0]?.n === names.length;
};

it(
  "a tick on five workers starts one run, which is worked on",
  async () => {
    const workers = await Promise.all(Array.from({ length: 5 }, () => start()));
    try {
      const names = Array.from({ length: 20 }, (_, i) => `tick-${i}`);
      for (const name of names) await schedules.create(name, { agent, input: "go", cron: yearly });
      await makeDue(...names);
      await until("every schedule has started its run", isServed(names));
      // Two more ticks of one of them: each starts one more, though all five are awake now.
      for (const hours of [2, 1]) {
        await db.query("update capstan.schedules set next_at = date_trunc('hour', capstan.now()) - $1 * interval '1 hour' where name = 'tick-0'", [hours]);
        const before = (await runsOf("tick-0")).length;
        await until("the next tick has started its run", async () => (await runsOf("tick-0")).length > before);
      }
      await until("the last run is done", isServed(names));
      for (const name of names) {
        const runs = await runsOf(name);
        expect(runs, name).toHaveLength(name === "tick-0" ? 3 : 1);
        expect(new Set(runs.map(({ tick }) => tick)).size).toBe(runs.length);
      }
    } finally {
      await Promise.all(workers.map((worker) => worker.stop()));
    }
    expect(workers.flatMap((worker) => worker.log().split("\n")).filter((line) => /schedule|"level":"error"/.test(line))).toEqual([]);
  },
  TIMEOUT_MS,
);

it(
  "a worker killed between the run and the commit of a tick does not double it",
  async () => {
    await db.query(`create function hold_tick() returns trigger language plpgsql as $$ begin perform pg_advisory_xact_lock(4711); return new; end $$`);
    await db.query("create trigger hold_tick after update of last_tick_at on capstan.schedules for each row execute function hold_tick()");
    const gate = await db.connect();
    try {
      await gate.query("select pg_advisory_lock(4711)");
      await schedules.create("killed", { agent, input: "go", cron: yearly });
      await makeDue("killed");
      const doomed = await start();
      let pid: number | undefined;
      await until("the tick waits at the gate", async () => {
        const { rows } = await db.query<{ pid: number }>(
          "select pid from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and query like '%capstan.tick_schedule%' and pid <> pg_backend_pid()",
        );
        pid = rows[0]?.pid;
        return pid !== undefined;
      });
      doomed.kill("SIGKILL");
      expect(await doomed.ended).toBe("SIGKILL");
      expect(await runsOf("killed")).toEqual([]);
      const heir = await start();
      await gate.query("select pg_advisory_unlock(4711)");
      // The server finishes or undoes the statement of the dead; then the tick is served, by it or by the heir.
      await until("the statement of the dead has ended", async () => (await db.query("select from pg_stat_activity where pid = $1 and state = 'active'", [pid])).rowCount === 0);
      await until("the tick has started its run", isServed(["killed"]));
      expect(await runsOf("killed")).toHaveLength(1);
      await heir.stop();
    } finally {
      gate.release(true);
      await db.query("drop trigger hold_tick on capstan.schedules");
      await db.query("drop function hold_tick");
    }
  },
  TIMEOUT_MS,
);

it(
  "a worker of pool summarize serves no schedules",
  async () => {
    await schedules.create("left", { agent, cron: yearly });
    await makeDue("left");
    const worker = await start("summarize");
    const beats = async (): Promise<string> =>
      (await db.query<{ at: string }>("select heartbeat_at::text as at from capstan.workers where id = $1", [worker.workerId])).rows[0]?.at ?? "";
    // A loop's first round comes at its start, so one that served would have done so before the third beat.
    for (let beat = 0; beat < 3; beat++) {
      const before = await beats();
      await until("it beats", async () => (await beats()) !== before);
    }
    expect(await runsOf("left")).toEqual([]);
    const turns = await start();
    await until("a worker of pool turn has served it", async () => (await runsOf("left")).length === 1);
    await Promise.all([worker.stop(), turns.stop()]);
  },
  TIMEOUT_MS,
);
