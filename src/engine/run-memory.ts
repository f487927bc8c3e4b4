/**
 * What a worker knows of a run between two of its turns. A cache: every use is checked against the journal by the
 * expected seq of the next append, and a memory that disagrees is dropped and loaded again.
 */
import { createHash } from "node:crypto";
import type { AgentDefinition } from "../domain/definition.ts";
import { resumeAtMarker } from "../domain/compaction/resume.ts";
import { initialState, fold, type RunState } from "../domain/fold.ts";
import { closeChain, extendChain, startChain, type CallTail, type Chain, type Sha256 } from "../domain/transcript/chain.ts";
import { messageText, type Message } from "../domain/transcript/message.ts";
import type { CallFrame } from "../domain/transcript/render.ts";
import type { LoadedRun, RunRow } from "./ports.ts";

export const sha256: Sha256 = (...chunks) => {
  const hash = createHash("sha256");
  for (const chunk of chunks) hash.update(chunk);
  return hash.digest();
};

export interface RunMemory {
  readonly row: RunRow;
  readonly state: RunState;
  readonly meter: TranscriptMeter;
  definition: AgentDefinition | undefined;
  journalBytes: number;
  growthLevel: number;
  inboxPending: number;
  paused: boolean;
  /** The last response's count of its request, and our estimate of the same. */
  lastCount?: { readonly counted: number; readonly estimated: number };
  /** Loaded just now: what stands in `row` is fresh. */
  fresh: boolean;
  /** This process's monotonic clock when `row` was read: `row.now` is the database's time of that moment, however many turns ago. */
  readonly loadedAtMs: number;
}

export function remember({ row, events, marked }: LoadedRun, loadedAtMs: number): RunMemory {
  return {
    row,
    state: marked === undefined ? fold(events, initialState()) : resumeAtMarker({ ...marked, tail: events, usage: row.usage }),
    meter: new TranscriptMeter(),
    definition: undefined,
    journalBytes: row.journalBytes,
    growthLevel: row.growthLevel,
    inboxPending: row.inboxPending,
    paused: row.paused,
    fresh: true,
    loadedAtMs,
  };
}

/**
 * Keeps the chained hash of the view up to date by its new messages only; never serialises a message twice per frame.
 * A run has one frame, and one more for each fallback model that it had to ask.
 */
export class TranscriptMeter {
  readonly #chains = new Map<CallFrame, { chain: Chain; readonly headerBytes: number }>();
  #epoch = 0;

  /** UTF-8 bytes of the view's messages, without system prompt and tools: what the growth warning and `after_bytes` read. */
  bytes(frame: CallFrame, state: RunState): number {
    const { chain, headerBytes } = this.#extended(frame, state);
    return chain.sizeBytes - headerBytes;
  }

  /** Hash and size of the call that this view renders to. */
  close(frame: CallFrame, state: RunState, tail: CallTail): { hash: string; sizeBytes: number } {
    const { hash, sizeBytes } = closeChain(sha256, this.#extended(frame, state).chain, tail);
    return { hash: Buffer.from(hash).toString("base64url"), sizeBytes };
  }

  #extended(frame: CallFrame, state: RunState): { chain: Chain; readonly headerBytes: number } {
    // Another epoch is another view: what was hashed is no prefix of it.
    if (state.epoch !== this.#epoch) {
      this.#chains.clear();
      this.#epoch = state.epoch;
    }
    let entry = this.#chains.get(frame);
    if (entry === undefined) {
      const { renderVersion, system, tools } = frame;
      const chain = startChain(sha256, { renderVersion, system, tools });
      entry = { chain, headerBytes: chain.sizeBytes };
      this.#chains.set(frame, entry);
    }
    for (const message of state.view.slice(entry.chain.messages)) ({ chain: entry.chain } = extendChain(sha256, entry.chain, message));
    return entry;
  }
}

/** Size and digest of a view: of what a compaction replaces, and of what came of it. */
export function viewDigest(view: readonly Message[]): { readonly bytes: number; readonly digest: string } {
  const hash = createHash("sha256");
  let bytes = 0;
  for (const message of view) {
    const text = messageText(message);
    bytes += Buffer.byteLength(text);
    hash.update(text);
    hash.update("\n");
  }
  return { bytes, digest: hash.digest("base64url") };
}

/** Recently used runs, bounded by the bytes of their transcripts. */
export class RunCache {
  readonly #maxBytes: number;
  readonly #entries = new Map<string, { memory: RunMemory; bytes: number }>();
  #bytes = 0;

  constructor(maxBytes: number) {
    this.#maxBytes = maxBytes;
  }

  take(runId: string): RunMemory | undefined {
    const entry = this.#entries.get(runId);
    if (entry === undefined) return undefined;
    this.#entries.delete(runId);
    this.#bytes -= entry.bytes;
    return entry.memory;
  }

  keep(memory: RunMemory, transcriptBytes: number): void {
    // A message in memory is some three times its UTF-8 text; 2 KB for the state itself.
    const bytes = transcriptBytes * 3 + 2_048;
    if (bytes > this.#maxBytes / 4) return;
    this.take(memory.row.id);
    memory.fresh = false;
    this.#entries.set(memory.row.id, { memory, bytes });
    this.#bytes += bytes;
    for (const id of this.#entries.keys()) {
      if (this.#bytes <= this.#maxBytes) break;
      this.take(id);
    }
  }
}
