/** Makes a tool's return value storable: checked, repaired, capped; what is too long goes to a blob with an excerpt. */
import type { ToolDefinition } from "../domain/definition.ts";
import type { EventPayload } from "../domain/event.ts";
import { canonicalJson, toJsonValue, wellFormedText, type JsonValue } from "../domain/json.ts";
import { DEFAULT_INLINE_PAYLOAD_BYTES, DEFAULT_MAX_RESULT_BYTES, resolveLimits } from "../domain/limits.ts";
import type { Turn } from "./turn.ts";

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
  const roomBytes = (definition === undefined ? DEFAULT_INLINE_PAYLOAD_BYTES : resolveLimits(definition, false).inlinePayloadBytes) - EVENT_OVERHEAD_BYTES;
  if (sizeBytes <= (tool.max_result_bytes ?? DEFAULT_MAX_RESULT_BYTES) && fitsInto(roomBytes, output, sizeBytes)) return { kind: "stored", output, ...repaired };
  if (sizeBytes > MAX_BLOB_BYTES) return tooLarge(sizeBytes);
  const mediaType = typeof output === "string" ? "text/plain" : "application/json";
  const { sha256 } = await turn.deps.blobs.put(row.tenant, row.id, Buffer.from(text), mediaType);
  // A sixth of the room, for the same reason.
  const excerptBytes = Math.min(EXCERPT_BYTES, Math.floor(roomBytes / 6) - 300);
  return { kind: "stored", output: excerpt(text, sizeBytes, sha256, excerptBytes), blob: { sha256, size_bytes: sizeBytes, media_type: mediaType }, ...repaired };
}

/** An event holds JSON text, in which a string of control characters is six times as long. */
function fitsInto(roomBytes: number, output: JsonValue, sizeBytes: number): boolean {
  if (typeof output !== "string" || sizeBytes * 6 <= roomBytes) return sizeBytes <= roomBytes;
  return sizeBytes <= roomBytes && Buffer.byteLength(JSON.stringify(output)) <= roomBytes;
}

/** Head and tail of what is too long, with the number of characters between them. Cut between code points. */
function excerpt(text: string, sizeBytes: number, sha256: string, excerptChars: number): JsonValue {
  const half = Math.floor(excerptChars / 2);
  const head = wellFormedText(text.slice(0, half)).replace(/\uFFFD$/, "");
  const tail = wellFormedText(text.slice(-half)).replace(/^\uFFFD/, "");
  const missing = text.length - head.length - tail.length;
  return `${head}\n[… ${missing} characters left out: the whole result has ${sizeBytes} bytes and is kept as blob sha256:${sha256} …]\n${tail}`;
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
