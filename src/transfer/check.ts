/** Reads an exported run again without a database: whole, unchanged, and up to which event. */
import { createHash, type Hash } from "node:crypto";
import { damaged, LineDigest, parseLine } from "./format.ts";

export interface CheckedExport {
  readonly runId: string;
  /** The run's own last event that is in it. */
  readonly lastSeq: number;
  readonly lines: number;
}

/** Throws ImportRefusedError (IMPORT_DAMAGED) for what an import would refuse because of its digests, its counts or its end. */
export async function checkExport(lines: AsyncIterable<string>): Promise<CheckedExport> {
  const digest = new LineDigest();
  let runId: string | undefined;
  let run: { readonly id: string; readonly lastSeq: number; readonly digest: LineDigest } | undefined;
  let lastSeq: number | undefined;
  let blob: { readonly sha256: string; readonly sizeBytes: number; readonly hash: Hash; bytes: number } | undefined;
  let isOver = false;
  const endBlob = (): void => {
    if (blob !== undefined && (blob.bytes !== blob.sizeBytes || blob.hash.digest("hex") !== blob.sha256))
      throw damaged(`blob ${blob.sha256} was changed, or a part of it is missing`);
    blob = undefined;
  };
  for await (const text of lines) {
    if (text.trim() === "") continue;
    if (isOver) throw damaged("the file goes on behind its last line");
    const line = parseLine(text, digest.lines + 1);
    if (line.type !== "blob_chunk") endBlob();
    switch (line.type) {
      case "header":
        runId = line.run_id;
        break;
      case "run":
        run = { id: line.run_id, lastSeq: line.last_seq, digest: new LineDigest() };
        break;
      case "event":
        run?.digest.add(line.payload);
        break;
      case "events_end":
        if (run?.id !== line.run_id || run.digest.lines !== run.lastSeq || line.events !== run.lastSeq || run.digest.hex() !== line.sha256) {
          throw damaged(`the events of run ${line.run_id} were changed, or some are missing`);
        }
        if (line.run_id === runId) ({ lastSeq } = run);
        break;
      case "blob":
        blob = { sha256: line.sha256, sizeBytes: line.size_bytes, hash: createHash("sha256"), bytes: 0 };
        break;
      case "blob_chunk": {
        const bytes = Buffer.from(line.base64, "base64");
        if (blob?.sha256 !== line.sha256) throw damaged(`part ${line.n} of blob ${line.sha256} is out of place`);
        blob.hash.update(bytes);
        blob.bytes += bytes.byteLength;
        break;
      }
      case "definition":
      case "compaction":
      case "inbox":
      case "signal":
        break;
      case "end":
        if (line.lines !== digest.lines || line.sha256 !== digest.hex()) throw damaged("the file was changed: its lines do not have the digest that its last line says");
        isOver = true;
        continue;
    }
    digest.add(text);
  }
  if (!isOver || runId === undefined || lastSeq === undefined) throw damaged("the file is cut off: its last line is missing");
  return { runId, lastSeq, lines: digest.lines };
}
