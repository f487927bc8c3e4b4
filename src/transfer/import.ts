/** Puts an exported run into this database, where it goes on under its own id: all of it in one transaction, or nothing. */
import { createHash, type Hash } from "node:crypto";
import type pg from "pg";
import { eventVersions, type EventType } from "../domain/event.ts";
import { definitionSha } from "../store/definitions.ts";
import type { AgentDefinition } from "../domain/definition.ts";
import { damaged, EXPORT_VERSION, ImportRefusedError, LineDigest, parseLine, type ExportLine } from "./format.ts";

export interface ImportOptions {
  /** Default: the tenant that it had. */
  readonly tenant?: string;
  /** Leaves the run paused: `resume` lets it go on. */
  readonly paused?: boolean;
}

export interface ImportReport {
  readonly runId: string;
  readonly tenant: string;
  readonly runs: number;
  readonly events: number;
  readonly blobs: number;
}

type Of<T extends ExportLine["type"]> = Extract<ExportLine, { type: T }>;

/**
 * Throws ImportRefusedError: IMPORT_DAMAGED for a file that was changed, cut off or is none of ours, IMPORT_EXISTS when
 * the run is here already, IMPORT_UNKNOWN_VERSION for one of a newer version. Then nothing was written.
 */
export async function importRun(pool: pg.Pool, named: (text: string) => string, lines: AsyncIterable<string>, options: ImportOptions = {}): Promise<ImportReport> {
  // Taken up before anything is waited for: what reads lines from a stream does not keep them for one who comes late.
  const iterator = lines[Symbol.asyncIterator]();
  const begun = { [Symbol.asyncIterator]: () => iterator };
  const client = await pool.connect();
  try {
    await client.query("begin");
    // The events bring their rows beside the journal along: the triggers must not make them a second time.
    await client.query("select set_config('capstan_import.running', 'on', true)");
    const importer = new Importer(client, named, options);
    for await (const line of begun) if (line.trim() !== "") await importer.take(line);
    const report = await importer.finish();
    await client.query("commit");
    return report;
  } catch (error) {
    await client.query("rollback").catch(() => {});
    throw error;
  } finally {
    client.release();
  }
}

class Importer {
  readonly #client: pg.PoolClient;
  readonly #named: (text: string) => string;
  readonly #options: ImportOptions;
  readonly #digest = new LineDigest();
  readonly #runs: Of<"run">[] = [];
  #header: Of<"header"> | undefined;
  #current: { readonly run: Of<"run">; readonly digest: LineDigest; readonly isHere: boolean; seq: number } | undefined;
  #blob: { readonly line: Of<"blob">; readonly hash: Hash; bytes: number; n: number } | undefined;
  #events = 0;
  #blobs = 0;
  #isOver = false;

  constructor(client: pg.PoolClient, named: (text: string) => string, options: ImportOptions) {
    this.#client = client;
    this.#named = named;
    this.#options = options;
  }

  async take(text: string): Promise<void> {
    if (this.#isOver) throw damaged("the file goes on behind its last line");
    const line = parseLine(text, this.#digest.lines + 1);
    if (line.type === "end") return this.#end(line);
    this.#digest.add(text);
    if (line.type === "header") return this.#begin(line);
    if (this.#header === undefined) throw damaged("the file does not begin with its header");
    if (line.type !== "blob_chunk") this.#endBlob();
    switch (line.type) {
      case "definition":
        return await this.#definition(line);
      case "run":
        return await this.#run(line);
      case "event":
        return await this.#event(line);
      case "events_end":
        return this.#eventsEnd(line);
      case "inbox":
        return await this.#insert("inbox", line.row);
      case "signal":
        return await this.#insert("signals", line.row);
      case "compaction":
        return await this.#insert("compaction_tasks", { ...line.row, tenant: this.#tenant, worker_id: null });
      case "blob":
        // As whoever stores a content (src/store/blobs.ts): retention must not take away what is found here.
        await this.#query("select pg_advisory_xact_lock_shared(1667330146, hashtext($1))", [this.#tenant]);
        this.#blob = { line, hash: createHash("sha256"), bytes: 0, n: 0 };
        return;
      case "blob_chunk":
        return await this.#chunk(line);
    }
  }

  async finish(): Promise<ImportReport> {
    if (!this.#isOver || this.#header === undefined) throw damaged("the file is cut off: its last line is missing");
    const run = this.#runs.at(-1);
    if (run?.run_id !== this.#header.run_id) throw damaged(`the file does not hold run ${this.#header.run_id}`);
    await this.#query("select capstan.land_run($1::uuid, $2)", [run.run_id, this.#options.paused ?? false]);
    return { runId: run.run_id, tenant: this.#tenant, runs: this.#runs.length, events: this.#events, blobs: this.#blobs };
  }

  get #tenant(): string {
    return this.#options.tenant ?? (this.#header as Of<"header">).tenant;
  }

  #begin(line: Of<"header">): void {
    if (this.#header !== undefined) throw damaged("the file has two headers");
    if (line.version > EXPORT_VERSION) {
      throw new ImportRefusedError("IMPORT_UNKNOWN_VERSION", `the file is of version ${line.version}, this build reads up to ${EXPORT_VERSION}; import it with a newer build`);
    }
    this.#header = line;
  }

  #end(line: Of<"end">): void {
    this.#endBlob();
    if (this.#current !== undefined) throw damaged(`run ${this.#current.run.run_id} is cut off`);
    if (line.lines !== this.#digest.lines || line.sha256 !== this.#digest.hex()) throw damaged("the file was changed: its lines do not have the digest that its last line says");
    this.#isOver = true;
  }

  async #definition({ sha, definition }: Of<"definition">): Promise<void> {
    const computed = definitionSha(definition as unknown as AgentDefinition);
    if (computed !== sha) throw damaged(`definition ${sha} was changed: its content is ${computed}`);
    await this.#query("insert into capstan.agent_definitions (sha, name, definition) values ($1, $2, $3::jsonb) on conflict (sha) do nothing", [
      sha,
      String(definition["name"]),
      JSON.stringify(definition),
    ]);
  }

  async #run(line: Of<"run">): Promise<void> {
    if (this.#current !== undefined) throw damaged(`run ${this.#current.run.run_id} is cut off`);
    const isLast = line.run_id === this.#header?.run_id;
    const found = await this.#query<{ next_seq: number }>("select next_seq from capstan.runs where id = $1::uuid for key share", [line.run_id]);
    const here = found[0];
    if (here !== undefined && (isLast || here.next_seq <= line.last_seq)) {
      throw new ImportRefusedError(
        "IMPORT_EXISTS",
        `run ${line.run_id} is in this database already${isLast ? "" : ", and shorter than this one begins with"}; nothing was imported`,
      );
    }
    this.#runs.push(line);
    this.#current = { run: line, digest: new LineDigest(), isHere: here !== undefined, seq: 0 };
    if (here !== undefined) return;
    const { row } = line;
    const finished = row["finished_at"] !== null;
    await this.#insert("runs", {
      ...row,
      tenant: this.#tenant,
      worker_id: null,
      taken_over: true,
      paused: false,
      inbox_pending: 0,
      next_seq: line.last_seq + 1,
      // Of a run that is only begun with nothing goes on here.
      ...(isLast || finished ? {} : { state: "cancelled", wait_reason: null, wake_at: null, finished_at: this.#header?.exported_at, error_code: "IMPORTED_PART" }),
    });
  }

  async #event({ row, payload }: Of<"event">): Promise<void> {
    const current = this.#current;
    if (current === undefined) throw damaged("an event stands outside of its run");
    const { type, version, seq, run_id: runId } = row as { type: string; version: number; seq: number; run_id: string };
    if (runId !== current.run.run_id || seq !== current.seq + 1) throw damaged(`event ${seq} of run ${runId} does not follow event ${current.seq} of run ${current.run.run_id}`);
    const known = eventVersions[type as EventType] as number | undefined;
    if (known === undefined || version > known) {
      throw new ImportRefusedError("IMPORT_UNKNOWN_VERSION", `event ${seq} is ${type} version ${version}, which this build does not know; import it with a newer build`);
    }
    current.seq = seq;
    current.digest.add(payload);
    if (current.isHere) {
      const same = await this.#query<{ same: boolean }>("select e.payload::text = $3 as same from capstan.events e where e.run_id = $1::uuid and e.seq = $2", [
        runId,
        seq,
        payload,
      ]);
      if (same[0]?.same !== true) throw new ImportRefusedError("IMPORT_EXISTS", `run ${runId} is in this database already, with another event ${seq}; nothing was imported`);
      return;
    }
    this.#events++;
    await this.#query(
      `insert into capstan.events (run_id, at, append_id, seq, turn, fencing_token, view_epoch, size, version, attempt, type, step_key, origin, actor, inbox_id, blob_refs, codec, key_id, payload)
       select r.run_id, r.at, r.append_id, r.seq, r.turn, r.fencing_token, r.view_epoch, r.size, r.version, r.attempt, r.type, r.step_key, r.origin, r.actor, r.inbox_id, r.blob_refs, r.codec, r.key_id, $2::json
       from jsonb_populate_record(null::capstan.events, $1::jsonb) r`,
      [JSON.stringify(row), payload],
    );
  }

  #eventsEnd({ run_id: runId, events, sha256 }: Of<"events_end">): void {
    const current = this.#current;
    if (current?.run.run_id !== runId || current.digest.lines !== events || current.seq !== current.run.last_seq || current.digest.hex() !== sha256) {
      throw damaged(`the events of run ${runId} were changed, or some are missing`);
    }
    this.#current = undefined;
  }

  async #chunk({ sha256, n, base64 }: Of<"blob_chunk">): Promise<void> {
    const blob = this.#blob;
    if (blob?.line.sha256 !== sha256 || blob.n !== n) throw damaged(`part ${n} of blob ${sha256} is out of place`);
    const bytes = Buffer.from(base64, "base64");
    blob.n++;
    blob.bytes += bytes.byteLength;
    blob.hash.update(bytes);
    await this.#query("insert into capstan.blob_chunks (tenant, sha256, n, bytes) values ($1, $2, $3, $4) on conflict do nothing", [this.#tenant, sha256, n, bytes]);
    if (blob.bytes < blob.line.size_bytes) return;
    await this.#query("insert into capstan.blobs (tenant, sha256, size_bytes, media_type) values ($1, $2, $3, $4) on conflict do nothing", [
      this.#tenant,
      sha256,
      blob.line.size_bytes,
      blob.line.media_type,
    ]);
    for (const { run_id: runId } of this.#runs)
      await this.#query("insert into capstan.blob_refs (tenant, sha256, run_id) values ($1, $2, $3) on conflict do nothing", [this.#tenant, sha256, runId]);
    this.#blobs++;
  }

  #endBlob(): void {
    if (this.#blob === undefined) return;
    const { line, hash, bytes } = this.#blob;
    if (bytes !== line.size_bytes || hash.digest("hex") !== line.sha256) throw damaged(`blob ${line.sha256} was changed, or a part of it is missing`);
    this.#blob = undefined;
  }

  async #insert(table: "runs" | "inbox" | "signals" | "compaction_tasks", row: Readonly<Record<string, unknown>>): Promise<void> {
    // Only the columns that the file has: those that came after its build keep their defaults.
    const [known] = await this.#query<{ columns: string | null }>(
      `select string_agg(quote_ident(a.attname), ', ' order by a.attnum) as columns from pg_attribute a
       where a.attrelid = 'capstan.${table}'::regclass and a.attnum > 0 and not a.attisdropped and a.attname = any($1::text[])`,
      [Object.keys(row)],
    );
    const columns = known?.columns ?? "";
    await this.#query(`insert into capstan.${table} (${columns}) select ${columns} from jsonb_populate_record(null::capstan.${table}, $1::jsonb) r`, [JSON.stringify(row)]);
  }

  async #query<Row extends pg.QueryResultRow>(text: string, values: unknown[]): Promise<Row[]> {
    try {
      return (await this.#client.query<Row>(this.#named(text), values)).rows;
    } catch (error) {
      const { code, constraint } = error as { code?: string; constraint?: string };
      if (code === "23505")
        throw new ImportRefusedError("IMPORT_EXISTS", `something of this file is in this database already (${constraint ?? "?"}); nothing was imported`, { cause: error });
      // Rows that were written by hand: what is no number, no time, no JSON.
      if (code?.startsWith("22") === true || code?.startsWith("23") === true) throw damaged(`a row of the file cannot be stored: ${(error as Error).message}`, { cause: error });
      throw error;
    }
  }
}
