/** Makes a tool's return value storable: checked, repaired, capped; what is too long goes to a blob with an excerpt. */
import { claimCheckOf } from "../domain/claim-check.ts";
import type { ToolDefinition } from "../domain/definition.ts";
import type { EventPayload } from "../domain/event.ts";
import { grantsOf, isGranted } from "../domain/grants.ts";
import { canonicalJson, toJsonValue, wellFormedText, type JsonValue } from "../domain/json.ts";
import { DEFAULT_INLINE_PAYLOAD_BYTES, DEFAULT_MAX_RESULT_BYTES, resolveLimits } from "../domain/limits.ts";
import type { Turn } from "./turn.ts";
import { codePointStart } from "./utf8.ts";

/** Beyond this a result is refused altogether: storing it would cost the database more than any model can read. */
export const MAX_BLOB_BYTES = 64 * 1024 * 1024;
const EXCERPT_BYTES = 16 * 1024;
/** What an event holds beside its output: names, call id, blob reference. */
const EVENT_OVERHEAD_BYTES = 1024;

export type StorableResult =
  | ({ readonly kind: "stored" } & Pick<EventPayload<"tool.completed">, "output" | "blob" | "repaired">)
  | { readonly kind: "failed"; readonly error: EventPayload<"tool.failed">["error"] };

export async function storableResult(turn: Turn, tool: ToolDefinition, value: unknown): Promise<StorableResult> {
  // A huge string is measured before anything else touches it: JSON text of 300 MB does not fit into a V8 string.
  if (typeof value === "string" && value.length > MAX_BLOB_BYTES) return tooLarge(value.length);
  const json = toJsonValue(value);
  if (!json.ok) {
    return {
      kind: "failed",
      error: { code: "TOOL_RESULT_INVALID", message: `the tool ran, but its result could not be stored: at ${json.problem.path}, ${json.problem.problem}` },
    };
  }
  const output = json.value;
  let text: string;
  try {
    text = typeof output === "string" ? output : canonicalJson(output);
  } catch (error) {
    if (error instanceof RangeError) return tooLarge(Number.POSITIVE_INFINITY);
    throw error;
  }
  const sizeBytes = Buffer.byteLength(text);
  const repaired = json.repaired === 0 ? {} : { repaired: json.repaired };
  const { row, definition } = turn.session.memory;
  const roomBytes = roomOf(turn);
  const claim = definition && claimCheckOf(definition, tool.name);
  const isWithheld = claim !== undefined && sizeBytes > claim.overBytes;
  if (!isWithheld && sizeBytes <= (tool.max_result_bytes ?? DEFAULT_MAX_RESULT_BYTES) && fitsInto(roomBytes, output, sizeBytes)) return { kind: "stored", output, ...repaired };
  if (sizeBytes > MAX_BLOB_BYTES) return tooLarge(sizeBytes);
  const mediaType = typeof output === "string" ? "text/plain" : "application/json";
  const content = Buffer.from(text);
  const { sha256 } = await turn.deps.blobs.put(row.tenant, row.id, content, mediaType);
  const blob = { sha256, size_bytes: sizeBytes, media_type: mediaType };
  // A sixth of the room, since an event holds JSON text.
  const shownBytes = Math.floor(roomBytes / 6) - 300;
  const shown = isWithheld
    ? card(blob, content.subarray(0, codePointStart(content, Math.min(claim.previewBytes, shownBytes))), readsBlobs(turn))
    : excerpt(text, blob, Math.min(EXCERPT_BYTES, shownBytes), readsBlobs(turn));
  return { kind: "stored", output: shown, blob, ...repaired };
}

/** Bytes of JSON text that a result may take in this run's events. */
export function roomOf(turn: Turn): number {
  const { definition } = turn.session.memory;
  return (definition === undefined ? DEFAULT_INLINE_PAYLOAD_BYTES : resolveLimits(definition, false).inlinePayloadBytes) - EVENT_OVERHEAD_BYTES;
}

/** Whether the model can be told to read a blob: its definition lists the tool, this worker has it, and a grant covers it. */
function readsBlobs(turn: Turn): boolean {
  const { definition } = turn.session.memory;
  const code = turn.deps.agents.get(turn.session.state.agent);
  const reader = definition?.tools.find(({ name }) => code?.tools.get(name)?.engine === "read_blob");
  return definition !== undefined && reader !== undefined && isGranted(grantsOf(definition), `tool:${reader.name}`);
}

type BlobRef = NonNullable<EventPayload<"tool.completed">["blob"]>;

/** What the model sees of a result that is withheld from it. */
function card({ sha256, size_bytes, media_type }: BlobRef, preview: Buffer, canRead: boolean): JsonValue {
  const note = `The result is withheld, except for the first ${preview.byteLength} bytes. ${canRead ? "Call read_blob with this sha256 to read it page by page." : "It is kept for people to look at."}`;
  return { sha256, size_bytes, media_type, preview: preview.toString(), note };
}

/** An event holds JSON text, in which a string of control characters is six times as long. */
function fitsInto(roomBytes: number, output: JsonValue, sizeBytes: number): boolean {
  if (typeof output !== "string" || sizeBytes * 6 <= roomBytes) return sizeBytes <= roomBytes;
  return sizeBytes <= roomBytes && Buffer.byteLength(JSON.stringify(output)) <= roomBytes;
}

/** Head and tail of what is too long, with the number of characters between them. Cut between code points. */
function excerpt(text: string, { sha256, size_bytes }: BlobRef, excerptChars: number, canRead: boolean): JsonValue {
  const half = Math.floor(excerptChars / 2);
  const head = wellFormedText(text.slice(0, half)).replace(/\uFFFD$/, "");
  const tail = wellFormedText(text.slice(-half)).replace(/^\uFFFD/, "");
  const missing = text.length - head.length - tail.length;
  const how = canRead ? "; read_blob reads it" : "";
  return `${head}\n[… ${missing} characters left out: the whole result has ${size_bytes} bytes and is kept as blob sha256:${sha256}${how} …]\n${tail}`;
}

function tooLarge(sizeBytes: number): StorableResult {
  const size = Number.isFinite(sizeBytes) ? `${sizeBytes} bytes` : "more than fits into memory";
  return {
    kind: "failed",
    error: {
      code: "TOOL_RESULT_TOO_LARGE",
      message: `the tool ran, but its result (${size}) is over the limit of ${MAX_BLOB_BYTES} bytes and was not kept; ask for less at a time`,
    },
  };
}
