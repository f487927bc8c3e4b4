/** The point of the demo: a worker process is killed while it holds runs, and others go on with them. */
import type pg from "pg";
import type { Fleet } from "./fleet.ts";
import { databaseNow, heldBy, takeovers, type RunRow } from "./run-rows.ts";

const MAX_TRIES = 3;

export interface CrashReport {
  readonly worker: string;
  readonly workerId: string;
  readonly pid: number;
  readonly runsHeld: number;
  readonly runIds: readonly string[];
}

export class Crash {
  readonly #fleet: Fleet;
  readonly #query: { readonly pool: pg.Pool; readonly named: (text: string) => string };
  #tries = 0;
  #at: Date | undefined;
  #held: readonly { readonly runId: string; readonly token: number }[] = [];
  #report: CrashReport | undefined;
  #takenOver = new Map<string, Date>();

  constructor(fleet: Fleet, query: { readonly pool: pg.Pool; readonly named: (text: string) => string }) {
    this.#fleet = fleet;
    this.#query = query;
  }

  get report(): CrashReport | undefined {
    return this.#report;
  }

  get mayTry(): boolean {
    return this.#report === undefined && this.#tries < MAX_TRIES;
  }

  /** Kills the worker that holds most runs. False when it turned out to hold none: between two turns a run is nobody's. */
  async kill(rows: readonly RunRow[]): Promise<boolean> {
    const holds = (id: string): number => rows.filter((row) => row.workerId === id).length;
    const victim = this.#fleet.running.toSorted((a, b) => holds(b.id) - holds(a.id))[0];
    if (victim === undefined || holds(victim.id) === 0) return false;
    this.#tries++;
    const at = await databaseNow(this.#query);
    await victim.child.kill();
    const held = await heldBy(this.#query, victim.id);
    if (held.length === 0) {
      await this.#fleet.start(1);
      return false;
    }
    this.#at = at;
    this.#held = held;
    this.#report = { worker: victim.name, workerId: victim.id, pid: victim.child.pid, runsHeld: held.length, runIds: held.map(({ runId }) => runId) };
    return true;
  }

  /** Runs that went on since the last look, with the milliseconds from the kill to the first event that another worker appended. */
  async newTakeovers(): Promise<{ runId: string; afterMs: number }[]> {
    if (this.#at === undefined || this.#takenOver.size === this.#held.length) return [];
    const found = await takeovers(this.#query, this.#held);
    const fresh = [...found.keys()].filter((runId) => !this.#takenOver.has(runId));
    this.#takenOver = found;
    return fresh.map((runId) => ({ runId, afterMs: this.takeoverMs(runId) as number }));
  }

  takeoverMs(runId: string): number | undefined {
    const at = this.#takenOver.get(runId);
    return at === undefined || this.#at === undefined ? undefined : at.getTime() - this.#at.getTime();
  }
}
