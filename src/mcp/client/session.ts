/** One connection to a server, from its handshake to its loss. */
import { setTimeout as sleep } from "node:timers/promises";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { ToolListChangedNotificationSchema } from "@modelcontextprotocol/sdk/types.js";
import type { Log } from "../../engine/ports.ts";
import { VERSION } from "../../version.ts";
import { boundedFetch } from "./bounded-fetch.ts";
import { listTools, type Listing } from "./listing.ts";
import { StdioTransport } from "./stdio-transport.ts";
import type { FetchFor, HttpServer, ServerConfig } from "./spec.ts";

export interface Session {
  readonly client: Client;
  /** As it was at the handshake. */
  readonly listing: Listing;
  readonly pid: number | undefined;
  /** Resolves when the connection is lost or was ended. */
  readonly over: Promise<void>;
  readonly isOver: boolean;
  readonly endReason: string | undefined;
  /** It was cut off for what it sent. */
  readonly isFlooded: boolean;
  /** Calls that were under way when it ended: a single one is the one that was answered by a flood. */
  readonly callsAtEnd: number;
  /** A call begins; what it gives is to be called when it has ended. */
  begin(): () => void;
  /** Given up, with the reason for whoever asks. */
  end(reason: string): void;
  /** The server's tools are asked for anew, soon. */
  relist(): void;
  /** Resolves when nothing of it runs any more. */
  close(): Promise<void>;
}

export interface SessionOptions {
  readonly log: Log;
  readonly fetchFor: FetchFor;
  readonly stopped: AbortSignal;
  onListed(listing: Listing): void;
}

/** A server that says of each tool it adds that its list has changed is asked once. */
const RELIST_AFTER_MS = 200;
const MAX_ODD_LINES = 5;

/** Connects and lists, within the server's own time; throws what went wrong, and then nothing of it runs any more. */
export async function openSession(server: ServerConfig, { log, fetchFor, stopped, onListed }: SessionOptions): Promise<Session> {
  const stdio = server.kind === "stdio" ? new StdioTransport(server, log) : undefined;
  const transport = stdio ?? httpTransport(server as HttpServer, fetchFor);
  const client = new Client({ name: "capstan", version: VERSION }, { capabilities: {} });
  const timeout = AbortSignal.timeout(server.connectTimeoutMs);
  const signal = AbortSignal.any([timeout, stopped]);
  const { promise: over, resolve: nowOver } = Promise.withResolvers<void>();
  let isOver = false;
  let endReason: string | undefined;
  let calls = 0;
  let callsAtEnd = 0;
  let relisting: NodeJS.Timeout | undefined;
  const end = (reason: string | undefined): void => {
    if (isOver) return;
    isOver = true;
    callsAtEnd = calls;
    endReason = stdio?.endReason ?? reason;
    clearTimeout(relisting);
    nowOver();
  };
  // The SDK's client is no EventTarget.
  // oxlint-disable-next-line unicorn/prefer-add-event-listener
  client.onclose = () => end("the connection was closed");
  let odd = 0;
  // oxlint-disable-next-line unicorn/prefer-add-event-listener
  client.onerror = (error) => {
    if (++odd <= MAX_ODD_LINES)
      log.warn({ mcpServer: server.name, problem: error.message.slice(0, 1_000) }, "an MCP server does not keep to the protocol, or its connection has a problem");
  };
  const close = async (): Promise<void> => {
    stopped.removeEventListener("abort", endNow);
    end(undefined);
    // Tells an HTTP server that the session is over; one that is away need not know.
    if (transport instanceof StreamableHTTPClientTransport) await Promise.race([transport.terminateSession().catch(() => {}), sleep(1_000, undefined, { ref: false })]);
    await client.close();
  };
  const endNow = (): void => end("the worker stops");
  stopped.addEventListener("abort", endNow, { once: true });
  try {
    await abortable(client.connect(transport, { signal, timeout: server.connectTimeoutMs }), signal);
    const list = (): Promise<Listing> => listTools(client, server, { log, signal: AbortSignal.any([stopped, AbortSignal.timeout(server.connectTimeoutMs)]) });
    const listing = await abortable(list(), signal);
    const relist = (): void => {
      if (isOver || relisting !== undefined) return;
      relisting = setTimeout(() => {
        relisting = undefined;
        list().then(onListed, (error: unknown) => {
          if (!isOver) log.warn({ mcpServer: server.name, err: error }, "the tools of an MCP server could not be listed again");
        });
      }, RELIST_AFTER_MS);
    };
    client.setNotificationHandler(ToolListChangedNotificationSchema, relist);
    return {
      client,
      listing,
      pid: stdio?.pid,
      over,
      get isOver() {
        return isOver;
      },
      get endReason() {
        return endReason;
      },
      get isFlooded() {
        return stdio?.isFlooded === true;
      },
      get callsAtEnd() {
        return callsAtEnd;
      },
      begin() {
        calls++;
        return () => void calls--;
      },
      end,
      relist,
      close,
    };
  } catch (error) {
    const reason = stdio?.endReason;
    await close();
    if (timeout.aborted) throw new Error(`it was not ready within ${server.connectTimeoutMs} ms`, { cause: error });
    throw reason === undefined ? error : new Error(reason, { cause: error });
  }
}

function httpTransport(server: HttpServer, fetchFor: FetchFor): StreamableHTTPClientTransport {
  const { url, headers, maxMessageBytes } = server;
  return new StreamableHTTPClientTransport(new URL(url), {
    requestInit: { headers: { ...headers } },
    fetch: boundedFetch({ maxBytes: maxMessageBytes, fetch: fetchFor(server) }),
  });
}

/** Some steps of a handshake heed no signal: a process that starts, a server that takes a connection and says nothing. */
async function abortable<T>(work: Promise<T>, signal: AbortSignal): Promise<T> {
  signal.throwIfAborted();
  const { promise, reject } = Promise.withResolvers<never>();
  const stop = (): void => reject(signal.reason as Error);
  signal.addEventListener("abort", stop, { once: true });
  try {
    return await Promise.race([work, promise]);
  } finally {
    signal.removeEventListener("abort", stop);
    work.catch(() => {});
  }
}
