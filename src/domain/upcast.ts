/** From a stored row to a domain event: versions lifted, payload validated, the unknown refused. */
import { CapstanError } from "./error.ts";
import { eventSchemas, eventVersions, type CapstanEvent, type EventEnvelope, type EventType } from "./event.ts";
import type { JsonObject } from "./json.ts";

/** The journal holds a type or version that this build does not know. The run is left for a newer worker; nothing is skipped. */
export class EventUnknownError extends CapstanError {
  override readonly name = "EventUnknownError";
  readonly code = "EVENT_UNKNOWN";
  override readonly details: JsonObject;
  constructor(type: string, version: number, seq: number) {
    const known = isEventType(type) ? `up to version ${eventVersions[type]}` : "not at all";
    super(`event ${seq} is ${type} v${version}, which this build knows ${known}; run a newer worker for this run`);
    this.details = { type, version, seq };
  }
}

/** A stored payload does not fit its schema: the row was written by something else, or damaged. */
export class EventInvalidError extends CapstanError {
  override readonly name = "EventInvalidError";
  readonly code = "EVENT_INVALID";
  override readonly details: JsonObject;
  constructor(type: string, seq: number, issues: readonly { path: string; message: string }[]) {
    super(`event ${seq} (${type}) does not fit its schema: ${issues.map((i) => `${i.path} ${i.message}`).join("; ")}`);
    this.details = { type, seq, issues: issues };
  }
}

/** The rows are valid one by one, but do not make a run: written by something else, or rows are missing. */
export class JournalDamagedError extends CapstanError {
  override readonly name = "JournalDamagedError";
  readonly code = "JOURNAL_DAMAGED";
  override readonly details: JsonObject;
  constructor(runId: string, options: ErrorOptions) {
    super(`the journal of run ${runId} cannot be folded: ${options.cause instanceof Error ? options.cause.message : "unknown"}; see \`capstan verify ${runId}\``, options);
    this.details = { run_id: runId };
  }
}

export interface StoredEvent extends EventEnvelope {
  readonly type: string;
  readonly version: number;
  readonly payload: unknown;
}

/** Functions from one version of a payload to the next, by type and the version they lift from. Empty while all are at 1. */
const lifts: { readonly [type: string]: { readonly [from: number]: (payload: JsonObject) => JsonObject } } = {};

/** Throws EventUnknownError or EventInvalidError. */
export function toEvent(row: StoredEvent): CapstanEvent {
  const { type, version } = row;
  if (!isEventType(type) || version > eventVersions[type]) throw new EventUnknownError(type, version, row.seq);
  let payload = row.payload;
  for (let v = version; v < eventVersions[type]; v++) {
    const lift = lifts[type]?.[v];
    if (lift === undefined) throw new EventUnknownError(type, version, row.seq);
    payload = lift(payload as JsonObject);
  }
  const parsed = eventSchemas[type].safeParse(payload);
  if (!parsed.success) {
    throw new EventInvalidError(
      type,
      row.seq,
      parsed.error.issues.map((i) => ({ path: i.path.join("."), message: i.message })),
    );
  }
  const { version: _, ...envelope } = row;
  return { ...envelope, type, payload: parsed.data } as CapstanEvent;
}

export function isEventType(type: string): type is EventType {
  return Object.hasOwn(eventSchemas, type);
}
