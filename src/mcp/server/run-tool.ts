/** One of the tools by which an assistant works with runs, and what they share. */
import type pg from "pg";
import type { z } from "zod";
import type { CapstanClient } from "../../client/client.ts";
import { UnknownRunError } from "../../client/errors.ts";
import type { RunStatusView } from "../../client/handle.ts";
import type { WaitView } from "../../client/waits.ts";
import type { McpAccess, McpScope } from "./access.ts";
import { bounded } from "./bounded.ts";

export interface McpBackend {
  readonly client: CapstanClient;
  readonly db: pg.Pool;
  readonly named: (text: string) => string;
}

export interface ToolCallContext extends McpBackend {
  readonly access: McpAccess;
  readonly signal: AbortSignal;
}

export interface RunTool {
  readonly name: string;
  readonly scope: McpScope;
  readonly description: string;
  readonly input: z.ZodType;
  readonly hints: { readonly readOnlyHint?: boolean; readonly idempotentHint?: boolean; readonly destructiveHint?: boolean };
  answer(input: unknown, context: ToolCallContext): Promise<unknown>;
}

export function made<Input extends z.ZodType>(
  name: string,
  scope: McpScope,
  hints: RunTool["hints"],
  description: string,
  input: Input,
  answer: (given: z.output<Input>, context: ToolCallContext) => Promise<unknown>,
): RunTool {
  return { name, scope, hints, description, input, answer: (given, context) => answer(given as z.output<Input>, context) };
}

/** Another tenant's run is as one that does not exist. */
export async function ownRun(runId: string, { client, access }: ToolCallContext) {
  const run = client.run(runId);
  const status = await run.status();
  if (status.tenant !== access.tenant) throw new UnknownRunError(`no run ${runId}`);
  return { run, status };
}

export function shownStatus({ output, error, ...status }: RunStatusView) {
  return {
    ...status,
    ...(output === undefined ? {} : { output: bounded(output, 24_000) }),
    ...(error === undefined ? {} : { error: bounded(error) }),
  };
}

export function shownWait({ run_id, agent, call_id, kind, name, detail, requested_at, expires_at }: WaitView) {
  return { run_id, agent, call_id, kind, name, detail: bounded(detail), requested_at, ...(expires_at === undefined ? {} : { expires_at }) };
}
