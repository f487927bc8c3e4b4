/** Listens for wishes of other processes. A hint: the relay polls anyway, so a deaf listener costs half a second. */
import pg from "pg";
import type { Log } from "../engine/ports.ts";
import { Loop } from "./loop.ts";

const CHECK_EVERY_MS = 5_000;

export class WishListener {
  readonly #connectionString: string;
  readonly #channel: string;
  readonly #poolName: string;
  readonly #onWish: () => void;
  readonly #loop: Loop;
  #client: pg.Client | undefined;

  constructor(options: { connectionString: string; channel: string; poolName: string; log: Log; onWish(): void }) {
    this.#connectionString = options.connectionString;
    this.#channel = options.channel;
    this.#poolName = options.poolName;
    this.#onWish = options.onWish;
    this.#loop = new Loop({ name: "listen", log: options.log, everyMs: CHECK_EVERY_MS, round: () => this.#check() });
  }

  start(): void {
    this.#loop.start();
  }

  async stop(): Promise<void> {
    await this.#loop.stop();
    const client = this.#client;
    this.#client = undefined;
    await client?.end().catch(() => {});
  }

  /** Connects when there is no connection, and asks the one there is for a sign of life: a half-open socket looks healthy otherwise. */
  async #check(): Promise<void> {
    if (this.#client !== undefined) {
      try {
        await this.#client.query("select 1");
        return;
      } catch {
        this.#drop(this.#client);
      }
    }
    const client = new pg.Client({
      connectionString: this.#connectionString,
      application_name: "capstan listen",
      keepAlive: true,
      keepAliveInitialDelayMillis: 10_000,
      connectionTimeoutMillis: 5_000,
      query_timeout: 5_000,
    });
    client.on("error", () => this.#drop(client));
    client.on("end", () => this.#drop(client));
    client.on("notification", ({ payload }) => {
      if (payload === this.#poolName) this.#onWish();
    });
    await client.connect();
    this.#client = client;
    try {
      await client.query(`listen ${this.#channel}`);
    } catch (error) {
      // Kept, it would answer every later check and never hear anything.
      this.#drop(client);
      throw error;
    }
    // What was notified before we listened is found by looking once.
    this.#onWish();
  }

  #drop(client: pg.Client): void {
    if (this.#client !== client) return;
    this.#client = undefined;
    client.removeAllListeners("notification");
    void client.end().catch(() => {});
    this.#loop.poke();
  }
}
