/** What asking a model and asking a function have in common: the ring, the time, the bill, and errors as replies. */
import { recordError } from "../domain/error.ts";
import { wellFormedText } from "../domain/json.ts";
import type { Message } from "../domain/transcript/message.ts";
import type { Effect } from "../engine/ports.ts";
import { rejected, type Rejection, type Reply } from "./reply.ts";
import type { SummarizeDeps, SummarizeInput, SummaryCallReport } from "./summarize.ts";

export interface Performance {
  readonly effect: Pick<Effect, "kind" | "name" | "needs" | "request" | "system" | "taint" | "estimate">;
  readonly model: string | undefined;
  readonly execute: (request: unknown) => Promise<Reply>;
}

export async function performed({ effect, model, execute }: Performance, input: SummarizeInput, deps: SummarizeDeps, calls: SummaryCallReport[]): Promise<Reply> {
  const { runId, tenant, agent, turn, attempt, grants } = input;
  if (input.signal.aborted) return rejected("interrupted", "stopped before the call was made", true);
  const startedMs = deps.clockMs();
  let wasExecuted = false;
  const bill = (reply: Reply): Omit<SummaryCallReport, "durationMs"> => {
    const cost = reply.usage === undefined || model === undefined ? undefined : deps.models.costUsdMicros(model, reply.usage);
    return {
      model,
      outcome: reply.kind === "text" ? "summarized" : reply.reason,
      ...(reply.usage === undefined ? {} : { usage: reply.usage }),
      ...(cost === undefined ? {} : { costUsdMicros: cost }),
      possiblyBilled: reply.usage === undefined && (reply.kind === "text" || reply.reason === "timed_out" || reply.reason === "interrupted"),
    };
  };
  const record = (reply: Reply): Reply => {
    calls.push({ ...bill(reply), durationMs: Math.max(0, Math.round(deps.clockMs() - startedMs)) });
    return reply;
  };
  try {
    const reply = await deps.ring.perform(
      { ...effect, runId, tenant, agent, turn, attempt, grants },
      async (request) => {
        wasExecuted = true;
        return await execute(request);
      },
      (result) => {
        const { outcome, usage, costUsdMicros, possiblyBilled } = bill(result);
        return {
          outcome,
          ...(usage === undefined ? {} : { inputTokens: usage.input, outputTokens: usage.output }),
          ...(costUsdMicros === undefined ? {} : { costUsdMicros }),
          possiblyBilled,
        };
      },
    );
    return record(reply);
  } catch (error) {
    const refused = rejectionOf(error, input.signal);
    return wasExecuted && refused.reason !== "denied" ? record(refused) : refused;
  }
}

/** From what was thrown: by the ring, which refuses so, or by users' code. */
function rejectionOf(error: unknown, signal: AbortSignal): Rejection {
  const { message } = recordError(error, "SUMMARIZER_FAILED");
  const code = textOf(error, "code");
  const retryAfterMs = numberOf(error, "retryAfterMs");
  const noted = (rejection: Rejection): Rejection => ({ ...rejection, ...(code === undefined ? {} : { code }), ...(retryAfterMs === undefined ? {} : { retryAfterMs }) });
  switch (code) {
    case "GRANT_DENIED":
    case "GUARD_DENIED":
    case "GUARD_FAILED":
    case "GUARD_REWRITE_UNSUPPORTED":
    case "SYSTEM_PROMPT_FOREIGN":
      return noted(rejected("denied", message, false));
    case "QUOTA_EXHAUSTED":
      return noted(rejected("quota", message, !neverFits(error)));
    case "SUMMARIZER_EMPTY":
      return noted(rejected("empty", message, true));
    case "CONTEXT_OVERFLOW":
      return { ...noted(rejected("provider", message, false)), overflow: true };
    case "MODEL_TIMEOUT":
      return noted(rejected("timed_out", message, true));
    default:
      if (signal.aborted) return rejected("interrupted", message, true);
      return noted(rejected("provider", message, flagOf(error, "retryable") ?? true));
  }
}

export type Timed<T> = { readonly kind: "value"; readonly value: T } | { readonly kind: "late"; readonly reply: Rejection };

/** Stops waiting when the task is stopped or its time is over, whether or not the work heeds the signal. */
export async function withinTime<T>({ signal: stop, timeoutMs }: Pick<SummarizeInput, "signal" | "timeoutMs">, work: (signal: AbortSignal) => Promise<T>): Promise<Timed<T>> {
  const timeout = AbortSignal.timeout(timeoutMs);
  const signal = AbortSignal.any([stop, timeout]);
  const late = (): Timed<T> => ({
    kind: "late",
    reply: stop.aborted
      ? rejected("interrupted", "stopped while the summarizer worked", true)
      : { ...rejected("timed_out", `the summarizer did not answer within ${timeoutMs} ms`, true), code: "MODEL_TIMEOUT" },
  });
  let onAbort: (() => void) | undefined;
  const stopped = new Promise<Timed<T>>((resolve) => {
    onAbort = () => resolve(late());
    signal.addEventListener("abort", onAbort, { once: true });
  });
  try {
    const running = work(signal).then((value): Timed<T> => (signal.aborted && isAborted(value) ? late() : { kind: "value", value }));
    return await Promise.race([running, stopped]);
  } catch (error) {
    if (signal.aborted) return late();
    throw error;
  } finally {
    if (onAbort !== undefined) signal.removeEventListener("abort", onAbort);
  }
}

function isAborted(value: unknown): boolean {
  return typeof value === "object" && value !== null && "kind" in value && value.kind === "aborted";
}

const ROLES = new Set<unknown>(["user", "assistant", "tool"]);

export function isMessages(value: unknown): value is readonly Message[] {
  return (
    Array.isArray(value) &&
    value.every(
      (message: unknown) =>
        typeof message === "object" && message !== null && "role" in message && ROLES.has(message.role) && "content" in message && Array.isArray(message.content),
    )
  );
}

function memberOf(error: unknown, key: string): unknown {
  try {
    return typeof error === "object" && error !== null ? (error as Record<string, unknown>)[key] : undefined;
  } catch {
    // A getter of the error's own.
    return undefined;
  }
}

function textOf(error: unknown, key: string): string | undefined {
  const value = memberOf(error, key);
  return typeof value === "string" ? wellFormedText(value.slice(0, 100)) : undefined;
}

function numberOf(error: unknown, key: string): number | undefined {
  const value = memberOf(error, key);
  return typeof value === "number" && Number.isFinite(value) && value >= 0 ? value : undefined;
}

function flagOf(error: unknown, key: string): boolean | undefined {
  const value = memberOf(error, key);
  return typeof value === "boolean" ? value : undefined;
}

function neverFits(error: unknown): boolean {
  return numberOf(memberOf(error, "details"), "needed") !== undefined;
}
