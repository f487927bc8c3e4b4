/**
 * One MCP server: connected in the background, for as long as anybody needs it, and again after each loss with growing
 * pauses.
 *
 *   down -> connecting -> up -> down -> …   until it is stopped
 *
 * A call goes out while it is up; one that finds it down waits for a moment. What was listed last stays known while it is
 * down, so that runs go on.
 */
import { setTimeout as sleep } from "node:timers/promises";
import type { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { CallToolResultSchema, type CallToolResult } from "@modelcontextprotocol/sdk/types.js";
import type { JsonObject } from "../../domain/json.ts";
import type { Log } from "../../engine/ports.ts";
import { callScope } from "./bounded-fetch.ts";
import { judge } from "./call-failure.ts";
import { McpConnectionLostError, McpFloodError, McpToolError, McpToolGoneError, McpUnavailableError } from "./errors.ts";
import { listingText, type ListedTool, type Listing } from "./listing.ts";
import { openSession, type Session } from "./session.ts";
import type { FetchFor, ServerConfig } from "./spec.ts";

export interface ConnectionOptions {
  readonly log: Log;
  readonly fetchFor: FetchFor;
  /** The list is known for the first time, or has changed. */
  onListed(server: string): void;
}

const FIRST_PAUSE_MS = 250;
const MAX_PAUSE_MS = 30_000;
/** A connection that held so long was a good one: the next loss is a first one again. */
const STEADY_MS = 30_000;
/** Tries of one call that may be repeated; one with side effects has only those that never reached the server. */
const MAX_TRIES = 3;
/** setTimeout takes no more: calls are timed by the engine, which knows the tool's own limit. */
const NO_TIMEOUT_MS = 2_147_483_647;
const PING_WITHIN_MS = 5_000;
/** How long a call waits for a server that is not there. */
const MAX_CALL_WAIT_MS = 10_000;

export interface ToolCall {
  /** As models call it. */
  readonly tool: string;
  /** The definition that the run is pinned to may be of another list. */
  check(offered: ListedTool): string | undefined;
  readonly input: JsonObject;
  readonly signal: AbortSignal;
  readonly timeoutMs: number;
  readonly isRepeatable: boolean;
}

export class ServerConnection {
  readonly server: ServerConfig;
  readonly #options: ConnectionOptions;
  #session: Session | undefined;
  #listing: Listing | undefined;
  #problem = "it has not been reached yet";
  #stop: AbortController | undefined;
  #done: Promise<void> = Promise.resolve();
  readonly #waiters = new Set<() => void>();

  constructor(server: ServerConfig, options: ConnectionOptions) {
    this.server = server;
    this.#options = options;
  }

  /** What it offers, or offered when it was last seen; undefined before it was ever reached. */
  get listing(): Listing | undefined {
    return this.#listing;
  }

  /** Why it is not there, in words. */
  get problem(): string {
    return this.#problem;
  }

  /** Of the process, for a server that is one and runs. */
  get pid(): number | undefined {
    return this.#session?.pid;
  }

  /** Resolves at once; the connection comes up in the background. */
  start(): void {
    if (this.#stop !== undefined) return;
    const stop = new AbortController();
    this.#stop = stop;
    this.#done = this.#done.then(() => this.#keep(stop.signal));
  }

  /** Resolves when its process has ended and nothing of it runs any more. May be called twice, and before start. */
  async stop(): Promise<void> {
    this.#stop?.abort();
    this.#stop = undefined;
    await this.#done;
  }

  /** Until the tools are known or the time is over. */
  async listed(withinMs: number): Promise<void> {
    const deadline = performance.now() + withinMs;
    while (this.#listing === undefined && performance.now() < deadline) await this.#change(deadline - performance.now());
  }

  /** Throws McpToolGoneError, McpUnavailableError, McpToolError, McpConnectionLostError; what the signal says when it fires. */
  async call(call: ToolCall): Promise<CallToolResult> {
    for (let tries = 1; ; tries++) {
      const session = await this.#up(call.signal);
      const offered = this.#offered(call);
      const startedMs = performance.now();
      const ended = session.begin();
      try {
        return await request(session.client, offered.name, call);
      } catch (error) {
        if (call.signal.aborted) {
          if (performance.now() - startedMs >= call.timeoutMs * 0.95) void this.#probe(session);
          throw error;
        }
        const failure = session.isFlooded && session.callsAtEnd === 1 ? ({ kind: "flood", message: session.endReason ?? "" } as const) : judge(error);
        if (failure.kind === "answered") {
          if (failure.isUnknownTool) session.relist();
          throw new McpToolError(`MCP server ${this.server.name}: ${failure.message}`, { cause: error });
        }
        if (failure.kind === "flood")
          throw new McpFloodError(`MCP server ${this.server.name}: ${failure.message}; the call was made, its answer is not kept. Ask for less at a time.`, { cause: error });
        if (failure.broken) session.end(failure.message);
        if (tries < MAX_TRIES && (failure.kind === "not_sent" || call.isRepeatable)) continue;
        const why = session.endReason ?? failure.message;
        if (failure.kind === "not_sent") throw new McpUnavailableError(`MCP server ${this.server.name} cannot be reached (${why}); the call was not made`, { cause: error });
        throw new McpConnectionLostError(
          call.isRepeatable
            ? `MCP server ${this.server.name} did not answer in ${tries} tries (${why})`
            : `MCP server ${this.server.name} was lost while the call was under way (${why}): whether it took effect is not known. Find out before you call it again.`,
          { cause: error },
        );
      } finally {
        ended();
      }
    }
  }

  #offered(call: ToolCall): ListedTool {
    const offered = this.#listing?.get(call.tool);
    const problem = offered === undefined ? "is not offered any more" : call.check(offered);
    if (offered !== undefined && problem === undefined) return offered;
    const others = [...(this.#listing?.keys() ?? [])].slice(0, 30).join(", ");
    throw new McpToolGoneError(`tool ${call.tool} ${problem}; nothing was done. MCP server ${this.server.name} offers now: ${others === "" ? "nothing" : others}`);
  }

  /** The session, as soon as there is one; not for longer than a connection may take. */
  async #up(signal: AbortSignal): Promise<Session> {
    const deadline = performance.now() + Math.min(this.server.connectTimeoutMs, MAX_CALL_WAIT_MS);
    for (;;) {
      if (this.#session !== undefined && !this.#session.isOver) return this.#session;
      signal.throwIfAborted();
      if (this.#stop === undefined || performance.now() >= deadline)
        throw new McpUnavailableError(`MCP server ${this.server.name} cannot be reached (${this.#problem}); the call was not made. Go on without it, or try again later.`);
      await this.#change(deadline - performance.now(), signal);
    }
  }

  async #keep(stopped: AbortSignal): Promise<void> {
    const { log } = this.#options;
    let failures = 0;
    while (!stopped.aborted) {
      const sinceMs = performance.now();
      let session: Session | undefined;
      try {
        session = await openSession(this.server, { ...this.#options, stopped, onListed: (listing) => this.#take(listing) });
        this.#session = session;
        log.info({ mcpServer: this.server.name, tools: session.listing.size }, "MCP server connected");
        this.#take(session.listing);
        this.#changed();
        await session.over;
        this.#problem = session.endReason ?? "the connection was closed";
      } catch (error) {
        this.#problem = error instanceof Error ? error.message : String(error);
      }
      this.#session = undefined;
      await session?.close();
      this.#changed();
      if (stopped.aborted) return;
      failures = session !== undefined && performance.now() - sinceMs > STEADY_MS ? 1 : failures + 1;
      const pauseMs = Math.min(MAX_PAUSE_MS, FIRST_PAUSE_MS * 2 ** (failures - 1));
      log.warn({ mcpServer: this.server.name, problem: this.#problem, failures, pauseMs }, "an MCP server is not there; it is tried again");
      await sleep(pauseMs, undefined, { signal: stopped }).catch(() => {});
    }
  }

  #take(listing: Listing): void {
    const isNew = this.#listing === undefined || listingText(this.#listing) !== listingText(listing);
    this.#listing = listing;
    if (isNew) this.#options.onListed(this.server.name);
  }

  /** A call ran out of time: a server that does not answer a ping either is begun anew. */
  async #probe(session: Session): Promise<void> {
    try {
      await session.client.ping({ timeout: PING_WITHIN_MS });
    } catch {
      session.end("it did not answer for longer than a call may take");
    }
  }

  #changed(): void {
    for (const wake of this.#waiters) wake();
  }

  async #change(withinMs: number, signal?: AbortSignal): Promise<void> {
    await new Promise<void>((resolve) => {
      const done = (): void => {
        clearTimeout(timer);
        signal?.removeEventListener("abort", done);
        this.#waiters.delete(done);
        resolve();
      };
      const timer = setTimeout(done, withinMs);
      signal?.addEventListener("abort", done, { once: true });
      this.#waiters.add(done);
    });
  }
}

/** Not client.callTool, which checks results against the server's own schemas and throws away those that do not fit. */
async function request(client: Client, name: string, { input, signal }: ToolCall): Promise<CallToolResult> {
  const ours = new AbortController();
  const { promise: failed, reject } = Promise.withResolvers<never>();
  failed.catch(() => {});
  const fail = (error: Error): void => {
    reject(error);
    ours.abort(error);
  };
  const answered = callScope.run({ fail }, () =>
    client.request({ method: "tools/call", params: { name, arguments: input } }, CallToolResultSchema, {
      signal: AbortSignal.any([signal, ours.signal]),
      timeout: NO_TIMEOUT_MS,
    }),
  );
  return await Promise.race([answered, failed]);
}
