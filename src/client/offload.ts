/**
 * Input that does not belong into an event: media, and text over the inline limit. It goes to a blob of the tenant, and
 * the message keeps a file part with digest, size and media type; requests carry the content again.
 */
import type { JsonValue } from "../domain/json.ts";
import { wellFormedText } from "../domain/json.ts";
import { putBlob } from "../store/blobs.ts";
import { queryTx, type Tx } from "./transaction.ts";

/** A file as a caller hands it over: `{ type: "file", media_type, data }` among the parts of an input. */
export interface FileInput {
  readonly type: "file";
  readonly media_type: string;
  readonly data: Uint8Array;
  readonly filename?: string;
}

export interface OffloadTarget {
  readonly db: Tx;
  readonly named: (text: string) => string;
  readonly tenant: string;
  readonly runId: string;
  readonly limitBytes: number;
}

/** Whether anything of this input has to go to a blob. */
export function needsOffload(input: unknown, limitBytes: number): boolean {
  if (typeof input === "string") return input.length * 3 > limitBytes && Buffer.byteLength(JSON.stringify(input)) > limitBytes;
  return Array.isArray(input) && input.some(isFileInput);
}

/** The input with every file and oversized text replaced by its file part. */
export async function offload(input: unknown, target: OffloadTarget): Promise<unknown> {
  if (typeof input === "string") return [await put(Buffer.from(wellFormedText(input)), "text/plain", target)];
  const parts: unknown[] = [];
  for (const part of input as readonly unknown[]) {
    parts.push(isFileInput(part) ? await put(part.data, part.media_type, target, part.filename) : part);
  }
  return parts;
}

async function put(content: Uint8Array, mediaType: string, { db, named, tenant, runId }: OffloadTarget, filename?: string): Promise<JsonValue> {
  const { sha256, sizeBytes } = await putBlob((text, values) => queryTx(db, named(text), values), { tenant, runId, content, mediaType });
  return { type: "file", media_type: mediaType, sha256, size_bytes: sizeBytes, ...(filename === undefined ? {} : { filename }) };
}

export function isFileInput(part: unknown): part is FileInput {
  const file = part as Partial<FileInput> | null;
  return typeof file === "object" && file !== null && file.type === "file" && file.data instanceof Uint8Array && typeof file.media_type === "string";
}
