/** Short hands for lists of messages, in the notation of the case collection: U, A{a,b}, R{a,b}. */
import { planCut, type PlanInput } from "../../../src/domain/compaction/plan.ts";
import { resolvePolicy, type CompactionPolicy } from "../../../src/domain/compaction/policy.ts";
import type { Place } from "../../../src/domain/compaction/types.ts";
import type { JsonValue } from "../../../src/domain/json.ts";
import type { AssistantPart, Message } from "../../../src/domain/transcript/message.ts";

export const thinking: AssistantPart = { type: "reasoning", text: "hm", metadata: { anthropic: { signature: "sig" } } };

export const user = (text: string): Message => ({ role: "user", content: [{ type: "text", text }] });
export const says = (text: string): Message => ({ role: "assistant", content: [{ type: "text", text }] });
/** A response with calls; a `T` before them is signed reasoning. */
export function calls(...ids: readonly string[]): Message {
  const parts = ids.map((id): AssistantPart => (id === "T" ? thinking : { type: "tool_call", call_id: id, name: "tool", input: { id } }));
  return { role: "assistant", content: parts };
}
export const results = (outputs: Readonly<Record<string, JsonValue>>): Message => ({
  role: "tool",
  content: Object.entries(outputs).map(([call_id, output]) => ({ type: "tool_result", call_id, name: "tool", output })),
});
/** A call with its result. */
export const group = (id: string, output: JsonValue = "ok", ...before: readonly string[]): Message[] => [calls(...before, id), results({ [id]: output })];

export const groups = (count: number, output: (i: number) => JsonValue = (i) => `result ${i} ${"x".repeat(400)}`): Message[] =>
  Array.from({ length: count }, (_, i) => group(`c${i}`, output(i))).flat();

/** One event a message, and one for each result. */
export function placesOf(view: readonly Message[]): Place[] {
  let seq = 0;
  return view.map((message) => {
    if (message.role !== "tool") return { first: ++seq, last: seq };
    const parts = message.content.map(() => ++seq);
    return { first: parts[0] as number, last: seq, parts };
  });
}

export function plan(view: readonly Message[], policy: CompactionPolicy = {}, more: Partial<PlanInput> = {}): ReturnType<typeof planCut> {
  const places = placesOf(view);
  const nextSeq = Math.max(...places.map(({ last }) => last)) + 1;
  return planCut({ view, places, hasHead: false, nextSeq, policy: resolvePolicy(policy), windowTokens: undefined, interactive: false, trigger: "manual", ...more });
}

/** The plan's cut, or a failure that says why there is none. */
export function cutOf(view: readonly Message[], policy: CompactionPolicy = {}, more: Partial<PlanInput> = {}): Extract<ReturnType<typeof planCut>, { kind: "cut" }> {
  const planned = plan(view, policy, more);
  if (planned.kind === "skip") throw new Error(`skipped: ${planned.reason} ${JSON.stringify(planned.detail)}`);
  return planned;
}
