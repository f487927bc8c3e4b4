/** Asks the database which of the runs in flight are no longer ours (cancelled, taken over) or were asked to stop, and aborts those. */
import type { InFlight } from "../engine/in-flight.ts";
import type { JournalStore, Log } from "../engine/ports.ts";
import { Loop } from "./loop.ts";

/** A cancel reaches the call in flight within this time and a round trip: the promise is one second. */
const POLL_MS = 300;
/** Turns shorter than this are never asked about: their own next commit finds out. */
const MIN_AGE_MS = 200;

export class HeldWatch {
  readonly #loop: Loop;
  readonly #inFlight: InFlight;
  readonly #store: JournalStore;
  readonly #log: Log;

  constructor(inFlight: InFlight, store: JournalStore, log: Log) {
    this.#inFlight = inFlight;
    this.#store = store;
    this.#log = log;
    this.#loop = new Loop({ name: "held runs", log, everyMs: POLL_MS, round: () => this.#round() });
  }

  start(): void {
    this.#loop.start();
  }

  stop(): Promise<void> {
    return this.#loop.stop();
  }

  async #round(): Promise<void> {
    const held = this.#inFlight.olderThan(MIN_AGE_MS, performance.now());
    if (held.length === 0) return;
    const called = new Map((await this.#store.called(held.map(({ run, token }) => ({ runId: run.runId, token })))).map(({ runId, why }) => [runId, why]));
    for (const { run, token } of held) {
      // Its token may have moved on while we asked: then the answer was about a lease that it gave back itself.
      const why = called.get(run.runId);
      if (why === undefined || run.token !== token) continue;
      if (run.reason === undefined)
        this.#log.info({ runId: run.runId, fencingToken: token }, why === "lost" ? "aborting a run that was cancelled or taken over" : "stopping the turn of a run");
      run.abort(why);
    }
  }
}
