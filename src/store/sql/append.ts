/**
 * Appends to the journals of many runs in one statement and one commit.
 *
 * Isolation: READ COMMITTED. Each run's guard stands in the UPDATE itself and is checked on the locked row (Postgres
 * checks it again when the row changed since the statement began). Lock order: run row, then events, then wishes, as
 * everywhere. A row that somebody else holds for long (a caller's transaction around capstan.send, say) must not make
 * the neighbours wait: after LOCK_TIMEOUT_MS the statement fails with 55P03 and its members are tried one by one. The
 * timeout is set inside the statement, so that nothing is left behind on a pooled connection. FOR UPDATE SKIP LOCKED
 * did the same and cost 54 bytes of WAL a row.
 *
 * A run that is absent from the result was not written: the writer asks why (journal-writer.ts). A claim also asks that
 * the worker has not been buried by the sweep: an incarnation that was swept must not take new runs, since nobody would
 * sweep them again. For held runs the fencing token says the same and more.
 */
import { seqOf } from "../../domain/position.ts";
import type { AppendRequest } from "../../engine/ports.ts";
import { plainArray, textArray } from "./array-literal.ts";

/** Longer than any lock of ours is held (one statement); shorter would only make groups fall apart on a slow disk. */
export const LOCK_TIMEOUT_MS = 400;

export const APPEND_SQL = `
with limits as materialized (
  select set_config('lock_timeout', '${LOCK_TIMEOUT_MS}', true), capstan.now() as now
), item as (
  select * from unnest($1::uuid[], $2::int[], $3::int[], $4::boolean[], $5::int[], $6::int[], $7::int[], $8::text[], $9::text[], $10::timestamptz[],
    $11::int[], $12::int[], $13::bigint[], $14::int[], $15::int[], $16::text[], $17::int[], $18::bigint[], $19::bigint[], $20::bigint[], $21::bigint[], $22::bigint[],
    $23::smallint[], $24::smallint[], $25::text[], $26::text[], $27::text[], $28::boolean[], $29::timestamptz[], $30::int[], $48::int[], $51::boolean[], $52::smallint[])
  as i(run_id, expected_next, token, release, inbox_most, added, applied, state, wait_reason, wake_at,
    turn, added_bytes, transcript_bytes, view_epoch, context_tokens, context_scale, context_window, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, cost_usd_micros,
    growth_level, retry_count, error_code, definition_sha, last_span, reset_crashes, wish_at, append_id, view_marker, on_ended, budget_level)
), changed as (
  update capstan.runs r set
    updated_at = l.now,
    worker_id = case when h.release then null else $31::uuid end,
    fencing_token = case when h.token is null then r.fencing_token + 1 else r.fencing_token end,
    next_seq = r.next_seq + h.added,
    turn = h.turn,
    crash_count = case when h.reset_crashes then 0 else r.crash_count end,
    retry_count = h.retry_count,
    taken_over = r.taken_over and h.token is null,
    growth_level = h.growth_level, budget_level = h.budget_level,
    view_epoch = h.view_epoch,
    view_marker_seq = h.view_marker,
    inbox_pending = r.inbox_pending - h.applied,
    context_tokens = h.context_tokens, context_scale = h.context_scale, context_window = h.context_window,
    journal_bytes = r.journal_bytes + h.added_bytes, transcript_bytes = h.transcript_bytes,
    input_tokens = h.input_tokens, output_tokens = h.output_tokens,
    cache_read_tokens = h.cache_read_tokens, cache_write_tokens = h.cache_write_tokens, cost_usd_micros = h.cost_usd_micros,
    last_span = h.last_span,
    state = h.state, wait_reason = h.wait_reason, wake_at = h.wake_at,
    error_code = h.error_code, definition_sha = h.definition_sha,
    finished_at = case when h.state in ('completed', 'failed', 'cancelled') then coalesce(r.finished_at, l.now) end
  from item h cross join limits l
  where r.id = h.run_id and r.next_seq = h.expected_next and (r.finished_at is null or h.on_ended)
    and case when h.token is null
      then r.worker_id is null and not r.paused and not exists (select from capstan.pauses p where p.value in ('*', r.tenant))
        and exists (select from capstan.workers w where w.id = $31::uuid and w.ended_at is null)
      else r.fencing_token = h.token and r.worker_id = $31::uuid end
    and (h.inbox_most is null or r.inbox_pending - h.applied <= h.inbox_most) and r.inbox_pending >= h.applied
  returning r.id, r.fencing_token, r.inbox_pending, r.paused or exists (select from capstan.pauses p where p.value in ('*', r.tenant)) as paused, r.journal_bytes, r.pool, r.priority, r.agent, r.tenant, r.taken_over, h.append_id, l.now,
    -- A stop that came beside this commit found the run held, and wished for nothing.
    case when h.release and r.finished_at is null and r.inbox_pending > 0 and exists (select from capstan.inbox i where i.run_id = r.id and i.kind = 'stop' and i.applied_seq is null)
      then '-infinity' else h.wish_at end as wish_at
), written as (
  insert into capstan.events (run_id, at, append_id, seq, turn, fencing_token, view_epoch, size, version, attempt, type, step_key, origin, actor, inbox_id, blob_refs, payload)
  select c.id, c.now, c.append_id, e.seq, e.turn, c.fencing_token, e.epoch, octet_length(e.payload), e.version, e.attempt, e.type, e.step_key, e.origin, e.actor, e.inbox_id,
    case when e.blob_ref is not null then array[e.blob_ref] end, e.payload::json
  from unnest($32::uuid[], $33::int[], $34::int[], $35::int[], $36::smallint[], $37::smallint[], $38::text[], $39::text[], $40::text[], $41::text[], $42::uuid[], $43::text[], $44::text[])
    as e(run_id, seq, turn, epoch, version, attempt, type, step_key, origin, actor, inbox_id, blob_ref, payload)
  join changed c on c.id = e.run_id
), wished as (
  insert into capstan.wishes as w (run_id, at, priority, ready, pool, agent, tenant)
  select c.id, greatest(c.wish_at, c.now), c.priority, c.wish_at <= c.now, c.pool, c.agent, c.tenant from changed c where c.wish_at is not null
  on conflict (run_id) do update set at = least(w.at, excluded.at), ready = w.ready or excluded.ready
), taken as (
  update capstan.inbox b set applied_seq = a.seq
  from unnest($45::uuid[], $46::uuid[], $47::int[]) as a(run_id, id, seq)
  join changed c on c.id = a.run_id
  where b.id = a.id and b.run_id = a.run_id
), settled as (
  update capstan.waits w set settled_at = c.now
  from unnest($49::uuid[], $50::uuid[]) as s(run_id, id)
  join changed c on c.id = s.run_id
  where w.id = s.id and w.run_id = s.run_id and w.settled_at is null
)
select id, fencing_token, inbox_pending, paused, journal_bytes::float8, taken_over from changed`;

export interface PreparedAppend {
  readonly request: AppendRequest;
  readonly appendId: number;
  /** Canonical payload texts, in the order of the request's events. */
  readonly payloads: readonly string[];
  /** UTF-8 bytes of all payloads. */
  readonly bytes: number;
  readonly versions: readonly number[];
}

/** The run's own seq of the last event that the writer knows. */
export function lastSeqOf({ expectedSeq, seqOffset = 0 }: AppendRequest): number {
  return seqOf(expectedSeq, seqOffset);
}

/** Far enough in the past to be due by any clock: "now" is the database's to say. */
const DUE = "-infinity";

export function appendValues(workerId: string, items: readonly PreparedAppend[]): unknown[] {
  const of = (pick: (item: PreparedAppend) => string | number | boolean | null | undefined) => plainArray(items.map(pick));
  const patch = (pick: (p: AppendRequest["patch"]) => string | number | boolean | null | undefined) => of((item) => pick(item.request.patch));
  // What users' own models and tracing give: a comma in it would move the values of the neighbours.
  const patchText = (pick: (p: AppendRequest["patch"]) => string | undefined) => textArray(items.map((item) => pick(item.request.patch)));
  const rows = items.flatMap((item) =>
    item.request.events.map((event, i) => ({ item, event, seq: lastSeqOf(item.request) + 1 + i, version: item.versions[i], payload: item.payloads[i] })),
  );
  const row = (pick: (r: (typeof rows)[number]) => string | number | null | undefined) => plainArray(rows.map(pick));
  const rowText = (pick: (r: (typeof rows)[number]) => string | null | undefined) => textArray(rows.map(pick));
  const applied = items.flatMap((item) => item.request.applied.map(({ id, seq }) => ({ runId: item.request.runId, id, seq: seqOf(seq, item.request.seqOffset ?? 0) })));
  const settled = items.flatMap(({ request }) => (request.settles ?? []).map((id) => ({ runId: request.runId, id })));
  return [
    of((i) => i.request.runId),
    of((i) => lastSeqOf(i.request) + 1),
    of((i) => (i.request.guard.kind === "held" ? i.request.guard.token : null)),
    of((i) => i.request.release),
    of((i) => i.request.inboxAtMost),
    of((i) => i.request.events.length),
    of((i) => i.request.applied.length),
    patch((p) => p.status),
    patch((p) => p.waitReason),
    patch((p) => timestamp(p.wakeAt)),
    patch((p) => p.turn),
    of((i) => i.bytes),
    patch((p) => p.transcriptBytes),
    patch((p) => p.viewEpoch),
    patch((p) => p.contextTokens),
    patch((p) => p.contextScale),
    patch((p) => p.contextWindow),
    patch((p) => p.usage.inputTokens),
    patch((p) => p.usage.outputTokens),
    patch((p) => p.usage.cacheReadTokens),
    patch((p) => p.usage.cacheWriteTokens),
    patch((p) => p.usage.costUsdMicros),
    patch((p) => p.growthLevel),
    patch((p) => p.retryCount),
    patchText((p) => p.errorCode),
    patch((p) => p.definitionSha),
    patchText((p) => p.lastSpan),
    patch((p) => p.resetCrashes),
    of((i) => (i.request.wish === undefined ? null : i.request.wish === "now" ? DUE : timestamp(i.request.wish))),
    of((i) => i.appendId),
    workerId,
    row((r) => r.item.request.runId),
    row((r) => r.seq),
    row((r) => r.event.turn),
    row((r) => r.event.epoch),
    row((r) => r.version),
    row((r) => r.event.attempt),
    row((r) => r.event.type),
    row((r) => r.event.stepKey),
    rowText((r) => r.event.origin),
    rowText((r) => r.event.actor),
    row((r) => r.event.inboxId),
    row((r) => (r.event.type === "tool.completed" ? r.event.payload.blob?.sha256 : null)),
    rowText((r) => r.payload),
    plainArray(applied.map((a) => a.runId)),
    plainArray(applied.map((a) => a.id)),
    plainArray(applied.map((a) => a.seq)),
    patch((p) => p.viewMarker),
    plainArray(settled.map((s) => s.runId)),
    plainArray(settled.map((s) => s.id)),
    of((i) => i.request.onEnded ?? false),
    patch((p) => p.budgetLevel),
  ];
}

function timestamp(at: Date | undefined): string | undefined {
  return at?.toISOString();
}
