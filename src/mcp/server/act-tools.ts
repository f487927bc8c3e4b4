/** Tools that change something: under the access's tenant, in its name, and noted in the audit log. */
import { askToCompact, compactionOutcome } from "../../client/compact.ts";
import type { EnqueueOptions } from "../../client/enqueue.ts";
import { WaitUnknownError } from "../../client/errors.ts";
import type { WaitView } from "../../client/waits.ts";
import { liveWorkersFor } from "../../store/run-list.ts";
import { act } from "./act.ts";
import { made, ownRun, shownStatus, type RunTool, type ToolCallContext } from "./run-tool.ts";
import * as inputs from "./schemas.ts";

/** Repeated it changes nothing more. */
const SETTLING = { readOnlyHint: false, idempotentHint: true, destructiveHint: false } as const;
const ACT = { readOnlyHint: false, destructiveHint: false } as const;

export const actTools: readonly RunTool[] = [
  made(
    "enqueue_run",
    "runs:create",
    ACT,
    "Starts a run of an agent and answers at once, before it has done anything. Follow it with follow_run.",
    inputs.enqueueInput,
    async ({ agent, input, idempotency_key, priority, run_at, deadline, interactive, labels, metadata }, context) => {
      const { client, db, named, access } = context;
      const options = dropUnset({
        tenant: access.tenant,
        subject: access.subject,
        actor: access.actor,
        idempotencyKey: idempotency_key,
        priority,
        runAt: run_at === undefined ? undefined : new Date(run_at),
        deadline: deadline === undefined ? undefined : new Date(deadline),
        interactive,
        labels,
        metadata,
      }) as EnqueueOptions;
      const run = await act(
        context,
        async (tx) => {
          const started = await client.enqueue(agent, input, { ...options, tx });
          const { rowCount } = await tx.query(named("select 1 from capstan.runs where id = $1::uuid and xmin = pg_current_xact_id()::xid"), [started.id]);
          return { started, isNew: rowCount === 1 };
        },
        ({ started, isNew }) => (isNew ? { action: "run.create", target: started.id, detail: { agent } } : undefined),
      );
      const workers = await liveWorkersFor(db, named, agent, "turn");
      return { ...shownStatus(await run.started.status()), ...(workers === 0 ? { note: `no worker with agent ${agent} is running: the run waits until one starts` } : {}) };
    },
  ),
  made(
    "send_input",
    "runs:steer",
    ACT,
    "Sends input to a run: an answer to one that waits for input, steering to one at work. Applied at its next boundary.",
    inputs.sendInput,
    async ({ run_id, content, dedupe_key }, context) => {
      const { run } = await ownRun(run_id, context);
      const { actor } = context.access;
      const inputId = await act(
        context,
        (tx) => run.send(content, { actor, tx, ...(dedupe_key === undefined ? {} : { dedupeKey: dedupe_key }) }),
        (id) => ({ action: "run.input", target: run_id, detail: { input_id: id } }),
      );
      return { run_id, input_id: inputId };
    },
  ),
  made("stop_run", "runs:steer", ACT, "Stops the turn at hand of an interactive run, which stays and waits for input.", inputs.stopInput, async ({ run_id, reason }, context) => {
    const { run } = await ownRun(run_id, context);
    const { actor } = context.access;
    await act(
      context,
      (tx) => run.stop(reason, { actor, tx }),
      () => ({ action: "run.stop", target: run_id }),
    );
    return { run_id, stopping: true };
  }),
  made(
    "cancel_run",
    "runs:steer",
    { ...SETTLING, destructiveHint: true },
    "Ends a run and the runs that it started, for good.",
    inputs.stopInput,
    async ({ run_id, reason }, context) => {
      const { run } = await ownRun(run_id, context);
      const { actor } = context.access;
      const cancelled = await act(
        context,
        (tx) => run.cancel(reason, { actor, tx }),
        (isDone) => (isDone ? { action: "run.cancel", target: run_id } : undefined),
      );
      return { run_id, cancelled };
    },
  ),
  made(
    "compact_run",
    "runs:create",
    ACT,
    "Replaces the older part of what a run's model sees by a summary. Nothing of its journal is lost. `applied` says what came of it.",
    inputs.compactInput,
    async ({ run_id, when, wait_ms }, context) => {
      await ownRun(run_id, context);
      const { db, named, access, signal } = context;
      const inboxId = await act(
        context,
        (tx) => askToCompact(run_id, { db: tx, named }, { when, actor: access.actor }),
        () => ({ action: "run.compact", target: run_id, detail: { when } }),
      );
      return await compactionOutcome(run_id, { db, named }, { inboxId, timeoutMs: wait_ms, signal });
    },
  ),
  made(
    "decide_approval",
    "approvals:decide",
    ACT,
    "Lets a call that waits be made, or not. The first decision counts. Ask the person whom you work for before you decide.",
    inputs.decideInput,
    async ({ run_id, call_id, decision, input, reason }, context) => {
      const { id } = await openWait(run_id, call_id, "approval", context);
      const by = { actor: context.access.actor, ...(reason === undefined ? {} : { reason }) };
      const { waits } = context.client;
      await act(
        context,
        (tx) => (decision === "deny" ? waits.deny(id, { ...by, tx }) : waits.approve(id, { ...by, tx, ...(input === undefined ? {} : { input }) })),
        () => ({ action: `approval.${decision}`, target: run_id, detail: { call_id, ...(input === undefined ? {} : { changed_input: true }) } }),
      );
      return { run_id, call_id, decision };
    },
  ),
  made("answer_question", "runs:steer", ACT, "Answers a question that a run asks.", inputs.answerInput, async ({ run_id, call_id, answer }, context) => {
    const { id } = await openWait(run_id, call_id, "question", context);
    const { actor } = context.access;
    await act(
      context,
      (tx) => context.client.waits.answer(id, answer, { actor, tx }),
      () => ({ action: "question.answer", target: run_id, detail: { wait_id: id } }),
    );
    return { run_id, call_id, answered: true };
  }),
];

async function openWait(runId: string, callId: string, kind: WaitView["kind"], context: ToolCallContext): Promise<WaitView> {
  await ownRun(runId, context);
  const waits = await context.client.waits.list({ runId, tenant: context.access.tenant, kinds: [kind], limit: 1_000 });
  const found = waits.find((wait) => wait.call_id === callId);
  if (found === undefined) throw new WaitUnknownError(`no ${kind} of call ${callId} is open in run ${runId}; list_approvals shows those that are`);
  return found;
}

function dropUnset(object: object): object {
  return Object.fromEntries(Object.entries(object).filter(([, value]) => value !== undefined));
}
