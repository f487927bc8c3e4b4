/** Executes one tool call and turns whatever comes of it into the payload of an event. Never throws. */
import type { AgentDefinition, ToolDefinition } from "../domain/definition.ts";
import type { EventPayload } from "../domain/event.ts";
import type { OpenCall } from "../domain/fold.ts";
import { CapabilityRefusedError } from "../domain/capability-error.ts";
import { recordError } from "../domain/error.ts";
import { toJsonValue, type JsonValue } from "../domain/json.ts";
import { DEFAULT_TOOL_TIMEOUT_MS, type ResolvedLimits } from "../domain/limits.ts";
import { backoffMs } from "../domain/retry.ts";
import { SUBMIT_OUTPUT_TOOL } from "../domain/transcript/render.ts";
import { codeOfTool, type ToolCode, type ToolContext } from "./code.ts";
import { Deferred, type DeferredWait } from "./deferred.ts";
import { EngineAnswer } from "./engine-answer.ts";
import { answerByEngine } from "./engine-tools.ts";
import { toolEffect } from "./effects.ts";
import { issuesText, type Checked } from "../domain/json-schema.ts";
import { pause } from "./model-step.ts";
import { storableResult } from "./tool-result.ts";
import type { Turn } from "./turn.ts";
import { waitIdOf } from "./wait-id.ts";

type End<T extends "tool.completed" | "tool.failed" | "tool.interrupted"> = {
  readonly type: T;
  readonly call: OpenCall;
  readonly attempt?: number;
  readonly payload: Omit<EventPayload<T>, "call_id" | "index" | "name">;
};
/** Not an end: the call is answered from outside, later. */
export interface CallDeferred {
  readonly type: "call.waiting";
  readonly call: OpenCall;
  readonly wait: DeferredWait;
}
export type CallEnd = End<"tool.completed"> | End<"tool.failed"> | End<"tool.interrupted"> | CallDeferred;

/** Calls that are answered without executing anything: arguments that do not parse, unknown tools, more than the limit. */
export function refuseCall(call: OpenCall, tool: ToolDefinition | undefined, definition: AgentDefinition, limits: ResolvedLimits): End<"tool.failed"> | undefined {
  const refuse = (code: string, message: string): End<"tool.failed"> => ({ type: "tool.failed", call, payload: { error: { code, message }, duration_ms: 0 } });
  const isSubmit = call.call.name === SUBMIT_OUTPUT_TOOL && definition.output_schema !== undefined;
  if (tool === undefined && !isSubmit) {
    const names = definition.tools.map((t) => t.name).join(", ");
    return refuse("TOOL_UNKNOWN", `there is no tool ${JSON.stringify(call.call.name.slice(0, 100))}; the tools are: ${names === "" ? "none" : names}`);
  }
  if (call.call.invalid !== undefined) return refuse("TOOL_ARGUMENTS_INVALID", `the arguments could not be read: ${call.call.invalid}`);
  if (call.index >= limits.maxCallsPerTurn) return refuse("TOOL_CALLS_LIMIT", `one response may make ${limits.maxCallsPerTurn} calls; this one was not executed`);
  return undefined;
}

type Settled =
  | { readonly kind: "value"; readonly value: unknown }
  | { readonly kind: "thrown"; readonly error: unknown }
  | { readonly kind: "timed_out" }
  | { readonly kind: "aborted" };

/** Undefined when the call was stopped and may be repeated elsewhere: then nothing is recorded. */
export async function executeCall(turn: Turn, call: OpenCall, tool: ToolDefinition | undefined): Promise<CallEnd | undefined> {
  const { deps, session, held } = turn;
  const code = tool === undefined ? undefined : codeOfTool(deps.agents.get(session.state.agent), tool);
  const startedMs = deps.clockMs();
  const elapsed = (): number => Math.round(deps.clockMs() - startedMs);
  const failed = (error: EventPayload<"tool.failed">["error"], attempt = 1): CallEnd => ({ type: "tool.failed", call, attempt, payload: { error, duration_ms: elapsed() } });
  if (code === undefined || tool === undefined) return failed({ code: "TOOL_UNKNOWN", message: `tool ${call.call.name} has no code in this worker` });
  const input = call.approved?.input ?? call.call.input ?? {};
  const checked = checkInput(code, input);
  if (!checked.ok) return failed({ code: "TOOL_ARGUMENTS_INVALID", message: issuesText(checked.issues) });

  const span = turn.spans.tool(tool.name, call.call.call_id);
  const attempts = tool.effect === "once" ? 1 : (tool.retry?.attempts ?? 1);
  let settled: Settled = { kind: "aborted" };
  let rewritten: { readonly input: JsonValue; readonly value: unknown } | undefined;
  let attempt = 1;
  for (; ; attempt++) {
    try {
      settled = await deps.ring.perform(
        toolEffect(turn, tool, input, attempt),
        (request) => {
          rewritten = request === input ? undefined : fitRewrite(code, tool, request);
          const value = rewritten === undefined ? checked.value : rewritten.value;
          return settle(turn, call, tool, (context) => (code.engine === undefined ? code.execute(value, context) : answerByEngine(turn, call, code.engine, value)));
        },
        (result) => ({ outcome: result.kind === "value" ? "ok" : result.kind }),
      );
    } catch (error) {
      if (!(error instanceof CapabilityRefusedError)) throw error;
      // The model reads why, and goes on without this call.
      span.fail(error.code, "refused");
      span.end();
      return failed(recordError(error, error.code), attempt);
    }
    if (settled.kind === "value" || settled.kind === "aborted" || attempt >= attempts) break;
    await pause(backoffMs(attempt, deps.random(), { firstMs: tool.retry?.backoff_ms ?? 200, maxMs: 30_000 }), held.signal);
  }
  const end = withRewrite(await conclude(turn, call, tool, settled, attempt, elapsed), rewritten?.input ?? call.approved?.input);
  if (end !== undefined && end.type !== "tool.completed" && end.type !== "call.waiting")
    span.fail(end.type === "tool.failed" ? end.payload.error.code : end.payload.reason, end.type);
  span.end();
  return end;
}

/** What a guard made of a call's arguments has to fit the tool like any others. */
function fitRewrite(code: ToolCode, tool: ToolDefinition, request: unknown): { readonly input: JsonValue; readonly value: unknown } {
  const json = toJsonValue(request);
  const checked = json.ok ? checkInput(code, json.value) : undefined;
  if (json.ok && checked?.ok === true) return { input: json.value, value: checked.value };
  const issues = checked === undefined || checked.ok ? "they are not JSON" : issuesText(checked.issues);
  throw new CapabilityRefusedError("GUARD_FAILED", `the guard rewrote the arguments of tool ${tool.name} into ones that do not fit it: ${issues}`, {
    effect: "tool",
    name: tool.name,
    reason: issues,
  });
}

/** The journal says what was executed, where that is not what the model asked for. */
function withRewrite(end: CallEnd | undefined, executedInput: JsonValue | undefined): CallEnd | undefined {
  if (end === undefined || executedInput === undefined || end.type === "tool.interrupted" || end.type === "call.waiting") return end;
  return { ...end, payload: { ...end.payload, executed_input: executedInput } } as CallEnd;
}

async function conclude(turn: Turn, call: OpenCall, tool: ToolDefinition, settled: Settled, attempt: number, elapsed: () => number): Promise<CallEnd | undefined> {
  const isOnce = tool.effect === "once";
  switch (settled.kind) {
    case "value": {
      if (settled.value instanceof Deferred) return { type: "call.waiting", call, wait: settled.value.wait };
      const { output, asks } = settled.value instanceof EngineAnswer ? settled.value : { output: settled.value, asks: undefined };
      const result = await storableResult(turn, tool, output);
      if (result.kind === "failed") return { type: "tool.failed", call, attempt, payload: { error: result.error, duration_ms: elapsed() } };
      const { kind: _, ...payload } = result;
      return { type: "tool.completed", call, attempt, payload: { ...payload, ...(asks === undefined ? {} : { context: asks }), duration_ms: elapsed() } };
    }
    case "thrown":
      return { type: "tool.failed", call, attempt, payload: { error: recordError(settled.error, "TOOL_FAILED"), duration_ms: elapsed() } };
    case "timed_out": {
      if (isOnce) return { type: "tool.interrupted", call, attempt, payload: { reason: "timed_out" } };
      const afterMs = tool.timeout_ms ?? DEFAULT_TOOL_TIMEOUT_MS;
      return { type: "tool.failed", call, attempt, payload: { error: { code: "TOOL_TIMEOUT", message: `the tool did not answer within ${afterMs} ms` }, duration_ms: elapsed() } };
    }
    case "aborted":
      return isOnce && turn.held.reason !== "lost" ? { type: "tool.interrupted", call, attempt, payload: { reason: "aborted" } } : undefined;
  }
}

/** Waits for the tool, its timeout or an abort, whichever is first: a tool that ignores its signal is left behind. */
async function settle(turn: Turn, call: OpenCall, tool: ToolDefinition, execute: (context: ToolContext) => unknown): Promise<Settled> {
  const { deps, held, session } = turn;
  const { row } = session.memory;
  if (held.signal.aborted) return { kind: "aborted" };
  const timeout = new AbortController();
  const context: ToolContext = {
    signal: AbortSignal.any([held.signal, timeout.signal]),
    runId: row.id,
    tenant: row.tenant,
    turn: session.state.turn,
    callId: call.call.call_id,
    idempotencyKey: `${row.id}:${session.state.turn}:${call.index}`,
    completionToken: `${row.id}.${waitIdOf(row.id, session.state.turn, call.index)}`,
    secret: (name) => deps.secret(name, row.tenant),
    saveFile: async (content, mediaType) => {
      const { sha256, sizeBytes } = await deps.blobs.put(row.tenant, row.id, content, mediaType);
      return { type: "file", media_type: mediaType, sha256, size_bytes: sizeBytes };
    },
    log: deps.log,
  };
  let timer: NodeJS.Timeout | undefined;
  let onAbort: (() => void) | undefined;
  const stopped = new Promise<Settled>((resolve) => {
    timer = setTimeout(() => {
      resolve({ kind: "timed_out" });
      timeout.abort(new Error("the tool ran out of time"));
    }, tool.timeout_ms ?? DEFAULT_TOOL_TIMEOUT_MS);
    onAbort = () => resolve({ kind: "aborted" });
    held.signal.addEventListener("abort", onAbort, { once: true });
  });
  const done = (async (): Promise<Settled> => {
    try {
      return { kind: "value", value: await execute(context) };
    } catch (error) {
      return { kind: "thrown", error };
    }
  })();
  try {
    return await Promise.race([done, stopped]);
  } finally {
    clearTimeout(timer);
    if (onAbort !== undefined) held.signal.removeEventListener("abort", onAbort);
  }
}

/** A schema of the user's own may throw (a refinement that does): the model is told, as of any other bad argument. */
export function checkInput(code: ToolCode, input: JsonValue): Checked {
  try {
    return code.check(input);
  } catch (error) {
    return { ok: false, issues: [{ path: "", message: `the arguments could not be checked: ${recordError(error, "").message}` }] };
  }
}
