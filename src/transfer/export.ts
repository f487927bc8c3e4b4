/** Writes a run down for another database, as it stands at a boundary: from one snapshot, line by line, never as one string. */
import type pg from "pg";
import { CapstanError } from "../domain/error.ts";
import { readLine, type LineSegment } from "../store/line.ts";
import { EXPORT_FORMAT, EXPORT_VERSION, LineDigest, type ExportLine } from "./format.ts";

/** The run works on a turn, or has calls open. */
export class ExportBusyError extends CapstanError {
  override readonly name = "ExportBusyError";
  readonly code = "RUN_BUSY";
  override readonly retryable = true;
}

export class ExportUnknownRunError extends CapstanError {
  override readonly name = "ExportUnknownRunError";
  readonly code = "RUN_MISSING";
}

const EVENTS_PER_PAGE = 500;
/** A page ends with the event that reaches this: events may have megabytes. */
const BYTES_PER_PAGE = 4_194_304;
const ROWS_PER_FETCH = 10;

/**
 * The lines without their newlines. Throws ExportBusyError unless the run rests at a boundary: it awaits input, is paused
 * or queued, or has ended. What follows of it here and there are two runs under one id: pause or cancel this one.
 */
export async function* exportRun(pool: pg.Pool, named: (text: string) => string, runId: string): AsyncGenerator<string> {
  const digest = new LineDigest();
  const client = await pool.connect();
  try {
    await client.query("begin isolation level repeatable read read only");
    for await (const line of linesOf(client, named, runId)) {
      const text = lineText(line);
      digest.add(text);
      yield text;
    }
    yield JSON.stringify({ type: "end", lines: digest.lines, sha256: digest.hex() } satisfies ExportLine);
  } finally {
    // Nothing was written; a follower that stopped reading early ends here too.
    await client.query("rollback").catch(() => {});
    client.release();
  }
}

/** Some readers take these for the end of a line, which JSON leaves as they are. */
const lineText = (line: ExportLine): string => JSON.stringify(line).replaceAll(/[\u0085\u2028\u2029]/g, (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`);

async function* linesOf(client: pg.PoolClient, named: (text: string) => string, runId: string): AsyncGenerator<ExportLine> {
  const { rows } = await client.query<{ tenant: string; is_busy: boolean; state: string; wait_reason: string | null; now: string }>(
    named(`select r.tenant, r.state, r.wait_reason, to_jsonb(capstan.now()) #>> '{}' as now,
             r.worker_id is not null or exists (select from capstan.waits w where w.run_id = r.id and w.settled_at is null)
               or (r.finished_at is null and not r.paused and r.state = 'running') as is_busy
           from capstan.runs r where r.id = $1`),
    [runId],
  );
  const run = rows[0];
  if (run === undefined) throw new ExportUnknownRunError(`no run ${runId}`);
  if (run.is_busy) {
    throw new ExportBusyError(
      `run ${runId} is in the middle of a turn (${run.wait_reason ?? run.state}); pause it and wait until its turn is done, or export it when it awaits input or has ended`,
    );
  }
  yield { type: "header", format: EXPORT_FORMAT, version: EXPORT_VERSION, run_id: runId, tenant: run.tenant, exported_at: run.now };
  const line = await readLine(client, named, runId);
  yield* definitions(client, named, line);
  for (const segment of line) yield* segmentLines(client, named, segment);
  const each = (text: string) => rowsOf(client, named(text), runId);
  for await (const row of each("select to_jsonb(t) as row from capstan.compaction_tasks t where t.run_id = $1 and t.state = 'ready'")) yield { type: "compaction", row };
  // Of what was applied and taken only the key by which it is known again.
  for await (const row of each(
    `select to_jsonb(i) || case when i.applied_seq is null then '{}' else '{"payload": {}}'::jsonb end as row from capstan.inbox i
     where i.run_id = $1 and case when i.applied_seq is not null then i.kind = 'input' and i.dedupe_key is not null
       when i.kind = 'compaction' then exists (select from capstan.compaction_tasks t where t.id = (i.payload ->> 'task_id')::uuid and t.state = 'ready')
       else i.kind in ('input', 'compact') end order by i.id`,
  ))
    yield { type: "inbox", row };
  for await (const row of each(
    `select to_jsonb(s) || case when s.wait_id is null then '{}' else '{"payload": {}}'::jsonb end as row from capstan.signals s
     where s.run_id = $1 and (s.wait_id is null or s.dedupe_key is not null) order by s.id`,
  ))
    yield { type: "signal", row };
  yield* blobs(client, named, line, run.tenant);
}

async function* definitions(client: pg.PoolClient, named: (text: string) => string, line: readonly LineSegment[]): AsyncGenerator<ExportLine> {
  const { rows } = await client.query<{ sha: string; definition: Record<string, unknown> }>(
    named("select d.sha, d.definition from capstan.agent_definitions d where d.sha = any($1::text[]) order by d.sha"),
    [line.flatMap(({ definitionSha }) => definitionSha ?? [])],
  );
  for (const { sha, definition } of rows) yield { type: "definition", sha, definition };
}

async function* segmentLines(client: pg.PoolClient, named: (text: string) => string, { runId, last }: LineSegment): AsyncGenerator<ExportLine> {
  const { rows } = await client.query<{ row: Record<string, unknown>; next_seq: number }>(named("select to_jsonb(r) as row, r.next_seq from capstan.runs r where r.id = $1"), [
    runId,
  ]);
  const run = rows[0] as { row: Record<string, unknown>; next_seq: number };
  const lastSeq = last ?? run.next_seq - 1;
  yield { type: "run", run_id: runId, row: run.row, last_seq: lastSeq };
  const own = new LineDigest();
  for (let seq = 0; seq < lastSeq;) {
    const page = await client.query<{ seq: number; row: Record<string, unknown>; payload: string }>(
      named(`with page as (
               select e.seq, sum(e.size) over (order by e.seq) - e.size as before from capstan.events e where e.run_id = $1 and e.seq > $2 and e.seq <= $3 order by e.seq limit ${EVENTS_PER_PAGE})
             select e.seq, to_jsonb(e) - 'payload' as row, e.payload::text as payload from page p join capstan.events e on e.run_id = $1 and e.seq = p.seq where p.before < ${BYTES_PER_PAGE} order by e.seq`),
      [runId, seq, lastSeq],
    );
    if (page.rows.length === 0) throw new Error(`run ${runId} has no event ${seq + 1}: its journal is damaged`);
    for (const event of page.rows) {
      own.add(event.payload);
      yield { type: "event", row: event.row, payload: event.payload };
      ({ seq } = event);
    }
  }
  yield { type: "events_end", run_id: runId, events: own.lines, sha256: own.hex() };
}

/** By what the runs refer to: also blobs that only a base's events name. */
async function* blobs(client: pg.PoolClient, named: (text: string) => string, line: readonly LineSegment[], tenant: string): AsyncGenerator<ExportLine> {
  const { rows } = await client.query<{ sha256: string; size_bytes: number; media_type: string }>(
    named(`select b.sha256, b.size_bytes::float8 as size_bytes, b.media_type from capstan.blobs b
           where b.tenant = $1 and b.sha256 in (select r.sha256 from capstan.blob_refs r where r.tenant = $1 and r.run_id = any($2::uuid[])) order by b.sha256`),
    [tenant, line.map(({ runId }) => runId)],
  );
  for (const { sha256, size_bytes, media_type } of rows) {
    yield { type: "blob", sha256, size_bytes, media_type };
    for (let n = 0; ; n++) {
      const chunk = await client.query<{ base64: string }>(
        named("select encode(c.bytes, 'base64') as base64 from capstan.blob_chunks c where c.tenant = $1 and c.sha256 = $2 and c.n = $3"),
        [tenant, sha256, n],
      );
      if (chunk.rows[0] === undefined) break;
      yield { type: "blob_chunk", sha256, n, base64: chunk.rows[0].base64.replaceAll("\n", "") };
    }
  }
}

/** By a cursor: a thousand signals may be kept, each of a megabyte. One at a time; the end of the transaction closes it in any case. */
async function* rowsOf(client: pg.PoolClient, text: string, runId: string): AsyncGenerator<Record<string, unknown>> {
  await client.query(`declare capstan_export no scroll cursor for ${text}`, [runId]);
  for (;;) {
    const { rows } = await client.query<{ row: Record<string, unknown> }>(`fetch ${ROWS_PER_FETCH} from capstan_export`);
    for (const { row } of rows) yield row;
    if (rows.length < ROWS_PER_FETCH) break;
  }
  await client.query("close capstan_export");
}
