/** The runs of one tenant as the database shows them: rows, journals in short, what waits. */

export interface LookRow {
  readonly id: string;
  readonly parent_run_id: string | null;
  readonly parent_call: string | null;
  readonly child_index: number | null;
  readonly state: string;
  readonly wait_reason: string | null;
  readonly paused: boolean;
  readonly turn: number;
  readonly worker_id: string | null;
  readonly words: readonly (readonly [string, number, never])[];
  readonly inbox: readonly { readonly kind: string; readonly payload: unknown }[];
  readonly waits: readonly RawWait[];
  readonly wished: boolean;
}

interface RawWait {
  readonly id: string;
  readonly turn: number;
  readonly call_index: number;
  readonly kind: string;
  readonly name: string;
  readonly answered: boolean;
  readonly settled: boolean;
}

export const LOOK_SQL = `
select r.id, r.parent_run_id, r.parent_call, r.child_index, r.state, r.wait_reason, r.paused, r.turn, r.worker_id,
  (select coalesce(json_agg(json_build_array(e.type, e.turn, e.payload) order by e.seq), '[]') from capstan.events e where e.run_id = r.id) as words,
  (select coalesce(json_agg(json_build_object('kind', i.kind, 'payload', i.payload) order by i.id), '[]') from capstan.inbox i where i.run_id = r.id and i.applied_seq is null) as inbox,
  (select coalesce(json_agg(json_build_object('id', w.id, 'turn', w.turn, 'call_index', w.call_index, 'kind', w.kind, 'name', w.name, 'answered', w.answered_at is not null, 'settled', w.settled_at is not null)), '[]')
    from capstan.waits w where w.run_id = r.id) as waits,
  exists (select from capstan.wishes w where w.run_id = r.id and w.at < '9999-01-01') as wished
from capstan.runs r where r.tenant = $1 order by r.depth, r.child_index`;

export function wordsOf(events: readonly (readonly [string, number, never])[]): { words: string[]; task: string } {
  const words: string[] = [];
  let task: { id: string; prepared: boolean } | undefined;
  for (const [type, turn, payload] of events) {
    const { index, error, content, task_id: taskId } = payload as { index: number; error?: { code: string }; content?: { text: string }[]; task_id?: string };
    if (type === "input.applied") words.push(`in ${content?.[0]?.text}`);
    else if (type === "model.responded") words.push(`say ${turn}`);
    else if (type === "turn.stopped") words.push("stopped");
    else if (type === "tool.completed") words.push(`end ${turn}.${index} ok`);
    else if (type === "tool.failed") words.push(`end ${turn}.${index} ${error?.code}`);
    else if (type === "tool.interrupted") words.push(`end ${turn}.${index} interrupted`);
    else if (type === "run.completed" || type === "run.cancelled") words.push(type.slice(4));
    else if (type === "run.failed") words.push(`failed ${error?.code}`);
    else if (type === "compaction.requested") task = { id: taskId as string, prepared: false };
    else if (type === "compaction.prepared" && task !== undefined) task.prepared = true;
    else if ((type === "compaction.failed" || type === "context.compacted") && task?.id === taskId) task = undefined;
  }
  return { words, task: task === undefined ? "none" : task.prepared ? "prepared" : "open" };
}
