/**
 * A run as text, one JSON object a line, for another database. Rows are carried as they are (an event's payload as the
 * text that was written), so that requests rendered there have the same bytes. Every line is covered by the digest in the
 * last one; each run's events and each blob have one of their own, so that a damaged file says where.
 */
import { createHash, type Hash } from "node:crypto";
import { z } from "zod";
import { CapstanError } from "../domain/error.ts";

export const EXPORT_FORMAT = "capstan-run";
export const EXPORT_VERSION = 1;

const sha = z.string().regex(/^[0-9a-f]{64}$/);
const row = z.record(z.string(), z.unknown());

export const exportLine = z.discriminatedUnion("type", [
  z.object({ type: z.literal("header"), format: z.literal(EXPORT_FORMAT), version: z.int(), run_id: z.string(), tenant: z.string(), exported_at: z.string() }),
  z.object({ type: z.literal("definition"), sha: z.string(), definition: row }),
  /** Runs of the line, oldest first; of those before the last only what the last begins with. */
  z.object({ type: z.literal("run"), run_id: z.string(), row, last_seq: z.int().positive() }),
  z.object({ type: z.literal("event"), row, payload: z.string() }),
  z.object({ type: z.literal("events_end"), run_id: z.string(), events: z.int().positive(), sha256: sha }),
  /** A summary that is made and not put in yet: it would be paid for twice. */
  z.object({ type: z.literal("compaction"), row }),
  /** What has come for the run and was not applied; else what it was known by, without its content. */
  z.object({ type: z.literal("inbox"), row }),
  z.object({ type: z.literal("signal"), row }),
  z.object({ type: z.literal("blob"), sha256: sha, size_bytes: z.int().nonnegative(), media_type: z.string() }),
  z.object({ type: z.literal("blob_chunk"), sha256: sha, n: z.int().nonnegative(), base64: z.string() }),
  z.object({ type: z.literal("end"), lines: z.int().positive(), sha256: sha }),
]);
export type ExportLine = z.infer<typeof exportLine>;

export class ImportRefusedError extends CapstanError {
  override readonly name = "ImportRefusedError";
  readonly code: "IMPORT_DAMAGED" | "IMPORT_EXISTS" | "IMPORT_UNKNOWN_VERSION";
  constructor(code: ImportRefusedError["code"], message: string, options?: ErrorOptions) {
    super(message, options);
    this.code = code;
  }
}

export const damaged = (message: string, options?: ErrorOptions): ImportRefusedError => new ImportRefusedError("IMPORT_DAMAGED", message, options);

/** Throws ImportRefusedError: IMPORT_DAMAGED. */
export function parseLine(text: string, number: number): ExportLine {
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch (error) {
    throw damaged(`line ${number} is not JSON`, { cause: error });
  }
  const parsed = exportLine.safeParse(json);
  if (!parsed.success) throw damaged(`line ${number} is none of an exported run: ${parsed.error.issues[0]?.path.join(".") ?? ""} ${parsed.error.issues[0]?.message ?? ""}`);
  return parsed.data;
}

/** Counts and digests the lines of a file as they pass. */
export class LineDigest {
  readonly #hash: Hash = createHash("sha256");
  lines = 0;

  add(line: string): void {
    this.#hash.update(line).update("\n");
    this.lines++;
  }

  /** May be asked once. */
  hex(): string {
    return this.#hash.digest("hex");
  }
}
