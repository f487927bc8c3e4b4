/** fetch through the guard: to the addresses that it judged and no others, once, following nothing. */
import { request as httpRequest, type IncomingMessage, type RequestOptions } from "node:http";
import { request as httpsRequest } from "node:https";
import { Readable } from "node:stream";
import { pinnedLookup, type OutgoingGuard } from "./outgoing.ts";

export interface OutgoingInit {
  readonly method?: string;
  readonly headers?: ConstructorParameters<typeof Headers>[0];
  readonly body?: string | Uint8Array | null;
  readonly signal?: AbortSignal | null;
}

export type OutgoingFetch = (url: string | URL, init?: OutgoingInit) => Promise<Response>;

/** Statuses that a Response may not have a body for. */
const BODILESS = new Set([101, 204, 205, 304]);

/** A redirect comes back as it is: where it leads to was not judged. Throws OutgoingRefusedError, or what the connection throws. */
export function outgoingFetch(guard: OutgoingGuard, options: { readonly httpsOnly?: boolean } = {}): OutgoingFetch {
  return async (given, { method = "GET", headers, body, signal } = {}) => {
    const url = new URL(given);
    const addresses = await guard.addressesOf(url, options);
    signal?.throwIfAborted();
    const response = await send(url, {
      method,
      headers: Object.fromEntries(new Headers(headers)),
      lookup: pinnedLookup(addresses),
      // A connection of its own: a pooled one would be found by the host's name.
      agent: false,
      ...(signal === undefined || signal === null ? {} : { signal }),
      ...(body === undefined || body === null ? {} : { body }),
    });
    const status = response.statusCode ?? 500;
    const pairs = Array.from({ length: response.rawHeaders.length / 2 }, (_, i): [string, string] => [
      response.rawHeaders[2 * i] as string,
      response.rawHeaders[2 * i + 1] as string,
    ]);
    if (BODILESS.has(status)) response.resume();
    return new Response(BODILESS.has(status) ? null : (Readable.toWeb(response) as ReadableStream<Uint8Array>), {
      status,
      statusText: response.statusMessage ?? "",
      headers: pairs,
    });
  };
}

export interface PostRequest {
  readonly url: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string;
  readonly signal: AbortSignal;
}

/** Of an answer so much is read, for its connection's sake; nothing of it is used. */
const MAX_ANSWER_BYTES = 64 * 1024;

/** Gives the status of what was posted over https (or to an allowed target). */
export function outgoingPost(guard: OutgoingGuard): (request: PostRequest) => Promise<number> {
  const fetch = outgoingFetch(guard, { httpsOnly: true });
  return async ({ url, headers, body, signal }) => {
    const { status, body: answer } = await fetch(url, { method: "POST", headers, body, signal });
    try {
      let bytes = 0;
      for await (const chunk of answer ?? []) if ((bytes += chunk.byteLength) > MAX_ANSWER_BYTES) break;
    } catch {
      // The status has come: whatever follows it, and however it ends, changes nothing.
    }
    return status;
  };
}

function send(url: URL, { body, ...options }: RequestOptions & { readonly body?: string | Uint8Array }): Promise<IncomingMessage> {
  return new Promise((resolve, reject) => {
    const request = (url.protocol === "https:" ? httpsRequest : httpRequest)(url, options, resolve);
    request.on("error", reject);
    request.end(body);
  });
}
