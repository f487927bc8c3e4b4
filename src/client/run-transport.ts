/** What a run's handle asks of whoever carries its requests: the database itself, or an API over HTTP. */
import type { JsonObject } from "../domain/json.ts";
import type { CompactOptions, CompactView } from "./compact.ts";
import type { FollowItem } from "./follow.ts";
import type { RunStatusView } from "./handle.ts";
import type { ForkOptions, RetryOptions, RunStateView } from "./lineage.ts";
import type { RunEnd } from "./result-poller.ts";
import type { Tx } from "./transaction.ts";
import type { DecisionOptions, SignalOptions, WaitView } from "./waits.ts";

export interface ActOptions {
  /** Who does it, for the journal. Over HTTP the token says it. */
  readonly actor?: string;
  readonly tx?: Tx;
}

export interface SendInputOptions extends ActOptions {
  /** Sent again with the same key it is the same input. */
  readonly dedupeKey?: string;
}

export type Decision = { readonly decision: "approve"; readonly input?: JsonObject } | { readonly decision: "deny" };

export interface FollowRunOptions {
  readonly after: number;
  /** False: only what is there now. */
  readonly follow: boolean;
  readonly deltas: boolean;
  readonly signal: AbortSignal | undefined;
}

export interface RunTransport {
  status(runId: string): Promise<RunStatusView>;
  /** Resolves at the run's end, or with undefined when the signal fires first. */
  end(runId: string, signal: AbortSignal | undefined): Promise<RunEnd | undefined>;
  follow(runId: string, options: FollowRunOptions): AsyncGenerator<FollowItem>;
  send(runId: string, content: unknown, options: SendInputOptions): Promise<string>;
  stop(runId: string, reason: string | undefined, options: ActOptions): Promise<void>;
  pause(runId: string, options: ActOptions): Promise<boolean>;
  resume(runId: string, options: ActOptions): Promise<boolean>;
  cancel(runId: string, reason: string | undefined, options: ActOptions): Promise<boolean>;
  signal(runId: string, name: string, payload: unknown, options: SignalOptions): Promise<string>;
  waits(runId: string): Promise<WaitView[]>;
  decide(runId: string, callId: string, decision: Decision, options: DecisionOptions): Promise<void>;
  answer(runId: string, waitId: string, answer: unknown, options: ActOptions): Promise<void>;
  compact(runId: string, options: CompactOptions): Promise<CompactView>;
  /** The new run's id. */
  fork(runId: string, options: ForkOptions): Promise<string>;
  retry(runId: string, options: RetryOptions): Promise<string>;
  at(runId: string, seq: number): Promise<RunStateView>;
}
