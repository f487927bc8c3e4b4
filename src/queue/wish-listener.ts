/**
 * Listens for wishes of other processes, and for followers; sends to followers. Hints, all of it: the relay polls anyway, so
 * a deaf listener costs half a second, and whoever follows a run finds in the journal what was not heard.
 */
import pg from "pg";
import { DELTA_CHANNEL, FOLLOW_CHANNEL, type LiveMessage } from "../domain/delta.ts";
import type { Log } from "../engine/ports.ts";
import { Loop } from "./loop.ts";

const CHECK_EVERY_MS = 5_000;

export interface WishListenerOptions {
  readonly connectionString: string;
  readonly named: (text: string) => string;
  readonly poolName: string;
  readonly log: Log;
  onWish(this: void): void;
  /** An announcement of a follower; absent for workers whose work nobody follows. */
  readonly onFollow?: ((this: void, payload: string | undefined) => void) | undefined;
}

export class WishListener {
  readonly #connectionString: string;
  readonly #named: (text: string) => string;
  readonly #poolName: string;
  readonly #onWish: () => void;
  readonly #onFollow: ((payload: string | undefined) => void) | undefined;
  readonly #loop: Loop;
  #client: pg.Client | undefined;

  constructor(options: WishListenerOptions) {
    this.#connectionString = options.connectionString;
    this.#named = options.named;
    this.#poolName = options.poolName;
    this.#onWish = options.onWish;
    this.#onFollow = options.onFollow;
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

  /** Notifies followers, in order and in one commit. Rejects when there is no connection, and when it breaks. */
  async tellFollowers(messages: readonly LiveMessage[]): Promise<void> {
    if (this.#client === undefined) throw new Error("the listener has no connection");
    await this.#client.query("select pg_notify($1, told.payload) from unnest($2::text[]) with ordinality as told(payload, at) order by told.at", [
      this.#named(DELTA_CHANNEL),
      messages.map((message) => JSON.stringify(message)),
    ]);
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
    const wishes = this.#named("capstan_wish");
    const follows = this.#named(FOLLOW_CHANNEL);
    client.on("notification", ({ channel, payload }) => {
      if (channel === follows) this.#onFollow?.(payload);
      else if (payload === this.#poolName) this.#onWish();
    });
    await client.connect();
    this.#client = client;
    try {
      // What is notified from here are hints: their commits do not wait for the disk.
      await client.query(`set synchronous_commit = off; listen ${wishes}${this.#onFollow === undefined ? "" : `; listen ${follows}`}`);
      // Followers announce themselves every few seconds; their text need not wait for it.
      if (this.#onFollow !== undefined) await this.tellFollowers([{ is: "who" }]);
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
