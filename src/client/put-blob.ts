/** Media for inputs, uploaded before the run that reads it: an input names it by the file part that comes back. */
import { filePart, type FilePart } from "../domain/transcript/message.ts";
import type { Redactor } from "../domain/redact/redactor.ts";
import { putBlob } from "../store/blobs.ts";
import { uuidV7 } from "../store/uuid.ts";
import { ArgumentError, fromPostgres, InputInvalidError, TooLargeError } from "./errors.ts";
import { queryTx, type Tx } from "./transaction.ts";

export interface PutBlobOptions {
  /** As `image/png`. */
  readonly mediaType: string;
  readonly filename?: string;
  readonly tenant?: string;
  readonly tx?: Tx;
}

/** What is kept of one content at most; the limit of an upload too. */
const MAX_BLOB_BYTES = 64 * 1024 * 1024;
const MEDIA_TYPE = /^[a-z0-9][\w.+-]{0,60}\/[\w.+-]{1,60}$/i;

/**
 * Stores a content once per tenant. It stays for a day, and from the first run whose input names it as long as that run
 * does. Throws TooLargeError, ArgumentError, RedactionFailedError.
 */
export async function uploadBlob(
  db: Tx,
  named: (text: string) => string,
  content: Uint8Array,
  { mediaType, filename, tenant = "default", tx }: PutBlobOptions,
  redactor?: Redactor,
): Promise<FilePart> {
  if (!MEDIA_TYPE.test(mediaType)) throw new ArgumentError(`mediaType ${JSON.stringify(mediaType.slice(0, 100))} is none: give a type as image/png`);
  if (filename !== undefined && (filename.length < 1 || filename.length > 255)) throw new ArgumentError("filename must have 1 to 255 characters");
  if (content.byteLength > MAX_BLOB_BYTES) throw new TooLargeError(`the content of ${content.byteLength} bytes is over the limit of ${MAX_BLOB_BYTES} bytes`);
  const kept = redactor === undefined ? content : await redactor.file(content, mediaType, { place: "file", tenant });
  const name = filename === undefined ? {} : { filename: redactor === undefined ? filename : redactor.text(filename) };
  try {
    // Under an id of now that no run has: references like this one go after a day (client/content-collector.ts).
    const { sha256, sizeBytes } = await putBlob((text, values) => queryTx(tx ?? db, named(text), values), { tenant, runId: uuidV7(Date.now()), content: kept, mediaType });
    return { type: "file", media_type: mediaType, sha256, size_bytes: sizeBytes, ...name };
  } catch (error) {
    throw fromPostgres(error);
  }
}

/** Throws InputInvalidError where an input names a content that its tenant does not have: a run would find out in the middle of its first turn. */
export async function checkNamedBlobs(
  db: Tx,
  named: (text: string) => string,
  { agent, tenant, input }: { readonly agent: string; readonly tenant: string; readonly input: unknown },
): Promise<void> {
  if (!Array.isArray(input)) return;
  const parts = input.flatMap((part: unknown, i) => {
    const parsed = filePart.strict().safeParse(part);
    return parsed.success ? [{ i, sha256: parsed.data.sha256 }] : [];
  });
  if (parts.length === 0) return;
  const rows = await queryTx<{ sha256: string }>(db, named("select b.sha256 from capstan.blobs b where b.tenant = $1 and b.sha256 = any($2::text[])"), [
    tenant,
    parts.map(({ sha256 }) => sha256),
  ]);
  const missing = parts.filter(({ sha256 }) => !rows.some((row) => row.sha256 === sha256));
  if (missing.length > 0)
    throw new InputInvalidError(
      agent,
      missing.map(({ i, sha256 }) => ({ path: `$[${i}].sha256`, message: `tenant ${tenant} has no content ${sha256}: upload it first` })),
    );
}
