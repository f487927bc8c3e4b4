/**
 * Drives the engine by hand over a real database, without the queue's timing: a job is one call of `advanceRun`, and it
 * can be interrupted at each of its commits. A lane has one connection, with a clock of its own, and takes one sequence
 * of actions after the other; each sequence is a tenant.
 */
import { randomUUID } from "node:crypto";
import type pg from "pg";
import { createRing } from "../../src/capabilities/ring.ts";
import { createClient, type CapstanClient } from "../../src/client/client.ts";
import { performTask } from "../../src/compaction/task.ts";
import { CapstanError } from "../../src/domain/error.ts";
import type { EngineDeps } from "../../src/engine/deps.ts";
import { Frames } from "../../src/engine/frames.ts";
import { InFlight } from "../../src/engine/in-flight.ts";
import type { AppendOutcome, AppendRequest, JournalStore } from "../../src/engine/ports.ts";
import { RunCache } from "../../src/engine/run-memory.ts";
import { advanceRun } from "../../src/engine/turn.ts";
import { uuidV7 } from "../../src/store/uuid.ts";
import { LOST_JOBS_SQL, SWEEP_SQL } from "../../src/queue/sql/sweep.ts";
import { PostgresBlobStore } from "../../src/store/blobs.ts";
import { PostgresCompactionTasks } from "../../src/store/compaction-tasks.ts";
import { PostgresDefinitionStore } from "../../src/store/definitions.ts";
import { PostgresJournalStore } from "../../src/store/journal-store.ts";
import { JournalWriter } from "../../src/store/journal-writer.ts";
import { createPool } from "../../src/store/pool.ts";
import { PostgresUsageLedger } from "../../src/store/usage-ledger.ts";
import { WorkerStore } from "../../src/store/workers.ts";
import { silentLog } from "../../src/telemetry/log.ts";
import { noTracing } from "../../src/telemetry/no-tracing.ts";
import { agents, atWork, models, summarizers, type Job } from "./interleaving-agents.ts";
import { LOOK_SQL, wordsOf, type LookRow } from "./interleaving-look.ts";
import { childScripts, sortEnds, type Act, type ChildKind, type Script } from "./reference-model.ts";

const same = (text: string): string => text;
const never = new AbortController().signal;
const outage = { log: silentLog, signal: never };
const HOUR_MS = 3_600_000;
/** More than any job asks of its store. */
const MAX_ASKED = 500;
const CLOCK_SQL = "select set_config('capstan_clock.offset', $1, false)";

export interface Lane {
  readonly db: pg.Pool;
  readonly client: CapstanClient;
  readonly definitions: PostgresDefinitionStore;
  offsetMs: number;
  close(): Promise<void>;
}

export async function openLane(url: string): Promise<Lane> {
  const db = createPool({ connectionString: url, max: 1, applicationName: "capstan interleavings", pinnedPlans: true });
  const definitions = new PostgresDefinitionStore(db, same);
  const lane: Lane = { db, client: createClient({ pool: db }), definitions, offsetMs: 0, close: () => db.end() };
  // An idle connection is closed after a while, and its clock is gone with it.
  db.on("connect", (client) => void client.query(CLOCK_SQL, [`${lane.offsetMs} milliseconds`]));
  for (const { definition } of agents) await definitions.register(definition);
  return lane;
}

/** Where a job is interrupted: at its `at`-th opportunity, if there are so many. */
export type Plan = { readonly at: number } & ({ readonly crash: true } | { readonly act: () => Act | undefined; readonly noticed: boolean });

class Dead extends Error {}

interface Worker {
  id: string;
  deps: EngineDeps;
  isDead: boolean;
}

export interface JobReport {
  readonly runId: string;
  /** What interrupted it, where it came to that. */
  readonly fired: { readonly crash: true } | { readonly act: Act; readonly noticed: boolean; readonly outcome: string } | undefined;
  readonly failure: unknown;
}

/** One sequence: a root run, what it starts, and two workers. */
export class Sequence {
  readonly lane: Lane;
  readonly tenant = `s-${randomUUID()}`;
  readonly executed = new Map<string, number>();
  /** What the engine calls its own failures: there is to be none. */
  readonly failures: unknown[] = [];
  readonly script: Script;
  rootId = "";
  readonly names = new Map<string, string>();
  isDown = false;
  #workers: Worker[] = [];
  /** Jobs whose worker died: the queue hands them out again, whatever became of their runs. */
  readonly #again = new Set<string>();
  #job: { worker: Worker; runId: string; plan: Plan | undefined; seen: number; asked: number; isFiring: boolean; fired: JobReport["fired"] } | undefined;

  constructor(lane: Lane, script: Script) {
    this.lane = lane;
    this.script = script;
  }

  async begin(agent: string): Promise<void> {
    await this.#setClock(0);
    this.#workers = [await this.#newWorker(), await this.#newWorker()];
    this.rootId = (await this.lane.client.enqueue(agent, "begin", { tenant: this.tenant })).id;
  }

  async end(): Promise<void> {
    const ids = this.#workers.map(({ id }) => id);
    await this.lane.db.query("update capstan.workers set ended_at = capstan.now(), end_reason = 'stopped' where id = any($1::uuid[])", [ids]);
  }

  async #setClock(offsetMs: number): Promise<void> {
    this.lane.offsetMs = offsetMs;
    await this.lane.db.query(CLOCK_SQL, [`${offsetMs} milliseconds`]);
  }

  idOf(name: string): string {
    const found = [...this.names].find(([, known]) => known === name);
    if (found === undefined) throw new Error(`no run ${name} in the database`);
    return found[0];
  }

  async #newWorker(): Promise<Worker> {
    const { db, definitions } = this.lane;
    const clockMs = (): number => performance.now() + this.lane.offsetMs;
    const id = await new WorkerStore(db, same).register({
      pool: "turn",
      host: "test",
      pid: 1,
      version: "0",
      leaseMs: 2_000_000_000,
      slots: 1,
      agents: agents.map(({ name }) => name),
      tools: {},
      eventVersions: {},
    });
    const writer = new JournalWriter({ pool: db, workerId: () => id, named: same, log: silentLog, signal: never });
    const store = new PostgresJournalStore(db, same, writer, outage);
    const worker = { id, isDead: false } as Worker;
    worker.deps = {
      store: this.#interruptible(store, worker),
      definitions,
      blobs: new PostgresBlobStore(db, same, outage),
      ledger: new PostgresUsageLedger(db, same, outage),
      compactions: new PostgresCompactionTasks(db, same, outage, () => id),
      ring: createRing({ meter: () => {}, clockMs }),
      deltas: { during: (_, work) => work(() => {}) },
      models,
      agents: new Map(agents.map(({ name, code }) => [name, code])),
      tracing: noTracing,
      log: { ...silentLog, error: (fields, message) => void (worker.isDead || this.failures.push({ message, ...fields })) },
      cache: new RunCache(64 * 1024 * 1024),
      frames: new Frames(),
      inFlight: new InFlight(),
      sticky: undefined,
      onWarn: () => {},
      countCompaction: () => {},
      othersWait: () => false,
      secret: () => undefined,
      random: Math.random,
      newId: randomUUID,
      newRunId: () => uuidV7(Date.now()),
      clockMs,
    };
    return worker;
  }

  /** Each append is an opportunity before it and one after it; a dead process reaches nothing. */
  #interruptible(store: JournalStore, worker: Worker): JournalStore {
    const alive = <T>(ask: () => T): T => {
      if (worker.isDead) throw new Dead();
      // An engine that goes round and round would else be a test that hangs and does not say where.
      if (this.#job !== undefined && ++this.#job.asked > MAX_ASKED) throw new Error("the job does not end");
      return ask();
    };
    return {
      load: (runId) => alive(() => store.load(runId)),
      eventsBelow: (runId, below) => alive(() => store.eventsBelow(runId, below)),
      pendingInbox: (runId, limit) => alive(() => store.pendingInbox(runId, limit)),
      giveBack: (runId, token, at) => alive(() => store.giveBack(runId, token, at)),
      called: (held) => alive(() => store.called(held)),
      childOutcomes: (runId, call) => alive(() => store.childOutcomes(runId, call)),
      childSpending: (runId, call) => alive(() => store.childSpending(runId, call)),
      append: async (request: AppendRequest): Promise<AppendOutcome> => {
        await this.#opportunity(true);
        const outcome = await alive(() => store.append(request));
        await this.#opportunity(true);
        return outcome;
      },
    };
  }

  async #opportunity(mayCrash: boolean): Promise<void> {
    const job = this.#job;
    if (job === undefined) return;
    if (job.worker.isDead) throw new Dead();
    const { plan } = job;
    if (plan === undefined || job.isFiring || job.fired !== undefined || job.seen++ < plan.at) return;
    if ("crash" in plan) {
      if (!mayCrash) return;
      job.fired = { crash: true };
      job.worker.isDead = true;
      throw new Dead();
    }
    const act = plan.act();
    if (act === undefined) return;
    // Tools that run side by side come here at the same time.
    job.isFiring = true;
    const outcome = await this.act(act);
    job.fired = { act, noticed: plan.noticed, outcome };
    if (!plan.noticed) return;
    // As the watch over held runs does, sooner or later.
    const held = job.worker.deps.inFlight.olderThan(0, Number.POSITIVE_INFINITY);
    for (const { runId, why } of await job.worker.deps.store.called(held.map(({ run, token }) => ({ runId: run.runId, token }))))
      for (const { run } of held) if (run.runId === runId) run.abort(why);
  }

  /** Wishes that are due, as the relay sees them, and jobs that come again. */
  async due(): Promise<string[]> {
    const { rows } = await this.lane.db.query<{ run_id: string }>(
      `select w.run_id from capstan.wishes w where w.tenant = $1 and (w.ready or w.at <= capstan.now()) and not exists (select from capstan.pauses p where p.value in ('*', w.tenant))`,
      [this.tenant],
    );
    return [...new Set([...this.#again, ...rows.map(({ run_id: id }) => id)])].toSorted((a, b) => (this.names.get(a) ?? "").localeCompare(this.names.get(b) ?? ""));
  }

  /** What the search for lost jobs finds of this sequence's runs. */
  async search(): Promise<string[]> {
    // Lanes have clocks of their own: by this one's the runs of others look old.
    const sql = LOST_JOBS_SQL.replace("where r.id = any", `where r.tenant = '${this.tenant}' and r.id = any`);
    const { rows } = await this.lane.db.query<{ run_id: string }>(sql, [60_000]);
    return rows.map(({ run_id: id }) => this.names.get(id) as string);
  }

  /** The wish is taken and its job done. */
  async job(runId: string, which: number, plan: Plan | undefined): Promise<JobReport> {
    const worker = this.#workers[which % this.#workers.length] as Worker;
    if (!this.#again.delete(runId)) await this.lane.db.query("delete from capstan.wishes where run_id = $1", [runId]);
    const job = (this.#job = { worker, runId, plan, seen: 0, asked: 0, isFiring: false, fired: undefined as JobReport["fired"] });
    const context: Job = {
      isDead: () => worker.isDead,
      isDown: () => this.isDown,
      scriptOf: (id, task) => (id === this.rootId ? this.script : childScripts[task as ChildKind]),
      between: () => this.#opportunity(false),
      executed: (id, callId) => void this.executed.set(`${id}:${callId}`, (this.executed.get(`${id}:${callId}`) ?? 0) + 1),
    };
    let failure: unknown;
    try {
      await atWork.run(context, () => advanceRun(worker.deps, runId));
    } catch (error) {
      if (!(error instanceof Dead)) failure = error;
    }
    this.#job = undefined;
    if (worker.isDead) await this.#bury(worker, runId);
    return { runId, fired: job.fired, failure };
  }

  /** What the others do about a worker that died: its runs are free, and its job comes again. */
  async #bury(worker: Worker, runId: string): Promise<void> {
    const { db } = this.lane;
    await db.query("update capstan.workers set ended_at = capstan.now(), end_reason = 'lost' where id = $1", [worker.id]);
    const successor = await this.#newWorker();
    this.#workers[this.#workers.indexOf(worker)] = successor;
    await oneAtATime(() => db.query(SWEEP_SQL, [successor.id]));
    this.#again.add(runId);
  }

  /** Gives what the reference model gives. */
  async act(action: Act): Promise<string> {
    const { client } = this.lane;
    const done = (happened: unknown): string => (happened === false ? "false" : "ok");
    try {
      switch (action.do) {
        case "tick":
          await this.#setClock(this.lane.offsetMs + HOUR_MS);
          return "ok";
        case "outage":
          this.isDown = !this.isDown;
          return "ok";
        case "pause_all":
          return done(await client.pauses.pause({ tenant: this.tenant }));
        case "resume_all":
          return done(await client.pauses.resume({ tenant: this.tenant }));
        case "answer":
          return await this.#answer(action.wait, action.yes);
        case "summarize":
          return await this.#summarize(this.idOf(action.run));
        default: {
          const run = client.run(this.idOf(action.run));
          if (action.do === "compact" || action.do === "compact_later") await run.compact({ when: action.do === "compact" ? "now" : "boundary", timeoutMs: 0 });
          else if (action.do === "send") await run.send(action.text);
          else if (action.do === "stop") await run.stop();
          else if (action.do === "signal" || action.do === "signal_soon") await run.signal(action.do === "signal" ? "go" : "go_soon");
          else return done(await run[action.do]());
          return "ok";
        }
      }
    } catch (error) {
      if (error instanceof CapstanError) return error.code;
      throw error;
    }
  }

  /** Ids of waits by name. */
  readonly waitIds = new Map<string, { readonly id: string; readonly kind: string; readonly name: string; readonly runId: string }>();

  async #answer(name: string, yes: boolean): Promise<string> {
    const { waits } = this.lane.client;
    const wait = this.waitIds.get(name);
    if (wait === undefined) throw new Error(`no wait ${name} in the database`);
    if (wait.kind === "approval") await (yes ? waits.approve(wait.id) : waits.deny(wait.id));
    else if (wait.kind === "question") await (yes ? waits.answer(wait.id, "this") : waits.decline(wait.id));
    else if (wait.kind === "signal") await this.lane.client.run(wait.runId).signal(wait.name);
    else await (yes ? waits.complete(`${wait.runId}.${wait.id}`, "done") : waits.fail(`${wait.runId}.${wait.id}`, "it broke"));
    return "ok";
  }

  async #summarize(runId: string): Promise<string> {
    const { db } = this.lane;
    const { rows } = await db.query<{ id: string }>("select id from capstan.compaction_tasks where run_id = $1 and state = 'requested'", [runId]);
    const task = rows[0];
    if (task === undefined) return "none";
    const { deps, id } = this.#workers[0] as Worker;
    const tasks = new PostgresCompactionTasks(db, same, outage, () => id);
    const { store, definitions, ledger, ring, log, random, clockMs } = deps;
    await performTask(task.id, { tasks, store, definitions, ledger, ring, models, summarizers, log, random, clockMs, claimed: () => never });
    return "ok";
  }

  /** What the database says, in the reference model's words; and which runs have a wish, and when. */
  async look(): Promise<{ readonly seen: Record<string, unknown>; readonly wished: ReadonlySet<string>; readonly held: readonly string[] }> {
    const { db } = this.lane;
    const { rows } = await db.query<LookRow>(LOOK_SQL, [this.tenant]);
    for (const row of rows) {
      const above = row.parent_run_id === null ? "" : (this.names.get(row.parent_run_id) as string);
      this.names.set(row.id, row.parent_run_id === null ? "r" : `${above}/${(row.parent_call ?? "").slice(1)}.${row.child_index}`);
      for (const wait of row.waits) this.waitIds.set(`${this.names.get(row.id)}/${wait.turn}.${wait.call_index}`, { id: wait.id, kind: wait.kind, name: wait.name, runId: row.id });
    }
    const seen = rows.map((row) => {
      const { words, task } = wordsOf(row.words);
      const shown = {
        state: row.state,
        reason: row.wait_reason,
        paused: row.paused,
        turn: row.turn,
        words: sortEnds(words),
        inbox: row.inbox.map(({ kind, payload }) => (kind === "input" ? (payload as string) : kind)),
        waits: row.waits
          .filter(({ settled }) => !settled)
          .map((wait) => `${wait.turn}.${wait.call_index} ${wait.kind}${wait.answered ? " answered" : ""}`)
          .toSorted(),
        task,
      };
      return [this.names.get(row.id) as string, shown] as const;
    });
    const nameOf = ({ id }: LookRow): string => this.names.get(id) as string;
    return {
      seen: Object.fromEntries(seen.toSorted(([a], [b]) => (a < b ? -1 : 1))),
      wished: new Set(rows.filter(({ id, wished }) => wished || this.#again.has(id)).map(nameOf)),
      held: rows.filter(({ worker_id: worker }) => worker !== null).map(nameOf),
    };
  }
}

let last: Promise<unknown> = Promise.resolve();
/** Two sweeps of one database at once would each free what the other is about to. */
function oneAtATime<T>(work: () => Promise<T>): Promise<T> {
  const done = last.then(work);
  last = done.catch(() => {});
  return done;
}
