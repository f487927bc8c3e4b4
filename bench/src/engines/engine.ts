/** What a cell needs of an engine under test. One file per engine beside this one. */

export interface EngineHooks {
  /** The first event of a run is committed (engines that can tell). */
  firstEvent(run: number): void;
  /** A turn (from 0) with its tool result is committed. */
  turn(run: number, turn: number): void;
  /** The run has ended: its last answer is recorded. */
  done(run: number, error?: unknown): void;
}

export interface EngineOptions {
  readonly url: string;
  readonly concurrency: number;
  readonly hooks: EngineHooks;
  /** How long the model takes for this call. */
  think(run: number, turn: number): Promise<void> | undefined;
}

export interface StartedEngine {
  enqueue(run: number, turns: number): Promise<void>;
  stop(): Promise<void>;
  /** Throws unless the database holds so many completed runs with so many answers and results, warm-up included. */
  verify?(runs: number, events: number): Promise<void>;
}

export interface Engine {
  /** For the table. */
  readonly title: string;
  /** Whether it counts as a durable peer: every step recorded before the next. */
  readonly kind: "ours" | "durable" | "by hand";
  /** Cheap engines get more runs, so that a cell takes some seconds. */
  readonly pace: "fast" | "slow";
  start(options: EngineOptions): Promise<StartedEngine>;
}

/** At most `limit` at once: for engines that are called, not given work. */
export function limited(limit: number): (work: () => Promise<void>) => void {
  let active = 0;
  const waiting: (() => Promise<void>)[] = [];
  const next = (): void => {
    while (active < limit) {
      const work = waiting.shift();
      if (work === undefined) return;
      active++;
      void work().finally(() => {
        active--;
        next();
      });
    }
  };
  return (work) => {
    waiting.push(work);
    next();
  };
}
