/**
 * fetch for the HTTP transport: no response is read without end, and a call whose response breaks off learns of it. The
 * SDK tells nobody of a stream that ends without its answer, and the call would wait for its timeout.
 */
import { AsyncLocalStorage } from "node:async_hooks";
import type { FetchLike } from "@modelcontextprotocol/sdk/shared/transport.js";
import { McpConnectionLostError, McpFloodError } from "./errors.ts";

/** The call that a request is made for. */
export interface CallScope {
  /** Of no effect once the call has its answer. */
  fail(error: Error): void;
}

export const callScope = new AsyncLocalStorage<CallScope>();

export interface BoundedFetchOptions {
  /** Of one message. */
  readonly maxBytes: number;
  readonly fetch: FetchLike;
}

/** An answer that was read last is handed over a little after its stream has ended. */
const HAND_OVER_MS = 1_000;
const NEWLINE = 0x0a;
const RETURN = 0x0d;

export function boundedFetch({ maxBytes, fetch }: BoundedFetchOptions): FetchLike {
  return async (url, init) => {
    const response = await fetch(url, init);
    const { body, status, statusText, headers } = response;
    // Redirects are followed, or not, by who asked.
    if (body === null || (status >= 300 && status < 400)) return response;
    const scope = init?.method === "POST" ? callScope.getStore() : undefined;
    const isStream = headers.get("content-type")?.startsWith("text/event-stream") === true;
    return new Response(bounded(body, { maxBytes, isStream, scope }), { status, statusText, headers });
  };
}

function bounded(
  body: ReadableStream<Uint8Array>,
  { maxBytes, isStream, scope }: { readonly maxBytes: number; readonly isStream: boolean; readonly scope: CallScope | undefined },
): ReadableStream<Uint8Array> {
  const reader = body.getReader();
  const counter = isStream ? new EventCounter() : undefined;
  let totalBytes = 0;
  return new ReadableStream<Uint8Array>({
    async pull(controller) {
      try {
        const { done, value } = await reader.read();
        if (done) {
          controller.close();
          // One with event ids is taken up again where it broke off.
          if (isStream && scope !== undefined && counter?.isResumable !== true)
            setTimeout(() => scope.fail(new McpConnectionLostError("the server ended its response without an answer")), HAND_OVER_MS).unref();
          return;
        }
        totalBytes += value.byteLength;
        const largest = counter?.take(value) ?? totalBytes;
        // A stream of one call may bring progress before its answer, but not for ever.
        if (largest <= maxBytes && (scope === undefined || totalBytes <= 4 * maxBytes)) return controller.enqueue(value);
        const flood = new McpFloodError(`the server sent more than ${maxBytes} bytes in one message`);
        scope?.fail(flood);
        controller.error(flood);
        await reader.cancel(flood);
      } catch (error) {
        scope?.fail(new McpConnectionLostError("the server broke off its response", { cause: error }));
        controller.error(error);
      }
    },
    cancel: (reason) => reader.cancel(reason),
  });
}

/** Bytes of the largest event of a text/event-stream so far. */
class EventCounter {
  isResumable = false;
  #eventBytes = 0;
  #lineStart = "";
  #isEmptyLine = true;

  take(chunk: Uint8Array): number {
    let largest = this.#eventBytes;
    for (const byte of chunk) {
      this.#eventBytes++;
      if (byte === NEWLINE) {
        if (this.#isEmptyLine) this.#eventBytes = 0;
        this.#isEmptyLine = true;
        this.#lineStart = "";
      } else if (byte !== RETURN) {
        this.#isEmptyLine = false;
        if (this.#lineStart.length < 3) this.#lineStart += String.fromCharCode(byte);
        if (this.#lineStart === "id:") this.isResumable = true;
      }
      if (this.#eventBytes > largest) largest = this.#eventBytes;
    }
    return largest;
  }
}
