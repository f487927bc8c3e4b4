/**
 * The one contract of background loops: `start` returns at once, `poke` makes the next round come now, `stop` may be
 * called twice or before start and resolves when nothing runs any more. A round that throws is reported and the loop
 * goes on after a pause: a database that is away must not end it.
 */
import type { Log } from "../engine/ports.ts";

export interface LoopOptions {
  readonly name: string;
  readonly log: Log;
  /** Milliseconds until the next round if nobody pokes; a round may give its own. */
  readonly everyMs: number;
  round(): Promise<number | void>;
}

const ERROR_PAUSE_MS = 500;

export class Loop {
  readonly #options: LoopOptions;
  #running: Promise<void> | undefined;
  #stopped = false;
  #poked = false;
  #wake: () => void = () => {};

  constructor(options: LoopOptions) {
    this.#options = options;
  }

  start(): void {
    if (this.#stopped || this.#running !== undefined) return;
    this.#running = this.#run();
  }

  poke(): void {
    this.#poked = true;
    this.#wake();
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    this.#wake();
    await this.#running;
  }

  async #run(): Promise<void> {
    let failing = false;
    while (!this.#stopped) {
      this.#poked = false;
      let pauseMs = this.#options.everyMs;
      try {
        pauseMs = (await this.#options.round()) ?? pauseMs;
        failing = false;
      } catch (error) {
        // Once per outage: the database being away is one fact, not one per round.
        if (!failing) this.#options.log.warn({ loop: this.#options.name, err: error }, "a background round failed, trying again");
        failing = true;
        pauseMs = ERROR_PAUSE_MS;
        this.#poked = false;
      }
      await this.#sleep(pauseMs);
    }
  }

  async #sleep(ms: number): Promise<void> {
    if (this.#poked || this.#stopped) return;
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, ms);
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
    this.#wake = () => {};
  }
}
