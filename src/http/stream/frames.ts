/** What a stream of events looks like on the wire: https://html.spec.whatwg.org/multipage/server-sent-events.html (read in 2026). */
import type { RunEvent } from "../../client/handle.ts";
import type { RunDelta } from "../../domain/delta.ts";
import type { JsonObject } from "../../domain/json.ts";

/** Says to a browser how soon to come back, and gets the headers through proxies that wait for a first byte. */
export const HELLO = Buffer.from("retry: 1000\n\n");
export const KEEPALIVE = Buffer.from(": keepalive\n\n");

/** Its id is the cursor: what a client has not been given in full it asks for again. */
export function eventFrame(event: RunEvent): Buffer {
  return Buffer.from(`id: ${event.seq}\nevent: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`);
}

/** Without an id: live text is a hint, and nobody goes on from it. */
export function deltaFrames(deltas: readonly RunDelta[]): Buffer {
  return Buffer.from(deltas.map((delta) => `event: delta\ndata: ${JSON.stringify(delta)}\n\n`).join(""));
}

/** The run has ended and everything was given: a client that comes back would get nothing. */
export function endFrame(state: string): Buffer {
  return Buffer.from(`event: end\ndata: ${JSON.stringify({ state })}\n\n`);
}

/** Why the stream ends although the run goes on; a problem document as the other routes answer it. */
export function problemFrame(problem: JsonObject): Buffer {
  return Buffer.from(`event: problem\ndata: ${JSON.stringify(problem)}\n\n`);
}
