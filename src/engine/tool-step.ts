/** Answers the open calls of a response: runs them side by side, records each as soon as it is known. */
import type { AgentDefinition } from "../domain/definition.ts";
import type { CallWait } from "../domain/event.ts";
import type { OpenCall } from "../domain/fold.ts";
import { MAX_CORRECTIONS, resolveLimits } from "../domain/limits.ts";
import { SUBMIT_OUTPUT_TOOL } from "../domain/transcript/render.ts";
import type { JsonValue } from "../domain/json.ts";
import { checkGates, fail, INBOX_BATCH, prepareAgent } from "./boundary.ts";
import { applyCompactionItem } from "./compaction-step.ts";
import { isWrapUp } from "./budget-step.ts";
import { approvalFor, INBOX_LIMIT, isNews, outsideReasons, parkForCalls, readNews, takeNews } from "./call-waits.ts";
import { journaledWait } from "./deferred.ts";
import { executeCall, refuseCall, type CallEnd } from "./execute-call.ts";
import { hitFailpoint } from "./failpoints.ts";
import { checkAgainst, issuesText } from "../domain/json-schema.ts";
import type { Model } from "./model-port.ts";
import { stopIfAsked, stopTurn } from "./stop-turn.ts";
import { Interrupted, type Turn } from "./turn.ts";
import { waitIdOf } from "./wait-id.ts";

export type ToolsOutcome = { readonly kind: "answered"; readonly tookMs: number } | { readonly kind: "rest" };

const REST = { kind: "rest" } as const;

/**
 * Runs until every call of the phase is answered. The last results are staged, not committed: they share their commit
 * with the hand-over or with the next request. `ours` says that this worker has just received the response; otherwise
 * the calls are those of a worker that is gone, and what it had announced is not repeated (P4).
 */
export async function runTools(turn: Turn, ours: boolean): Promise<ToolsOutcome> {
  const { session, deps, held } = turn;
  const startedMs = deps.clockMs();
  if (!ours && ((await checkGates(turn)) === "rest" || (await stopIfAsked(turn)))) return REST;
  const prepared = await prepareAgent(turn);
  if (prepared.kind === "rest") return REST;
  const { definition } = prepared;
  let news = await readNews(turn);
  const { waitReason } = session.state;
  // A job that came for nothing: the run is not taken from those that it waits for.
  if (!ours && waitReason !== undefined && outsideReasons.has(waitReason) && !isNews(turn, news)) return REST;
  const limits = resolveLimits(definition, session.state.interactive);
  const span = turn.spans.turn(session.state.turn);
  span.set({ "capstan.calls": openCalls(turn).length });

  const toolOf = (call: OpenCall) => definition.tools.find((tool) => tool.name === call.call.name);
  if (!ours) {
    if (waitReason !== undefined) session.stage("run.resumed", { from: waitReason });
    for (const call of openCalls(turn)) {
      if (call.announced && call.waiting === undefined && toolOf(call)?.effect === "once") turn.stageEnd({ type: "tool.interrupted", call, payload: { reason: "worker_lost" } });
    }
  }
  const took = await takeNews(turn, news, definition);
  if (session.token === undefined) await turn.commit();
  if (took) hitFailpoint("answer.committed");

  if (news.stop !== undefined) {
    await stopTurn(turn, news.stop);
    return REST;
  }
  let submitted = acceptedOutput(turn, toolOf);
  for (;;) {
    const queue: OpenCall[] = [];
    for (const call of openCalls(turn)) {
      if (call.waiting !== undefined) continue;
      const refusal = refuseCall(call, toolOf(call), definition, limits);
      if (refusal !== undefined) turn.stageEnd(refusal);
      else if (call.call.name === SUBMIT_OUTPUT_TOOL && toolOf(call) === undefined) {
        const output = call.call.input ?? null;
        const checked = checkAgainst(definition.output_schema ?? {}, output);
        if (checked.ok) submitted = output;
        turn.stageEnd(
          checked.ok
            ? { type: "tool.completed", call, payload: { output: "accepted", duration_ms: 0 } }
            : {
                type: "tool.failed",
                call,
                payload: {
                  error: {
                    code: "OUTPUT_INVALID",
                    message: `the result does not fit the output schema: ${issuesText(checked.issues)}. Correct it and call ${SUBMIT_OUTPUT_TOOL} again.`,
                  },
                  duration_ms: 0,
                },
              },
        );
      } else {
        const approval = approvalFor(turn, definition, call);
        if (approval === undefined) queue.push(call);
        else stageWait(turn, call, approval);
      }
    }

    await executeAll(turn, queue, limits.parallelTools, toolOf);
    if (held.reason === "lost") throw new Interrupted();
    const open = openCalls(turn);
    if (open.length === 0) break;
    news = await readNews(turn);
    if (news.stop !== undefined) {
      await stopTurn(turn, news.stop);
      return REST;
    }
    if (open.some((call) => call.waiting === undefined)) {
      // The worker is stopping: calls that may be repeated are left open for the next worker.
      await turn.commit({ release: true, wish: "now" });
      return REST;
    }
    // All that is left is answered from outside; a refused rest means that something came just now.
    if (await takeNews(turn, news, definition)) continue;
    if ((await parkForCalls(turn, news.left)) === "parked") return REST;
    news = await readNews(turn);
    if (news.stop !== undefined) {
      await stopTurn(turn, news.stop);
      return REST;
    }
    await takeNews(turn, news, definition);
  }
  if (submitted !== undefined) {
    const output = submitted;
    do {
      // The last turn of a run whose budget is used up ends it, whatever has come for it meanwhile.
      const ended = await turn.commitEnd(() => session.stage("run.completed", { output }), undefined, isWrapUp(session.state) ? INBOX_LIMIT : 0);
      if (ended === "ended") return REST;
      // Only news for the model makes one more turn of it: a compaction does not.
    } while (await onlyCompactionWaited(turn, definition, prepared.model));
  } else if (session.state.corrections.output_invalid > MAX_CORRECTIONS) {
    await fail(turn, "OUTPUT_INVALID", `the model gave an output that does not fit the schema ${session.state.corrections.output_invalid} times`);
    return REST;
  }
  return { kind: "answered", tookMs: deps.clockMs() - startedMs };
}

/** False when input waits, which is for the next boundary. What waited for a compaction is applied: an end needs an empty inbox. */
async function onlyCompactionWaited(turn: Turn, definition: AgentDefinition, model: Model): Promise<boolean> {
  const items = await turn.deps.store.pendingInbox(turn.session.memory.row.id, INBOX_BATCH);
  if (items.length === 0 || items.some(({ kind }) => kind !== "compact" && kind !== "compaction")) return false;
  for (const item of items) await applyCompactionItem(turn, item, definition, model);
  return true;
}

type ToolOf = (call: OpenCall) => Parameters<typeof refuseCall>[1];

async function executeAll(turn: Turn, queue: OpenCall[], parallel: number, toolOf: ToolOf): Promise<void> {
  const { session, held } = turn;
  const ended: CallEnd[] = [];
  let running = 0;
  let wake: () => void = () => {};
  // What a tool throws is a result; this is for what fails around it (a blob that the database refuses).
  const broken: unknown[] = [];
  const start = (call: OpenCall): void => {
    running++;
    hitFailpoint("tool.before_execute");
    void executeCall(turn, call, toolOf(call))
      .then(
        (end) => {
          hitFailpoint("tool.executed");
          if (end !== undefined) ended.push(end);
        },
        (error: unknown) => broken.push(error),
      )
      .then(() => {
        running--;
        wake();
      });
  };
  // A call may end while the results of others are being committed: what has ended and is not staged yet keeps the loop going.
  const hasEnded = (): boolean => ended.length > 0 || broken.length > 0;
  while (queue.length > 0 || running > 0 || hasEnded()) {
    const starting: OpenCall[] = [];
    while (queue.length > 0 && running + starting.length < parallel && !held.signal.aborted) {
      const call = queue.shift() as OpenCall;
      if (toolOf(call)?.effect === "once" && !call.announced) {
        session.stage("tool.started", { call_id: call.call.call_id, index: call.index, name: call.call.name }, { attempt: 1 });
      }
      starting.push(call);
    }
    // A call with side effects begins only after the journal says so.
    if (session.hasStaged && starting.some((call) => toolOf(call)?.effect === "once")) await turn.commit();
    for (const call of starting) start(call);
    if (running === 0 && !hasEnded()) {
      if (held.signal.aborted) return;
      continue;
    }
    await new Promise<void>((resolve) => {
      wake = resolve;
      if (hasEnded()) resolve();
    });
    // Tools that end in the same moment are recorded together.
    await new Promise((resolve) => setImmediate(resolve));
    for (const end of ended.splice(0)) {
      if (end.type === "call.waiting") stageWait(turn, end.call, journaledWait(end.wait, turn.now));
      else turn.stageEnd(end);
    }
    if (broken.length > 0) throw broken[0];
    if (held.reason === "lost") return;
    if ((running > 0 || queue.length > 0) && session.hasStaged) await turn.commit();
  }
}

/** The output that a worker had accepted before it was lost, or stopped while other calls of the response were open. */
function acceptedOutput(turn: Turn, toolOf: ToolOf): JsonValue | undefined {
  const { phase } = turn.session.state;
  if (phase.kind !== "calling") return undefined;
  const accepted = phase.calls.findLast(
    (call) => call.call.name === SUBMIT_OUTPUT_TOOL && toolOf(call) === undefined && call.result !== undefined && call.result.is_error !== true,
  );
  return accepted && (accepted.call.input ?? null);
}

function openCalls(turn: Turn): OpenCall[] {
  const { phase } = turn.session.state;
  return phase.kind === "calling" ? phase.calls.filter((call) => call.result === undefined) : [];
}

function stageWait(turn: Turn, { index, call }: OpenCall, wait: CallWait): void {
  const { session } = turn;
  const waitId = waitIdOf(session.memory.row.id, session.state.turn, index, wait.kind === "approval" ? "leave" : "result");
  session.stage("call.waiting", { call_id: call.call_id, index, name: call.name, wait_id: waitId, wait });
}
