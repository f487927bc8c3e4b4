/**
 * Hears live text for all followers of a process, over one connection: opened for the first, closed after the last. It
 * announces their runs to the workers every few seconds, through the pool, and expects to hear its own announcement on
 * its connection: that is its sign of life, and how it finds out that it is behind a pooler which does not pass
 * notifications on. Everything heard is a hint; followers poll the journal all the same.
 */
import { randomUUID } from "node:crypto";
import pg from "pg";
import { DELTA_CHANNEL, FOLLOW_CHANNEL, MAX_ANNOUNCED_RUNS, parseAnnouncement, parseLiveMessage, type Announcement, type LiveMessage } from "../domain/delta.ts";
import { isConnectionError, sqlState } from "../store/pg-errors.ts";
import { waitFor } from "./wait-for.ts";
import { queryTx, type Tx } from "./transaction.ts";

/** A third of the time for which workers remember an announcement (queue/delta-sender.ts, FOLLOWED_FOR_MS). */
const RENEW_MS = 5_000;
/** A server that is merely busy must not look like one that does not notify. */
const ECHO_WITHIN_MS = 5_000;
const RETRY_MS = 500;
const MAX_RETRY_MS = 5_000;
/** New followers, and workers that ask, come in crowds: they are answered together. */
const GATHER_MS = 20;
/** After two connections in a row that heard nothing: it will hardly change, but a failover may mend it. */
const DEAF_RETRY_MS = 60_000;
const CLOSE_WITHIN_MS = 1_000;

/** What a follower does with what is heard of its run. */
export interface Ear {
  hear(message: LiveMessage): void;
  /** Something may have been missed: the journal should be looked into now. */
  look(): void;
}

export interface DeltaListenerOptions {
  /** Of the connection to listen on; it must not go through a pooler in transaction mode. */
  readonly connection: pg.ClientConfig;
  readonly db: Tx;
  readonly named: (text: string) => string;
}

interface Listening {
  readonly stop: AbortController;
  done: Promise<void>;
}

export class DeltaListener {
  readonly #options: DeltaListenerOptions;
  readonly #ears = new Map<string, Set<Ear>>();
  readonly #id = randomUUID();
  #listening: Listening | undefined;
  #isConnected = false;
  #isClosed = false;
  #echo: () => void = () => {};
  readonly #unannounced = new Set<string>();
  /** Connections in a row that heard nothing; of one that once heard it is an outage, not a pooler. */
  #unheard = 0;
  #hasHeard = false;
  #hasWarned = false;

  constructor(options: DeltaListenerOptions) {
    this.#options = options;
  }

  /** Gives the function that ends it; it resolves when the connection is closed, if nobody else listens. */
  join(runId: string, ear: Ear): () => Promise<void> {
    const run = runId.toLowerCase();
    const ears = this.#ears.get(run) ?? new Set();
    this.#ears.set(run, ears.add(ear));
    if (this.#listening === undefined && !this.#isClosed) {
      const listening: Listening = { stop: new AbortController(), done: Promise.resolve() };
      listening.done = this.#keepListening(listening.stop.signal);
      this.#listening = listening;
    } else if (this.#isConnected && ears.size === 1) this.#announceSoon([run]);
    return async () => {
      ears.delete(ear);
      if (ears.size === 0 && this.#ears.get(run) === ears) this.#ears.delete(run);
      if (this.#ears.size === 0) await this.#stop();
    };
  }

  /** For good. Followers that are left go on by polling. */
  async close(): Promise<void> {
    this.#isClosed = true;
    await this.#stop();
  }

  async #stop(): Promise<void> {
    const listening = this.#listening;
    this.#listening = undefined;
    listening?.stop.abort();
    await listening?.done;
  }

  async #keepListening(signal: AbortSignal): Promise<void> {
    let retryMs = RETRY_MS;
    while (!signal.aborted) {
      try {
        await this.#listen(signal);
        retryMs = RETRY_MS;
      } catch (error) {
        retryMs = Math.min(MAX_RETRY_MS, retryMs * 2);
        // While the database is away (a timeout has no SQLSTATE) there is nothing to tell: followers wait for it too.
        if (error instanceof Error && sqlState(error) !== undefined && !isConnectionError(error)) {
          this.#unheard = 2;
          this.#warn(error.message);
        }
      }
      await waitFor(undefined, this.#unheard >= 2 ? DEAF_RETRY_MS : retryMs, signal);
    }
  }

  /** Returns when the connection is lost, or hears nothing, or the signal fires. */
  async #listen(stopped: AbortSignal): Promise<void> {
    const { connection, named } = this.#options;
    const client = new pg.Client({
      ...connection,
      application_name: "capstan follow",
      keepAlive: true,
      keepAliveInitialDelayMillis: 10_000,
      connectionTimeoutMillis: 5_000,
      query_timeout: 5_000,
    });
    const lost = new AbortController();
    const signal = AbortSignal.any([stopped, lost.signal]);
    client.on("error", () => lost.abort());
    client.on("end", () => lost.abort());
    client.on("notification", ({ channel, payload }) => this.#heard(channel, payload));
    try {
      await client.connect();
      await client.query(`listen ${named(DELTA_CHANNEL)}; listen ${named(FOLLOW_CHANNEL)}`);
      this.#isConnected = true;
      for (const ears of this.#ears.values()) for (const ear of ears) ear.look();
      while (!signal.aborted) {
        const echo = Promise.withResolvers<void>();
        this.#echo = echo.resolve;
        await this.#announce([...this.#ears.keys()]);
        if (!(await waitFor(echo.promise, ECHO_WITHIN_MS, signal))) {
          if (!signal.aborted && !this.#hasHeard && ++this.#unheard >= 2) this.#warn("notifications do not arrive");
          return;
        }
        this.#unheard = 0;
        this.#hasHeard = true;
        await waitFor(undefined, RENEW_MS, signal);
      }
    } finally {
      this.#isConnected = false;
      client.removeAllListeners("notification");
      // A connection that is half gone may never say that it has ended.
      await waitFor(
        client.end().catch(() => {}),
        CLOSE_WITHIN_MS,
      );
    }
  }

  #heard(channel: string, payload: string | undefined): void {
    const { named } = this.#options;
    if (channel === named(FOLLOW_CHANNEL)) {
      if (parseAnnouncement(payload)?.id === this.#id) this.#echo();
      return;
    }
    const message = parseLiveMessage(payload);
    if (message === undefined) return;
    if (message.is === "who") return this.#announceSoon(this.#ears.keys());
    for (const ear of this.#ears.get(message.run_id) ?? []) ear.hear(message);
  }

  #announceSoon(runs: Iterable<string>): void {
    if (this.#unannounced.size === 0) {
      setTimeout(() => {
        const all = [...this.#unannounced];
        this.#unannounced.clear();
        // If it fails, the next renewal says it again.
        if (this.#isConnected) this.#announce(all).catch(() => {});
      }, GATHER_MS).unref();
    }
    for (const run of runs) this.#unannounced.add(run);
  }

  async #announce(runs: readonly string[]): Promise<void> {
    const payloads: string[] = [];
    for (let at = 0; at < runs.length; at += MAX_ANNOUNCED_RUNS) {
      payloads.push(JSON.stringify({ id: this.#id, runs: runs.slice(at, at + MAX_ANNOUNCED_RUNS) } satisfies Announcement));
    }
    const { db, named } = this.#options;
    if (payloads.length > 0) await queryTx(db, "select pg_notify($1, payload) from unnest($2::text[]) as payload", [named(FOLLOW_CHANNEL), payloads]);
  }

  #warn(why: string): void {
    if (this.#hasWarned) return;
    this.#hasWarned = true;
    process.emitWarning(
      `runs are followed without live text: ${why}. Listening needs a connection that does not go through a pooler in transaction mode (directConnectionString, CAPSTAN_DIRECT_DATABASE_URL)`,
      { type: "CapstanWarning", code: "CAPSTAN_FOLLOW_DEAF" },
    );
  }
}

/** How to reach the database of a pool once more, beside the pool. Its password is not enumerable. */
export function connectionOf(pool: pg.Pool): pg.ClientConfig {
  const { password } = pool.options;
  return { ...pool.options, ...(password === undefined ? {} : { password }) };
}
