/**
 * Rebuilds every request of a run from its rows and compares it with what was recorded before the call (P5); checks on
 * the way what a journal promises: no gap, no step recorded twice, every tool message answers just the calls before it.
 */
import { isUsableMarker, replacedBy } from "../domain/compaction/fold.ts";
import { evolve, initialState, type RunState } from "../domain/fold.ts";
import type { AgentDefinition } from "../domain/definition.ts";
import type { CapstanEvent, EventOf } from "../domain/event.ts";
import type { CanonicalCall } from "../domain/call.ts";
import { closeChain, extendChain, startChain, type Chain } from "../domain/transcript/chain.ts";
import { RENDER_VERSION, renderCall, renderFrame, type CallFrame } from "../domain/transcript/render.ts";
import type { WireEvidence } from "./model-port.ts";
import { sha256, viewDigest } from "./run-memory.ts";

export interface VerifyReport {
  readonly runId: string;
  readonly ok: boolean;
  readonly events: number;
  readonly requests: number;
  /** Requests whose wire bytes could be compared: same client as recorded. */
  readonly wireCompared: number;
  /** Compactions whose replaced messages and resulting view have the recorded digests. */
  readonly markers: number;
  readonly problems: readonly string[];
}

export interface VerifySources {
  readonly runId: string;
  /** The run's whole line in order, with each row's fencing token and the run that wrote it: what a base wrote is folded, and verified with the base. */
  readonly rows: AsyncIterable<{ readonly event: CapstanEvent; readonly fencingToken: number; readonly runId?: string }>;
  definition(sha: string): Promise<AgentDefinition | undefined>;
  /** The wire bytes of a call by this process's client; undefined when there is none, or it cannot be rendered here. */
  wire?(call: CanonicalCall): Promise<WireEvidence | undefined>;
  /** Sees each rebuilt request: for tests that compare with what was really sent. */
  onRequest?(call: CanonicalCall, event: EventOf<"model.requested">): void;
}

/** More would say no more, and one damaged event makes all later requests differ. */
const MAX_PROBLEMS = 20;

export async function verifyRun(sources: VerifySources): Promise<VerifyReport> {
  const checker = new Checker(sources);
  for await (const { event, fencingToken, runId } of sources.rows) {
    if (runId !== undefined && runId !== sources.runId) {
      if (!checker.inherit(event)) break;
      continue;
    }
    checker.events++;
    if (!(await checker.check(event, fencingToken))) break;
  }
  checker.finish();
  const { problems, events, requests, wireCompared, markers } = checker;
  return { runId: sources.runId, ok: problems.length === 0, events, requests, wireCompared, markers, problems };
}

class Checker {
  readonly problems: string[] = [];
  events = 0;
  requests = 0;
  wireCompared = 0;
  markers = 0;
  readonly #sources: VerifySources;
  #state: RunState = initialState();
  #token = 0;
  readonly #steps = new Set<string>();
  readonly #frames = new Map<string, { frame: CallFrame; chain: Chain }>();
  #chainEpoch = 0;
  #lastCall: CanonicalCall | undefined;

  constructor(sources: VerifySources) {
    this.#sources = sources;
  }

  /** False when the journal cannot be folded further. */
  async check(event: CapstanEvent, fencingToken: number): Promise<boolean> {
    const state = this.#state;
    if (event.seq !== state.seq + 1) this.#problem(`seq ${event.seq} follows ${state.seq}`);
    if (fencingToken < this.#token) this.#problem(`event ${event.seq} carries fencing token ${fencingToken} after ${this.#token}`);
    this.#token = Math.max(this.#token, fencingToken);
    if (event.type === "run.created" && (event.payload.base?.position ?? 0) !== event.seq - 1) {
      this.#problem(`event ${event.seq} says that ${event.payload.base?.position ?? 0} events come before the run's first`);
    }
    if (event.stepKey !== undefined) {
      if (this.#steps.has(event.stepKey)) this.#problem(`step ${event.stepKey} is recorded twice (event ${event.seq})`);
      this.#steps.add(event.stepKey);
    }
    if (event.type === "model.requested") await this.#compare(event);
    const replaced = event.type === "context.compacted" ? this.#replaced(event) : undefined;
    if (event.type === "model.responded" && event.payload.wire !== undefined) await this.#compareWire(event);
    if (!this.#evolve(event)) return false;
    if (event.type === "context.compacted") this.#compareMarker(event, replaced as string);
    return this.problems.length < MAX_PROBLEMS;
  }

  /** An event that the run's view begins with. False when the line cannot be folded further. */
  inherit(event: CapstanEvent): boolean {
    if (event.seq !== this.#state.seq + 1) this.#problem(`event ${event.seq} of the runs before it follows ${this.#state.seq}`);
    return this.#evolve(event) && this.problems.length < MAX_PROBLEMS;
  }

  #evolve(event: CapstanEvent): boolean {
    try {
      evolve(this.#state, event);
      return true;
    } catch (error) {
      this.#problem(`event ${event.seq} (${event.type}) cannot be folded: ${(error as Error).message}`);
      return false;
    }
  }

  /** Digest of the messages that a marker replaces, neither the pinned task nor an earlier head. */
  #replaced({ payload: { cut } }: EventOf<"context.compacted">): string {
    return viewDigest(replacedBy(this.#state, cut).messages).digest;
  }

  #compareMarker(event: EventOf<"context.compacted">, replaced: string): void {
    this.markers++;
    const { source_digest: source, view_digest: view } = event.payload;
    if (replaced !== source) this.#problem(`marker ${event.seq}: what it replaced has digest ${replaced}, recorded ${source}`);
    if (!isUsableMarker(event)) return;
    const rebuilt = viewDigest(this.#state.view).digest;
    if (rebuilt !== view) this.#problem(`marker ${event.seq}: the view that it makes has digest ${rebuilt}, recorded ${view}`);
  }

  finish(): void {
    const { view } = this.#state;
    for (const [i, message] of view.entries()) {
      if (message.role !== "tool") continue;
      const asked = view[i - 1]?.role === "assistant" ? (view[i - 1]?.content ?? []).flatMap((part) => (part.type === "tool_call" ? [part.call_id] : [])) : [];
      const answered = message.content.map((part) => part.call_id);
      if (asked.length !== answered.length || asked.some((id, n) => id !== answered[n])) this.#problem(`message ${i} does not answer the calls of the message before it`);
    }
  }

  async #compare(event: EventOf<"model.requested">): Promise<void> {
    const { payload } = event;
    this.requests++;
    const state = this.#state;
    if (payload.render !== RENDER_VERSION) return this.#problem(`request ${event.seq} was rendered by version ${payload.render}, which this build does not have`);
    if (payload.to_seq !== state.viewSeq) this.#problem(`request ${event.seq} covers events to ${payload.to_seq}, the journal's view ends at ${state.viewSeq}`);
    // Another epoch is another view: what was hashed is no prefix of it.
    if (state.epoch !== this.#chainEpoch) for (const entry of this.#frames.values()) entry.chain = startChain(sha256, frame3(entry.frame));
    this.#chainEpoch = state.epoch;
    const key = `${state.definitionSha} ${payload.model} ${payload.native_output ?? false} ${payload.no_tools ?? false}`;
    let entry = this.#frames.get(key);
    if (entry === undefined) {
      const definition = state.definitionSha === undefined ? undefined : await this.#sources.definition(state.definitionSha);
      if (definition === undefined) return this.#problem(`request ${event.seq}: definition ${state.definitionSha ?? "(none pinned)"} is not stored`);
      const frame = renderFrame(definition, payload.model, payload.native_output ?? false, { withoutTools: payload.no_tools ?? false });
      entry = { frame, chain: startChain(sha256, frame3(frame)) };
      this.#frames.set(key, entry);
    }
    for (const message of state.view.slice(entry.chain.messages)) ({ chain: entry.chain } = extendChain(sha256, entry.chain, message));
    const call = renderCall(entry.frame, [...state.view], payload.breakpoints);
    const { hash, sizeBytes } = closeChain(sha256, entry.chain, {
      model: call.model,
      settings: call.settings,
      ...(call.output === undefined ? {} : { output: call.output }),
      breakpoints: call.breakpoints,
    });
    const rebuilt = Buffer.from(hash).toString("base64url");
    if (rebuilt !== payload.hash) this.#problem(`request ${event.seq} (turn ${event.turn}): recorded hash ${payload.hash}, rebuilt ${rebuilt}`);
    if (sizeBytes !== payload.size_bytes) this.#problem(`request ${event.seq} (turn ${event.turn}): recorded ${payload.size_bytes} bytes, rebuilt ${sizeBytes}`);
    this.#lastCall = call;
    this.#sources.onRequest?.(call, event);
  }

  async #compareWire(event: EventOf<"model.responded">): Promise<void> {
    const recorded = event.payload.wire;
    if (recorded === undefined || this.#lastCall === undefined || this.#sources.wire === undefined) return;
    const here = await this.#sources.wire(this.#lastCall);
    if (here === undefined || here.client !== recorded.client) return;
    this.wireCompared++;
    if (here.sha256 !== recorded.sha256) this.#problem(`response ${event.seq} (turn ${event.turn}): the client ${here.client} now gives other wire bytes for the same call`);
  }

  #problem(text: string): void {
    if (this.problems.length < MAX_PROBLEMS) this.problems.push(text);
  }
}

function frame3({ renderVersion, system, tools }: CallFrame): Pick<CallFrame, "renderVersion" | "system" | "tools"> {
  return { renderVersion, system, tools };
}
