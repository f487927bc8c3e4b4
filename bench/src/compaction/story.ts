/** A conversation as the steps that a run's journal would take, and the needles that were hidden in it. */
import type { JsonObject } from "../../../src/domain/json.ts";
import type { RecordedConversation } from "../../../src/testing/model-server/index.ts";
import { prose, seeded } from "../workload.ts";
import type { Needle } from "./needles.ts";

export interface StoryCall {
  readonly name: string;
  input: JsonObject;
  result: string;
  readonly outcome: "ok" | "failed" | "unknown";
  /** What the `context` tool pins. */
  readonly pin?: string;
}

export type Step = { readonly kind: "user"; text: string } | { readonly kind: "answer"; text: string } | { readonly kind: "turn"; text: string; readonly calls: StoryCall[] };

export interface Story {
  readonly name: string;
  readonly task: string;
  /** Somebody talks with the agent: the newest message stays in the tail. */
  readonly interactive: boolean;
  readonly steps: readonly Step[];
  readonly needles: readonly Needle[];
  /** What the engine's own tables would say is open, by the step at which it is opened and the one at which it is over. */
  readonly obligations: readonly { readonly text: string; readonly from: number; readonly until: number }[];
}

/** A story without needles. */
export interface Plot extends Pick<Story, "task" | "interactive"> {
  readonly steps: Step[];
}

/** Reading leaves no trace outside; everything else that a tool is called is a side effect. */
export function effectOf(tool: string): "read" | "once" {
  return /^(?:get_|search_|list_|find_|calculate|think|lookup|context)/.test(tool) ? "read" : "once";
}

/** The steps behind the first user message, which is the task. */
export function recordedSteps({ messages }: RecordedConversation): Plot {
  const said = messages.filter(({ role }) => role !== "system");
  const steps: Step[] = [];
  const results = new Map<number, string>();
  said.forEach((message, at) => {
    if (message.role !== "assistant") return;
    // Ids repeat within a recording: the results of a response are those right behind it, in order.
    const behind: { id: string | undefined; content: string }[] = [];
    for (let i = at + 1; said[i]?.role === "tool"; i++) behind.push({ id: said[i]?.tool_call_id ?? undefined, content: said[i]?.content ?? "" });
    (message.tool_calls ?? []).forEach(({ id }, nth) => {
      const found = behind.findIndex((result) => result.id === id);
      results.set(at * 1_000 + nth, found < 0 ? "" : (behind.splice(found, 1)[0]?.content ?? ""));
    });
  });
  said.forEach((message, at) => {
    const text = message.content ?? "";
    if (message.role === "user" && at > 0) steps.push({ kind: "user", text });
    if (message.role !== "assistant") return;
    const calls = (message.tool_calls ?? []).map(({ function: made }, nth): StoryCall => ({
      name: made.name,
      input: JSON.parse(made.arguments === "" ? "{}" : made.arguments) as JsonObject,
      result: results.get(at * 1_000 + nth) ?? "",
      outcome: "ok",
    }));
    steps.push(calls.length === 0 ? { kind: "answer", text } : { kind: "turn", text, calls });
  });
  return { task: said[0]?.content ?? "", interactive: true, steps };
}

/** An autonomous run: one task, then turns with one or two calls; a word of the user's now and then. */
export function generatedSteps(count: number, seed: number): Plot {
  const random = seeded(seed);
  const words = (chars: number): string => prose(chars, Math.floor(random() * 1e9));
  const steps = Array.from({ length: count }, (_, i): Step => {
    if (random() < 0.06) return { kind: "user", text: `${words(120)}.` };
    const calls = Array.from({ length: random() < 0.2 ? 2 : 1 }, (): StoryCall => ({
      name: "lookup",
      input: { query: words(30), page: i },
      result: `${words(Math.floor(300 + random() * 1_700))}.`,
      outcome: "ok",
    }));
    return { kind: "turn", text: random() < 0.5 ? "" : `${words(80)}.`, calls };
  });
  return { task: `Work through the records and report. ${words(800)}.`, interactive: false, steps };
}
