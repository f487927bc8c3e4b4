/**
 * What the reported cases need: a model that is told what to do turn by turn and keeps every request it was sent, a tool
 * whose results are as large as asked for, and what must hold for every run whatever was done to it.
 */
import { expect } from "vitest";
import { z } from "zod";
import type { Agent } from "../../src/agents/agent.ts";
import { tool, type Tool } from "../../src/agents/tool.ts";
import { DEFAULT_SUMMARIZER_INSTRUCTION } from "../../src/compaction/instruction.ts";
import type { CanonicalCall } from "../../src/domain/call.ts";
import { validateView } from "../../src/domain/compaction/validate.ts";
import { fold, type RunState } from "../../src/domain/fold.ts";
import type { JsonObject } from "../../src/domain/json.ts";
import { messageText, toolOutputText, type AssistantPart, type Message } from "../../src/domain/transcript/message.ts";
import type { Usage } from "../../src/domain/usage.ts";
import type { Model, ModelFailureCode, ModelOutcome } from "../../src/engine/model-port.ts";
import { remember } from "../../src/engine/run-memory.ts";
import { JournalReader } from "../../src/store/journal-reader.ts";
import { defaultNames, namedSql } from "../../src/store/names.ts";
import { payloads, until, type AnyAgent, type Lab, type Settled } from "../engine/harness.ts";
import type { RunEvent, RunHandle } from "../../src/client/handle.ts";

interface Ask {
  readonly name: string;
  readonly input: JsonObject;
  readonly id?: string;
}

export interface Reply {
  readonly text?: string;
  /** Reasoning that a vendor signed. */
  readonly thinks?: string;
  readonly asks?: readonly Ask[];
  readonly usage?: Partial<Usage>;
  readonly fails?: ModelFailureCode;
  readonly finish?: "stop" | "length";
  /** Instead of all that. */
  readonly content?: readonly AssistantPart[];
}

export interface Told {
  readonly turn: number;
  readonly call: CanonicalCall;
  /** How often this run's model (or its summarizer) was asked before. */
  readonly nth: number;
  readonly runId: string;
  readonly signal: AbortSignal;
}

export interface Driver extends Model {
  /** What the run's model was sent, in order. */
  requests(runId: string): CanonicalCall[];
  /** What its summarizer was sent. */
  summaries(runId: string): CanonicalCall[];
}

interface DriverOptions {
  readonly windowTokens?: number;
  /** Undefined for an answer that ends the run or its exchange. */
  readonly turn: (told: Told) => Reply | undefined | Promise<Reply | undefined>;
  readonly summary?: (told: Told) => Reply | string | Promise<Reply | string>;
}

export const SUMMARY = "DONE: pages were read. OPEN: the rest of them.";
const ANSWER = "All is done.";

export function driver(name: string, { windowTokens, turn, summary = () => SUMMARY }: DriverOptions): Driver {
  const seen = { requests: new Map<string, CanonicalCall[]>(), summaries: new Map<string, CanonicalCall[]>() };
  return {
    name: name.includes(":") ? name : `scripted:${name}`,
    structuredOutput: false,
    window: windowTokens === undefined ? { tokens: undefined, source: "unknown" } : { tokens: windowTokens, source: "setting" },
    requests: (runId) => seen.requests.get(runId) ?? [],
    summaries: (runId) => seen.summaries.get(runId) ?? [],
    async call(call, { runId, turn: number, signal }) {
      const isSummary = call.system === DEFAULT_SUMMARIZER_INSTRUCTION || call.system.startsWith("SUMMARIZE");
      const kept = isSummary ? seen.summaries : seen.requests;
      const before = kept.get(runId) ?? [];
      kept.set(runId, [...before, call]);
      const told = { turn: number, call, nth: before.length, runId, signal };
      const reply = isSummary ? await summary(told) : ((await turn(told)) ?? ANSWER);
      return signal.aborted ? { kind: "aborted" } : outcomeOf(typeof reply === "string" ? { text: reply } : reply, number);
    },
  };
}

function outcomeOf({ text = "", thinks, asks = [], usage, fails, finish, content }: Reply, turn: number): ModelOutcome {
  if (fails !== undefined) {
    const isPassing = ["PROVIDER_UNAVAILABLE", "PROVIDER_OVERLOADED", "PROVIDER_RATE_LIMITED", "MODEL_TIMEOUT"].includes(fails);
    return { kind: "failed", code: fails, message: `told to fail with ${fails}`, retryable: isPassing, countsAsAttempt: true };
  }
  return {
    kind: "responded",
    content: content ?? [
      ...(thinks === undefined ? [] : [{ type: "reasoning" as const, text: thinks, metadata: { anthropic: { signature: `signed ${thinks}` } } }]),
      ...(text === "" ? [] : [{ type: "text" as const, text }]),
      ...asks.map(({ name, input, id }, i) => ({ type: "tool_call" as const, call_id: id ?? `call_${turn}_${i}`, name, input })),
    ],
    finish: { reason: finish ?? (asks.length > 0 ? "tool_calls" : "stop") },
    usage: { input: 1, output: 1, scale: "estimate", ...usage },
  };
}

/** A model that is never ahead of a summary: its run is not over before what it waits for has come. */
export const patient =
  (lab: () => Lab, turn: DriverOptions["turn"]): DriverOptions["turn"] =>
  async (told) => {
    await noneUnderWay(lab(), told.runId);
    return await turn(told);
  };

export async function noneUnderWay(lab: Lab, runId: string): Promise<void> {
  await until(
    "the summary",
    async () => (await lab.db.query("select from capstan.compaction_tasks where run_id = $1 and state in ('requested', 'summarizing')", [runId])).rows.length === 0,
    40_000,
  );
}

/** One look at a page of so many bytes. */
export const look = (page: number, bytes = 2_000, id?: string): Ask => ({ name: "look", input: { page, bytes }, ...(id === undefined ? {} : { id }) });
export const act = (what: string): Ask => ({ name: "act", input: { what } });

/** Reads so many pages, one a turn, then answers. */
export const reading =
  (pages: number, bytes = 2_000) =>
  ({ turn }: Told): Reply | undefined =>
    turn > pages ? undefined : { text: `Reading page ${turn}.`, asks: [look(turn, bytes)] };

const SENTENCE = "the ledger of this month holds entries, and one of them is odd; ";

export const lookTool: Tool = tool({
  name: "look",
  description: "Looks a page up.",
  input: z.object({ page: z.int(), bytes: z.int() }),
  effect: "read",
  execute: ({ page, bytes }) => `page ${page}: ${SENTENCE.repeat(Math.ceil(bytes / SENTENCE.length)).slice(0, bytes)}`,
});

/** A side effect that is done once. */
export function actTool(done: string[] = []): Tool {
  return tool({
    name: "act",
    description: "Does something.",
    input: z.object({ what: z.string() }),
    effect: "once",
    execute: ({ what }) => {
      done.push(what);
      return `done: ${what}`;
    },
  });
}

export const textOf = (message: Message | undefined): string =>
  (message?.content ?? []).map((part) => (part.type === "text" ? part.text : part.type === "tool_result" ? toolOutputText(part.output) : "")).join("");
export const user = (text: string): Message => ({ role: "user", content: [{ type: "text", text }] });
export const says = (text: string): Message => ({ role: "assistant", content: [{ type: "text", text }] });
export const calls = (...ids: readonly string[]): Message => ({
  role: "assistant",
  content: ids.map((id) => ({ type: "tool_call", call_id: id, name: "look", input: { page: 1 } })),
});
export const results = (ids: readonly string[], output = "a page"): Message => ({
  role: "tool",
  content: ids.map((id) => ({ type: "tool_result", call_id: id, name: "look", output })),
});

interface Sound {
  readonly state: RunState;
  readonly events: readonly RunEvent[];
  readonly requests: readonly CanonicalCall[];
}

/**
 * What holds for every run: its journal gives each request again, both ways to fold it agree, four vendors would take
 * every request, the system prompt is the definition's, the pinned task is there once, nothing is compacted in a turn.
 */
export async function sound(lab: Lab, runId: string, model: Driver, { system, task }: { readonly system: string; readonly task?: string }): Promise<Sound> {
  const events = await lab.events(runId);
  await lab.intact(runId);
  const reader = new JournalReader(lab.db, namedSql(defaultNames));
  const all = [];
  for await (const { event } of reader.walk(runId)) all.push(event);
  const whole = fold(all);
  const loaded = await reader.load(runId);
  if (loaded === undefined) throw new Error("no run");
  const resumed = remember(loaded, 0).state;
  expect(resumed).toEqual({ ...whole, compaction: resumed.compaction });
  expect(resumed.view.map(messageText)).toEqual(whole.view.map(messageText));
  const requests = model.requests(runId);
  for (const { messages, system: sent } of requests) {
    expect(validateView(messages)).toEqual([]);
    expect(sent).toBe(system);
    expect(messages[0]?.role).toBe("user");
    expect(messages.at(-1)?.role).not.toBe("assistant");
    for (const message of messages) expect(messageText(message).isWellFormed()).toBe(true);
    if (task !== undefined) expect(messages.map(textOf).join("\n").split(task)).toHaveLength(2);
    if (task !== undefined) expect(textOf(messages[0])).toContain(task);
  }
  atBoundaries(events);
  for (const { before, after } of payloads(events, "context.compacted")) expect(after.bytes).toBeLessThan(before.bytes);
  return { state: whole, events, requests };
}

/** No event of a compaction stands between a response and the last result of its calls. */
function atBoundaries(events: readonly RunEvent[]): void {
  let open = 0;
  for (const { type, payload, seq } of events) {
    if (type === "model.responded") open = (payload as { content: AssistantPart[] }).content.filter((part) => part.type === "tool_call").length;
    else if (["tool.completed", "tool.failed", "tool.interrupted"].includes(type)) open--;
    else if (type.startsWith("compaction.") || type.startsWith("context.")) expect({ seq, type, open }).toEqual({ seq, type, open: 0 });
  }
}

/** As `lab.run`, with the time that a dozen runs beside it may take. */
export async function ran(lab: Lab, agent: AnyAgent | string, input: unknown): Promise<Settled> {
  const handle = typeof agent === "string" ? await lab.capstan.enqueue(agent, input) : await lab.capstan.enqueue(agent as Agent, input);
  const status = await lab.settled(handle.id, 50_000);
  return { id: handle.id, handle: handle as RunHandle, status, events: await lab.events(handle.id) };
}

/** A promise that somebody else keeps. */
export function gate(): { readonly opened: Promise<void>; open(): void } {
  let open = (): void => {};
  const opened = new Promise<void>((resolve) => (open = resolve));
  return { opened, open };
}
