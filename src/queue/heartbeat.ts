/** The main thread's side of the heartbeat: ticks so that the watchdog sees it alive, and learns when it was buried. */
import { Worker } from "node:worker_threads";
import { BEAT_AT, BUSY, GAPLESS_SINCE, SLOT_COUNT, TICKS } from "./heartbeat-slots.ts";

export interface HeartbeatData {
  readonly connectionString: string;
  readonly workerId: string;
  readonly everyMs: number;
  readonly leaseMs: number;
  readonly beatSql: string;
  readonly endSql: string;
  readonly shared: SharedArrayBuffer;
}

export interface HeartbeatOptions extends Omit<HeartbeatData, "shared"> {
  busy(): number;
  /** The sweep of another worker has buried this incarnation: all that it held is lost. */
  onBuried(): void;
  onExit(error: unknown): void;
}

const TICK_MS = 200;
const RESTART_MS = 500;

export class Heartbeat {
  readonly #slots: Float64Array;
  readonly #begin: () => Worker;
  #workerId: string;
  #thread: Worker;
  readonly #ticker: NodeJS.Timeout;
  readonly #leaseMs: number;
  #stopping = false;

  constructor({ busy, onBuried, onExit, ...data }: HeartbeatOptions) {
    const shared = new SharedArrayBuffer(SLOT_COUNT * Float64Array.BYTES_PER_ELEMENT);
    this.#slots = new Float64Array(shared);
    this.#slots[BEAT_AT] = this.#slots[GAPLESS_SINCE] = Date.now();
    this.#leaseMs = data.leaseMs;
    this.#begin = () => this.#beginThread({ ...data, workerId: this.#workerId, shared }, onBuried, onExit);
    this.#workerId = data.workerId;
    this.#thread = this.#begin();
    this.#ticker = setInterval(() => {
      this.#slots[TICKS] = (this.#slots[TICKS] ?? 0) + 1;
      this.#slots[BUSY] = busy();
    }, TICK_MS);
  }

  /** Beats have reached the database without a gap for a whole lease: stale heartbeats of others mean what they say. */
  get isTrusted(): boolean {
    const now = Date.now();
    return now - (this.#slots[BEAT_AT] ?? 0) < this.#leaseMs && now - (this.#slots[GAPLESS_SINCE] ?? now) >= this.#leaseMs;
  }

  /** A thread that ends by itself is begun again: without beats this worker would be buried and never be told. */
  #beginThread(data: HeartbeatData, onBuried: () => void, onExit: (error: unknown) => void): Worker {
    const file = import.meta.url.endsWith(".ts") ? "./heartbeat-thread.ts" : "./heartbeat-thread.js";
    const thread = new Worker(new URL(file, import.meta.url), { workerData: data });
    thread.on("message", (message) => {
      if (message === "buried") onBuried();
    });
    thread.on("error", onExit);
    thread.on("exit", (code) => {
      if (this.#stopping) return;
      onExit(new Error(`the heartbeat thread ended with code ${code}`));
      setTimeout(() => {
        if (!this.#stopping) this.#thread = this.#begin();
      }, RESTART_MS).unref();
    });
    return thread;
  }

  become(workerId: string): void {
    this.#workerId = workerId;
    this.#thread.postMessage({ workerId });
  }

  async stop(): Promise<void> {
    this.#stopping = true;
    clearInterval(this.#ticker);
    this.#thread.postMessage("stop");
    await this.#thread.terminate();
  }
}
