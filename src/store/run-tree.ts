/** A run with all that it started, and what those started. */
import type pg from "pg";
import type { WaitReason } from "../domain/event.ts";
import type { RunStatus } from "../domain/run.ts";

export interface RunNode {
  readonly id: string;
  readonly agent: string;
  readonly state: RunStatus;
  readonly wait_reason: WaitReason | null;
  readonly paused: boolean;
  readonly turn: number;
  readonly created_at: Date;
  readonly finished_at: Date | null;
  readonly error_code: string | null;
  readonly input_tokens: number;
  readonly output_tokens: number;
  readonly cost_usd_micros: number;
  readonly parent_run_id: string | null;
  /** The call that started it, as `t<turn>.<index>`. */
  readonly parent_call: string | null;
  readonly child_index: number | null;
  readonly children: readonly RunNode[];
}

export interface RunTree {
  readonly root: RunNode;
  /** Runs in the tree, the root among them. */
  readonly runs: number;
  /** There are more than are shown. */
  readonly is_cut: boolean;
}

type RawNode = Omit<RunNode, "children">;

export interface TreeLimits {
  /** Levels below the root. */
  readonly depth?: number;
  readonly runs?: number;
}

/** Level by level, so that a cut leaves the lowest ones out. Undefined when there is no such run. */
export async function runTree(
  db: Pick<pg.Pool, "query">,
  named: (text: string) => string,
  runId: string,
  { depth = 32, runs = 1_000 }: TreeLimits = {},
): Promise<RunTree | undefined> {
  const { rows } = await db.query<RawNode>(
    named(`with recursive tree as (
        select r.id, 0 as level from capstan.runs r where r.id = $1
        union all
        select c.id, t.level + 1 from tree t join capstan.runs c on c.parent_run_id = t.id where t.level < $2
      ), shown as (
        select t.id, t.level from tree t order by t.level, t.id limit $3
      )
      select r.id, r.parent_run_id, r.parent_call, r.child_index, r.agent, r.state, r.wait_reason, r.paused, r.turn, r.created_at, r.finished_at, r.error_code,
        r.input_tokens::float8 as input_tokens, r.output_tokens::float8 as output_tokens, r.cost_usd_micros::float8 as cost_usd_micros
      from shown s join capstan.runs r on r.id = s.id order by s.level, s.id`),
    [runId, depth, runs + 1],
  );
  const root = rows.find(({ id }) => id === runId);
  if (root === undefined) return undefined;
  const kept = rows.slice(0, runs);
  const byParent = Map.groupBy(kept, ({ parent_run_id: parent }) => parent);
  const nodeOf = (run: RawNode): RunNode => ({ ...run, children: (byParent.get(run.id) ?? []).toSorted(inOrder).map(nodeOf) });
  return { root: nodeOf(root), runs: kept.length, is_cut: rows.length > runs };
}

/** As they were asked for: by turn, call and place in the call. */
function inOrder(a: RawNode, b: RawNode): number {
  const [turnA = 0, callA = 0] = placeOf(a);
  const [turnB = 0, callB = 0] = placeOf(b);
  return turnA - turnB || callA - callB || (a.child_index ?? 0) - (b.child_index ?? 0);
}

function placeOf({ parent_call: call }: RawNode): number[] {
  return (call ?? "").slice(1).split(".").map(Number);
}
