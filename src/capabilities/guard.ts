/** The application's own word on each call, asked last. Fails closed: what a guard does not allow is not done. */
import { CapabilityRefusedError } from "../domain/capability-error.ts";
import type { Effect } from "../engine/ports.ts";

export interface GuardRequest {
  readonly kind: Effect["kind"];
  /** The model or the tool. */
  readonly name: string;
  /** A CanonicalCall, a tool's arguments, or a summarizer's input: a copy, so that a change in place changes nothing. */
  readonly request: unknown;
}

export interface GuardContext {
  readonly runId: string;
  readonly tenant: string;
  readonly agent: string;
  readonly turn: number;
  readonly attempt: number;
  /** Origins of tainted content that the request was made from: `tool:<name>`, `mcp:<server>`, `agent:<name>`. */
  readonly taint: readonly string[];
}

export type GuardDecision =
  | { readonly kind: "allow" }
  | { readonly kind: "deny"; readonly reason: string }
  /** Other arguments for a tool, another input for a summary. A turn's model call cannot be rewritten. */
  | { readonly kind: "rewrite"; readonly request: unknown };

export type Guard = (request: GuardRequest, context: GuardContext) => GuardDecision | Promise<GuardDecision>;

/** Far above what a look-up takes; a guard that hangs would hold a slot of the worker for ever. */
const GUARD_TIMEOUT_MS = 30_000;

/** Gives what is to be executed. Throws CapabilityRefusedError: GUARD_DENIED, GUARD_FAILED or GUARD_REWRITE_UNSUPPORTED. */
export async function askGuard(guard: Guard, effect: Effect, timeoutMs = GUARD_TIMEOUT_MS): Promise<unknown> {
  const { kind, name, runId, tenant, agent, turn, attempt, taint = [] } = effect;
  const refuse = (code: "GUARD_DENIED" | "GUARD_FAILED" | "GUARD_REWRITE_UNSUPPORTED", message: string, reason: string, options?: ErrorOptions): CapabilityRefusedError =>
    new CapabilityRefusedError(code, message, { effect: kind, name, reason }, options);
  let decision: GuardDecision;
  try {
    decision = await within(timeoutMs, async () => await guard({ kind, name, request: structuredClone(effect.request) }, { runId, tenant, agent, turn, attempt, taint }));
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    throw refuse("GUARD_FAILED", `the guard failed on ${kind} ${name}, so the call was not made: ${reason}`, reason, { cause: error });
  }
  // Users' code, perhaps without types: what is no decision allows nothing.
  const answer = decision as { readonly kind?: unknown; readonly reason?: unknown } | null | undefined;
  switch (answer?.kind) {
    case "allow":
      return effect.request;
    case "deny": {
      const reason = typeof answer.reason === "string" && answer.reason !== "" ? answer.reason : "no reason given";
      throw refuse("GUARD_DENIED", `the guard refused ${kind} ${name}: ${reason}`, reason);
    }
    case "rewrite":
      if (kind === "model") {
        throw refuse(
          "GUARD_REWRITE_UNSUPPORTED",
          `the guard rewrote a turn's call of ${name}; its hash is recorded as what is sent and must stay true: allow it, deny it, or change the agent's definition`,
          "rewrite",
        );
      }
      return (decision as { readonly request: unknown }).request;
    default:
      throw refuse("GUARD_FAILED", `the guard gave no decision on ${kind} ${name}, so the call was not made: return { kind: "allow" }, "deny" or "rewrite"`, "no decision");
  }
}

async function within<T>(ms: number, work: () => Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`it gave no answer within ${ms} ms`)), ms);
  });
  try {
    return await Promise.race([work(), late]);
  } finally {
    clearTimeout(timer);
  }
}
