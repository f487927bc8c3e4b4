/**
 * The relay of the summarize pool: turns tasks into graphile-worker jobs, a few more than there are slots, and frees the
 * tasks of workers that are gone. The task's row is the truth; a job is only a hint that one may be claimed.
 */
import type pg from "pg";
import { hitFailpoint } from "../engine/failpoints.ts";
import type { Log } from "../engine/ports.ts";
import { Loop } from "./loop.ts";
import type { JobSource } from "./job-source.ts";
import { DISPATCH_TASKS_SQL, DROP_TASKS_SQL, FREE_TASKS_SQL, STILL_DISPATCHED_SQL, WAIT_FOR_QUOTA_SQL } from "./sql/summarize.ts";

const POLL_MS = 500;
const TIDY_MS = 2_000;
/** Claims of one task whose workers died before it is given up: it may be what kills them. */
export const MAX_TASK_CRASHES = 3;

export interface SummarizeRelayOptions {
  readonly pool: pg.Pool;
  readonly named: (text: string) => string;
  readonly agents: readonly string[];
  readonly slots: number;
  readonly lostAfterMs: number;
  readonly log: Log;
  running(): number;
  /** Tenants that may not make summaries just now. */
  exhaustedTenants(): Promise<readonly string[]>;
}

export class SummarizeRelay implements JobSource {
  readonly #options: SummarizeRelayOptions;
  readonly #dispatch: Loop;
  readonly #tidy: Loop;
  readonly #outstanding = new Set<string>();

  constructor(options: SummarizeRelayOptions) {
    this.#options = options;
    const { log } = options;
    this.#dispatch = new Loop({ name: "summarize relay", log, everyMs: POLL_MS, round: () => this.#dispatchRound() });
    this.#tidy = new Loop({ name: "summarize sweep", log, everyMs: TIDY_MS, round: () => this.#tidyRound() });
  }

  start(): void {
    this.#dispatch.start();
    this.#tidy.start();
  }

  async stop(): Promise<void> {
    await Promise.all([this.#dispatch.stop(), this.#tidy.stop()]);
  }

  poke(): void {
    this.#dispatch.poke();
  }

  jobStarted(taskId: string): void {
    this.#outstanding.delete(taskId);
  }

  async #dispatchRound(): Promise<void> {
    const { pool, named, agents, slots, running, exhaustedTenants } = this.#options;
    // One more than can run: the next is at hand when a slot is free, and what comes after it is still decided here.
    const room = slots + 1 - running() - this.#outstanding.size;
    if (room <= 0) return;
    const { rows } = await pool.query<{ id: string }>({
      name: "capstan-dispatch-tasks",
      text: named(DISPATCH_TASKS_SQL),
      values: [agents, await exhaustedTenants(), room],
    });
    if (rows.length > 0) hitFailpoint("summarize.dispatched");
    for (const { id } of rows) this.#outstanding.add(id);
  }

  async #tidyRound(): Promise<void> {
    const { pool, named, lostAfterMs, log, exhaustedTenants } = this.#options;
    // Jobs that another worker of the pool took never start here. Those that still wait in the queue go on counting: what
    // is added behind them is decided too early, and one tenant's would pile up before another's next.
    if (this.#outstanding.size > 0) {
      const asked = [...this.#outstanding];
      const { rows: waiting } = await pool.query<{ id: string }>({ name: "capstan-still-dispatched", text: named(STILL_DISPATCHED_SQL), values: [asked] });
      for (const id of asked) if (waiting.every((row) => row.id !== id)) this.#outstanding.delete(id);
    }
    const { rows } = await pool.query<{ id: string; fencing_token: number; given_up: boolean }>({
      name: "capstan-free-tasks",
      text: named(FREE_TASKS_SQL),
      values: [MAX_TASK_CRASHES, lostAfterMs],
    });
    for (const { id, fencing_token: token, given_up: givenUp } of rows) {
      log.warn({ taskId: id, givenUp }, "a compaction's worker is gone");
      if (!givenUp) continue;
      const error = { reason: "interrupted", detail: { message: `${MAX_TASK_CRASHES} workers died over this summary` } };
      await pool.query(named("select capstan.finish_compaction($1, $2, null, $3::jsonb)"), [id, token, JSON.stringify(error)]);
    }
    if (rows.length > 0) this.poke();
    await pool.query({ name: "capstan-drop-tasks", text: named(DROP_TASKS_SQL) });
    const exhausted = await exhaustedTenants();
    if (exhausted.length > 0) await pool.query({ name: "capstan-tasks-wait-for-quota", text: named(WAIT_FOR_QUOTA_SQL), values: [exhausted] });
  }
}
