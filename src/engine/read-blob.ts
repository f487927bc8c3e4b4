/** `read_blob`: what is kept outside the transcript, page by page, to the run that refers to it. */
import { CapstanError } from "../domain/error.ts";
import type { JsonObject } from "../domain/json.ts";
import { wellFormedText } from "../domain/json.ts";
import { DEFAULT_PAGE_BYTES, type ReadBlobInput } from "./engine-tool-inputs.ts";
import { roomOf } from "./tool-result.ts";
import type { Turn } from "./turn.ts";
import { codePointStart } from "./utf8.ts";

/** Longest UTF-8 sequence but its first byte: so far a page's start may be moved back. */
const LOOK_BACK_BYTES = 3;
const HEADING_BYTES = 512;
/** Beyond any blob, and within what Postgres counts in an int. */
const MAX_OFFSET = 2 ** 30;

export class BlobRefusedError extends CapstanError {
  override readonly name = "BlobRefusedError";
  readonly code: "BLOB_NOT_FOUND" | "BLOB_OFFSET_INVALID";
  override readonly details: JsonObject;
  constructor(code: BlobRefusedError["code"], message: string, details: JsonObject = {}) {
    super(message);
    this.code = code;
    this.details = details;
  }
}

export async function readBlob(turn: Turn, { sha256: given, offset = 0, limit = DEFAULT_PAGE_BYTES }: ReadBlobInput): Promise<string> {
  const { row } = turn.session.memory;
  const sha256 = given.replace(/^sha256:/, "").toLowerCase();
  const wanted = Math.min(offset, MAX_OFFSET);
  const from = Math.max(0, wanted - LOOK_BACK_BYTES);
  // One byte more tells whether the page ends within a code point.
  const found = await turn.deps.blobs.page({ tenant: row.tenant, runId: row.id, sha256 }, from, wanted - from + limit + 1);
  // Another tenant's blob, another run's and none: the same words, or asking would tell what others hold.
  if (found === undefined) throw new BlobRefusedError("BLOB_NOT_FOUND", `there is no blob sha256:${sha256} in this run; use a digest as it was shown to you`);
  const { sizeBytes, mediaType, bytes } = found;
  const heading = `blob sha256:${sha256}, ${mediaType}, ${sizeBytes} bytes`;
  if (!isText(mediaType)) return `[${heading}: this is no text and cannot be read by pages]`;
  if (offset > 0 && offset >= sizeBytes)
    throw new BlobRefusedError("BLOB_OFFSET_INVALID", `offset ${offset} is past the end: the blob has ${sizeBytes} bytes`, { size_bytes: sizeBytes });
  const start = codePointStart(bytes, wanted - from);
  const { text, end } = pageOf(bytes, start, Math.min(limit, bytes.length - start), roomOf(turn) - HEADING_BYTES);
  const [first, next] = [from + start, from + end];
  const left = sizeBytes - next;
  return `[${heading}; bytes ${first} to ${next} follow, ${left === 0 ? "nothing is left" : `${left} are left: read on with offset ${next}`}]\n${text}`;
}

/** At most so many bytes, and no more than an event has room for: as JSON, control characters are six times as long. */
function pageOf(bytes: Uint8Array, start: number, limitBytes: number, roomBytes: number): { readonly text: string; readonly end: number } {
  for (let limit = limitBytes; ; limit = Math.floor(limit / 2)) {
    const end = codePointStart(bytes, start + limit);
    const text = wellFormedText(Buffer.from(bytes.buffer, bytes.byteOffset + start, end - start).toString());
    if (Buffer.byteLength(JSON.stringify(text)) <= roomBytes) return { text, end };
  }
}

/** By what it was stored as: claim-checked results and offloaded input always say what they are. */
function isText(mediaType: string): boolean {
  return /^text\/|[/+](json|xml|yaml|x-yaml|javascript|ecmascript|toml|x-ndjson|ndjson|sql|csv|x-sh)\b/i.test(mediaType);
}
