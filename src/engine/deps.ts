/** All that the engine is given by the composition root. */
import type { AgentCode } from "./code.ts";
import type { Frames } from "./frames.ts";
import type { ModelCatalogue } from "./model-port.ts";
import type { EventPayload, EventType } from "../domain/event.ts";
import type { BlobStore, CompactionReport, CompactionTasks, DefinitionStore, Deltas, EffectRing, JournalStore, Log, Tracing, UsageLedger, WarnSink } from "./ports.ts";
import type { RunCache } from "./run-memory.ts";
import type { InFlight } from "./in-flight.ts";

export interface EngineDeps {
  readonly store: JournalStore;
  readonly definitions: DefinitionStore;
  readonly blobs: BlobStore;
  readonly ledger: UsageLedger;
  readonly compactions: Pick<CompactionTasks, "result">;
  readonly ring: EffectRing;
  readonly deltas: Deltas;
  readonly models: ModelCatalogue;
  readonly agents: ReadonlyMap<string, AgentCode>;
  readonly tracing: Tracing;
  readonly log: Log;
  readonly cache: RunCache;
  readonly frames: Frames;
  readonly inFlight: InFlight;
  /**
   * A worker that still holds the lease runs the next turn at once, within these bounds: the turns while other runs wait
   * for a slot, the time always. Undefined: one job per turn.
   */
  readonly sticky: { readonly turns: number; readonly ms: number } | undefined;
  /** The application's sink for growth warnings; the process's own warning when undefined. */
  readonly onWarn: WarnSink | undefined;
  /** Counts what became of compactions. */
  readonly countCompaction: (report: CompactionReport) => void;
  /** Whether other runs wait for a slot of this worker. */
  othersWait(): boolean;
  secret(name: string, tenant: string): string | undefined;
  /** Keeps secrets out of what is about to be folded and written; undefined without redaction. */
  readonly redact?: (<T extends EventType>(type: T, payload: EventPayload<T>) => EventPayload<T>) | undefined;
  random(): number;
  /** A new UUID. */
  newId(): string;
  /** The same, ordered by time as runs' ids are. */
  newRunId(): string;
  /** Monotonic milliseconds. */
  clockMs(): number;
}
