/** The columns of a run's row as the engine reads them, and their conversion. */
import type { WaitReason } from "../../domain/event.ts";
import { positionOf } from "../../domain/position.ts";
import type { RunStatus } from "../../domain/run.ts";
import type { RunRow } from "../../engine/ports.ts";

export const RUN_COLUMNS = `r.id, r.tenant, r.agent, r.definition_sha, r.state, r.wait_reason, r.wake_at, r.paused, r.worker_id, r.fencing_token, r.next_seq, r.seq_offset, r.turn,
  r.crash_count, r.inbox_pending, r.journal_bytes::float8 as journal_bytes, r.transcript_bytes::float8 as transcript_bytes, r.growth_level, r.view_epoch, r.view_marker_seq,
  r.input_tokens::float8 as input_tokens, r.output_tokens::float8 as output_tokens, r.cache_read_tokens::float8 as cache_read_tokens, r.cache_write_tokens::float8 as cache_write_tokens, r.cost_usd_micros::float8 as cost_usd_micros,
  r.interactive, r.created_at, r.run_at, r.deadline, r.traceparent, r.priority, r.pool, r.depth, capstan.now() as now`;

export interface RawRunRow {
  id: string;
  tenant: string;
  agent: string;
  definition_sha: string | null;
  state: RunStatus;
  wait_reason: WaitReason | null;
  wake_at: Date | null;
  paused: boolean;
  worker_id: string | null;
  fencing_token: number;
  next_seq: number;
  seq_offset: number;
  turn: number;
  crash_count: number;
  inbox_pending: number;
  journal_bytes: number;
  transcript_bytes: number;
  growth_level: number;
  view_epoch: number;
  view_marker_seq: number | null;
  input_tokens: number;
  output_tokens: number;
  cache_read_tokens: number;
  cache_write_tokens: number;
  cost_usd_micros: number;
  interactive: boolean;
  created_at: Date;
  run_at: Date | null;
  deadline: Date | null;
  traceparent: string | null;
  priority: number;
  pool: string;
  depth: number;
  now: Date;
}

export function toRunRow(raw: RawRunRow): RunRow {
  return {
    id: raw.id,
    tenant: raw.tenant,
    agent: raw.agent,
    definitionSha: raw.definition_sha ?? undefined,
    status: raw.state,
    waitReason: raw.wait_reason ?? undefined,
    wakeAt: raw.wake_at ?? undefined,
    paused: raw.paused,
    workerId: raw.worker_id ?? undefined,
    fencingToken: raw.fencing_token,
    nextSeq: positionOf(raw.next_seq, raw.seq_offset),
    seqOffset: raw.seq_offset,
    turn: raw.turn,
    crashCount: raw.crash_count,
    inboxPending: raw.inbox_pending,
    journalBytes: raw.journal_bytes,
    transcriptBytes: raw.transcript_bytes,
    growthLevel: raw.growth_level,
    viewEpoch: raw.view_epoch,
    viewMarkerSeq: raw.view_marker_seq ?? undefined,
    usage: {
      inputTokens: raw.input_tokens,
      outputTokens: raw.output_tokens,
      cacheReadTokens: raw.cache_read_tokens,
      cacheWriteTokens: raw.cache_write_tokens,
      costUsdMicros: raw.cost_usd_micros,
    },
    interactive: raw.interactive,
    createdAt: raw.created_at,
    runAt: raw.run_at ?? undefined,
    deadline: raw.deadline ?? undefined,
    traceparent: raw.traceparent ?? undefined,
    priority: raw.priority,
    pool: raw.pool,
    depth: raw.depth,
    now: raw.now,
  };
}
