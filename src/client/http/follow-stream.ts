/** Follows a run over HTTP: one stream after another, each from the last event of the one before, until the run has ended. */
import type { RunDelta } from "../../domain/delta.ts";
import type { FollowItem } from "../follow.ts";
import type { RunEvent } from "../handle.ts";
import { waitFor } from "../wait-for.ts";
import { isPassing, pauseMs, type ApiRequests } from "./api-requests.ts";
import { fromProblem, type Problem } from "./errors.ts";
import { SseParser } from "./sse.ts";

/** Three signs of life that did not come (every 15 s): the connection is dead, whatever it says. */
const SILENT_FOR_MS = 45_000;
const ANSWER_WITHIN_MS = 30_000;

export interface StreamRequest {
  readonly after: number;
  readonly deltas: boolean;
  readonly signal: AbortSignal | undefined;
}

export async function* followStream(api: ApiRequests, runId: string, { after, deltas, signal }: StreamRequest): AsyncGenerator<FollowItem> {
  let last = after;
  let failed = 0;
  const isStopped = (): boolean => signal?.aborted === true;
  while (!isStopped()) {
    let retryAfterMs: number | undefined;
    const silence = new Silence();
    const either = signal === undefined ? silence.signal : AbortSignal.any([silence.signal, signal]);
    try {
      const headers = { accept: "text/event-stream", ...(last > 0 ? { "last-event-id": String(last) } : {}) };
      const path = `/runs/${encodeURIComponent(runId)}/events`;
      const response = await silence.within(ANSWER_WITHIN_MS, api.open(path, { query: deltas ? {} : { deltas: false }, headers, signal: either }));
      const reader = (response.body as ReadableStream<Uint8Array>).getReader();
      const parser = new SseParser();
      // A caller that takes its time over an item must not look like a dead connection: only reading is timed.
      for (let read = await silence.within(SILENT_FOR_MS, reader.read()); !read.done; read = await silence.within(SILENT_FOR_MS, reader.read())) {
        for (const { event, data, id } of parser.push(read.value)) {
          failed = 0;
          if (event === "end") return;
          if (event === "problem") throw problemOf(data);
          if (event === "delta") yield { type: "delta", delta: JSON.parse(data) as RunDelta };
          else if (id !== undefined && Number(id) > last) {
            last = Number(id);
            yield { type: "event", event: JSON.parse(data) as RunEvent };
          }
        }
      }
    } catch (error) {
      if (isStopped()) return;
      if (!isPassing(error)) throw error;
      ({ retryAfterMs } = error as { retryAfterMs?: number });
    } finally {
      // Also where the caller ends early: the connection is closed.
      silence.end();
    }
    // The server went away, or let go of a reader that was slow: it is asked again, for as long as the caller wants to follow.
    await waitFor(undefined, retryAfterMs ?? pauseMs(failed++), signal);
  }
}

function problemOf(data: string): Error {
  const problem = JSON.parse(data) as Problem;
  return fromProblem(problem.status ?? 500, problem);
}

/** Aborts what takes too long. */
class Silence {
  readonly #abort = new AbortController();

  get signal(): AbortSignal {
    return this.#abort.signal;
  }

  async within<T>(ms: number, work: Promise<T>): Promise<T> {
    const timer = setTimeout(() => this.#abort.abort(), ms);
    try {
      return await work;
    } finally {
      clearTimeout(timer);
    }
  }

  end(): void {
    this.#abort.abort();
  }
}
