/**
 * All followers of one API process. However many there are and however many runs they follow, one loop reads for them:
 * a statement for all runs twice a second, and one more for those that have grown, at once where a worker says so. Each
 * event is read and written down once for all who are live. A database that is away is waited for; streams stay open.
 */
import type { ServerResponse } from "node:http";
import type { DeltaListener } from "../../client/delta-listener.ts";
import { DatabaseUnavailableError } from "../../client/errors.ts";
import { queryTx, type Tx } from "../../client/transaction.ts";
import { waitFor } from "../../client/wait-for.ts";
import type { Log } from "../../engine/ports.ts";
import { Follower, type FollowerLimits } from "./follower.ts";
import { problemFrame } from "./frames.ts";
import { MAX_WISHES, PageReader, type Page } from "./read-pages.ts";
import { RunFeed } from "./run-feed.ts";
import { internalProblem, runGoneProblem, tokenGoneProblem } from "./stream-problems.ts";

export interface HubSettings extends FollowerLimits {
  /** How often all runs are looked at, whatever was heard. */
  readonly sweepMs: number;
  /** How soon a revoked or expired token's streams end. */
  readonly tokenCheckMs: number;
}

/** 256 KiB a client: a thousand that take nothing hold some hundred MiB at worst, and most of that is the same frames. */
export const defaultHubSettings: HubSettings = { bufferBytes: 256 * 1024, stallMs: 30_000, keepaliveMs: 15_000, sweepMs: 500, tokenCheckMs: 2_000 };

export interface HubOptions {
  readonly db: Tx;
  readonly named: (text: string) => string;
  readonly listener: DeltaListener;
  readonly log: Log;
  readonly settings: HubSettings;
}

export interface FollowRequest {
  readonly runId: string;
  readonly response: ServerResponse;
  readonly after: number;
  readonly deltas: boolean;
  readonly tokenId: string | undefined;
}

/** Hints of one moment are answered together; short beside the 80 ms for which workers gather text. */
const GATHER_MS = 25;
const OUTAGE_PAUSE_MS = 500;
const TICK_MS = 1_000;
const TOKENS_GONE = `select x.id from unnest($1::uuid[]) as x(id) left join capstan.api_tokens t on t.id = x.id
  where t.id is null or t.revoked_at is not null or t.expires_at <= capstan.now()`;

interface Wish {
  readonly feed: RunFeed;
  readonly after: number;
  /** What `reading` gave, of a page for those who are live. */
  readonly looked: number | undefined;
}

export class FollowHub {
  readonly #options: HubOptions;
  readonly #reader: PageReader;
  readonly #feeds = new Map<string, { readonly feed: RunFeed; readonly leave: () => Promise<void> }>();
  readonly #followers = new Set<Follower>();
  readonly #wished = new Set<RunFeed>();
  readonly #closed = new AbortController();
  readonly #leaving = new Set<Promise<void>>();
  #loop: Promise<void> | undefined;
  #wake: () => void = () => {};
  #timer: NodeJS.Timeout | undefined;
  #sweptMs = Number.NEGATIVE_INFINITY;
  #tokensCheckedMs = 0;
  #isCheckingTokens = false;

  constructor(options: HubOptions) {
    this.#options = options;
    this.#reader = new PageReader(options.db, options.named);
  }

  get size(): number {
    return this.#followers.size;
  }

  /** The headers were sent and the run is known to be there. From now on the response is the hub's. */
  follow({ runId, response, after, deltas, tokenId }: FollowRequest): void {
    const feed = this.#feedOf(runId.toLowerCase());
    const follower = new Follower({
      response,
      after,
      deltas,
      tokenId,
      limits: this.#options.settings,
      onRoom: () => this.#wish(feed),
      onGone: () => this.#remove(feed, follower),
    });
    this.#followers.add(follower);
    feed.add(follower);
    if (this.#closed.signal.aborted || response.destroyed) return follower.hangUp();
    this.#timer ??= setInterval(() => this.#tick(), TICK_MS).unref();
    this.#loop ??= this.#run().finally(() => (this.#loop = undefined));
  }

  /** Ends every stream at once; clients come back to whoever answers then. May be called twice. */
  async close(): Promise<void> {
    this.#closed.abort();
    clearInterval(this.#timer);
    for (const follower of this.#followers) follower.hangUp();
    await Promise.all([this.#loop, ...this.#leaving]);
  }

  #feedOf(runId: string): RunFeed {
    const known = this.#feeds.get(runId);
    if (known !== undefined) return known.feed;
    const feed: RunFeed = new RunFeed(runId, () => this.#wish(feed));
    this.#feeds.set(runId, { feed, leave: this.#options.listener.join(runId, feed) });
    return feed;
  }

  #remove(feed: RunFeed, follower: Follower): void {
    this.#followers.delete(follower);
    feed.followers.delete(follower);
    if (feed.followers.size > 0) return;
    const left = this.#feeds.get(feed.runId);
    if (left?.feed !== feed) return;
    this.#feeds.delete(feed.runId);
    this.#wished.delete(feed);
    feed.leave();
    const leaving = left.leave();
    this.#leaving.add(leaving);
    void leaving.finally(() => this.#leaving.delete(leaving));
    if (this.#feeds.size === 0) this.#wake();
  }

  #wish(feed: RunFeed): void {
    if (this.#feeds.get(feed.runId)?.feed !== feed) return;
    this.#wished.add(feed);
    this.#wake();
  }

  async #run(): Promise<void> {
    const { signal } = this.#closed;
    const { sweepMs } = this.#options.settings;
    while (this.#feeds.size > 0 && !signal.aborted) {
      const more = await this.#round();
      if (more) continue;
      if (this.#wished.size === 0 && this.#feeds.size > 0) {
        const { promise, resolve } = Promise.withResolvers<void>();
        this.#wake = resolve;
        await waitFor(promise, Math.max(0, this.#sweptMs + sweepMs - performance.now()), signal);
      }
      await waitFor(undefined, GATHER_MS, signal);
    }
  }

  /** True when there is more to be read at once. */
  async #round(): Promise<boolean> {
    const { signal } = this.#closed;
    try {
      await this.#start();
      await this.#sweep();
      return await this.#read();
    } catch (error) {
      // Nothing is lost: every follower goes on from where it is. What is no outage would come again and again, so it is told.
      const isOutage = error instanceof DatabaseUnavailableError;
      this.#options.log[isOutage ? "debug" : "error"]({ err: error, followers: this.#followers.size }, "followed runs could not be read, trying again");
      await waitFor(undefined, isOutage ? OUTAGE_PAUSE_MS : 10 * OUTAGE_PAUSE_MS, signal);
      return false;
    }
  }

  async #start(): Promise<void> {
    const feeds = [...this.#feeds.values()].flatMap(({ feed }) => (feed.seq === undefined ? [feed] : []));
    if (feeds.length === 0) return;
    const heads = await this.#reader.start(feeds.map(({ runId }) => runId));
    for (const [i, started] of heads.entries()) {
      const feed = feeds[i] as RunFeed;
      if (started.head.missing) feed.fail(runGoneProblem(feed.runId));
      else feed.started(started);
      this.#wish(feed);
    }
  }

  async #sweep(): Promise<void> {
    if (performance.now() - this.#sweptMs < this.#options.settings.sweepMs) return;
    this.#sweptMs = performance.now();
    // Also those of whom a wish was lost to an outage.
    for (const { feed } of this.#feeds.values()) this.#wished.add(feed);
    const feeds = [...this.#feeds.values()].flatMap(({ feed }) => (feed.seq === undefined || feed.isOver ? [] : [feed]));
    if (feeds.length === 0) return;
    const changed = await this.#reader.changed(feeds.map(({ runId, seq }) => ({ runId, seq: seq as number })));
    for (const i of changed.keys()) feeds[i]?.mustRead();
  }

  async #read(): Promise<boolean> {
    const wishes: Wish[] = [];
    for (const feed of this.#wished) {
      if (wishes.length >= MAX_WISHES) break;
      this.#wished.delete(feed);
      for (const { after, isLive } of feed.wishes()) wishes.push({ feed, after, looked: isLive ? feed.reading() : undefined });
    }
    if (wishes.length === 0) return false;
    let isFull = false;
    for (const [i, page] of (await this.#pages(wishes)).entries()) {
      const { feed, after, looked } = wishes[i] as Wish;
      if (page === undefined) continue;
      if (page.head.missing) feed.fail(runGoneProblem(feed.runId));
      else if (looked === undefined) feed.catchUp(after, page.events);
      else feed.tell(page.events, page.head, looked);
      isFull ||= !page.head.missing && page.events.length > 0 && (page.events.at(-1)?.seq ?? 0) < page.head.lastSeq;
    }
    return isFull || wishes.length >= MAX_WISHES;
  }

  /** One run that cannot be read must not keep the others: after an error each is read by itself. */
  async #pages(wishes: readonly Wish[]): Promise<(Page | undefined)[]> {
    const wishOf = ({ feed, after }: Wish): { runId: string; after: number } => ({ runId: feed.runId, after });
    try {
      return await this.#reader.pages(wishes.map(wishOf));
    } catch (error) {
      // What was wanted is wanted again by the next sweep.
      if (error instanceof DatabaseUnavailableError) throw error;
      if (wishes.length > 1) {
        const pages: (Page | undefined)[] = [];
        for (const wish of wishes) pages.push(...(await this.#pages([wish])));
        return pages;
      }
      const [{ feed }] = wishes as [Wish];
      this.#options.log.error({ runId: feed.runId, err: error }, "a followed run cannot be read; its streams end");
      feed.fail(internalProblem(feed.runId));
      return [undefined];
    }
  }

  #tick(): void {
    const nowMs = performance.now();
    for (const follower of this.#followers) follower.check(nowMs);
    if (nowMs - this.#tokensCheckedMs >= this.#options.settings.tokenCheckMs && !this.#isCheckingTokens) void this.#checkTokens();
  }

  async #checkTokens(): Promise<void> {
    const ids = new Set([...this.#followers].flatMap(({ tokenId }) => (tokenId === undefined ? [] : [tokenId])));
    this.#tokensCheckedMs = performance.now();
    if (ids.size === 0) return;
    this.#isCheckingTokens = true;
    try {
      const { db, named } = this.#options;
      const gone = new Set((await queryTx<{ id: string }>(db, named(TOKENS_GONE), [[...ids]])).map(({ id }) => id));
      if (gone.size > 0) this.#endStreamsOf(gone);
    } catch (error) {
      // While the database is away nothing is read for anybody either; the next check comes in seconds.
      this.#options.log.debug({ err: error }, "tokens of open streams could not be checked");
    } finally {
      this.#isCheckingTokens = false;
    }
  }

  #endStreamsOf(tokens: ReadonlySet<string>): void {
    const frame = problemFrame(tokenGoneProblem());
    for (const follower of this.#followers) if (follower.tokenId !== undefined && tokens.has(follower.tokenId)) follower.finish(frame);
  }
}
