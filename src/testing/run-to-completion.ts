/** Runs one agent to its end, or to where it waits, with a worker of its own: the whole of most tests. */
import type { Agent } from "../agents/agent.ts";
import type { EnqueueOptions } from "../client/enqueue.ts";
import type { RunEvent, RunHandle, RunStatusView } from "../client/handle.ts";
import type { Capstan } from "../main.ts";
import { CapstanError } from "../domain/error.ts";

export interface RunToCompletionOptions extends EnqueueOptions {
  /** Default 30 seconds. */
  readonly timeoutMs?: number;
  /** False when a worker runs already, in this process or another. */
  readonly startWorker?: boolean;
}

export interface CompletedRun<Output> {
  readonly run: RunHandle<Output>;
  /** `completed`, `failed`, `cancelled`, or `waiting` for something that only the outside can give. */
  readonly status: RunStatusView;
  readonly output: Output | undefined;
  /** The whole journal, in order. */
  readonly events: readonly RunEvent[];
}

/** The run was still at work when the time was over. The message says where it stood. */
export class RunNotSettledError extends CapstanError {
  override readonly name = "RunNotSettledError";
  readonly code = "RUN_NOT_SETTLED";
}

const POLL_MS = 15;

/** Throws RunNotSettledError after `timeoutMs`. A failed run is a result here, not an exception: tests assert on it. */
export async function runToCompletion<Input, Output>(
  capstan: Capstan,
  agent: Agent<Input, Output>,
  input: Input,
  { timeoutMs = 30_000, startWorker = true, ...options }: RunToCompletionOptions = {},
): Promise<CompletedRun<Output>> {
  const worker = startWorker ? await capstan.startWorker() : undefined;
  try {
    const run = await capstan.enqueue(agent, input, options);
    const status = await settled(run, timeoutMs);
    return { run, status, output: status.output as Output | undefined, events: await readJournal(capstan, run.id) };
  } finally {
    await worker?.stop();
  }
}

/** Every event of a run that is committed now, in order. */
export async function readJournal(capstan: Capstan, runId: string): Promise<RunEvent[]> {
  const events: RunEvent[] = [];
  for await (const event of capstan.run(runId).events({ follow: false })) events.push(event);
  return events;
}

/** A run that waits for its next try, its quota or a summary goes on by itself; every other waiting run needs somebody. */
function isSettled({ state, wait_reason: reason }: RunStatusView): boolean {
  if (state === "waiting") return reason !== "retry" && reason !== "timer" && reason !== "quota" && reason !== "compaction";
  return state !== "queued" && state !== "running";
}

async function settled(run: Pick<RunHandle, "id" | "status">, timeoutMs: number): Promise<RunStatusView> {
  const deadlineMs = performance.now() + timeoutMs;
  for (;;) {
    const status = await run.status();
    if (isSettled(status)) return status;
    if (performance.now() > deadlineMs) {
      throw new RunNotSettledError(`run ${run.id} is still ${status.wait_reason ?? status.state} in turn ${status.turn} (seq ${status.last_seq}) after ${timeoutMs} ms`);
    }
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}
