/**
 * Runs of agents that know nothing of compaction, told by what they write into the journal and send to their models.
 * `test/fixtures/journal-before-compaction.json` is what they gave before there was any compaction (T25).
 */
import { createHash } from "node:crypto";
import { z } from "zod";
import { agent } from "../../src/agents/agent.ts";
import { tool } from "../../src/agents/tool.ts";
import type { CanonicalCall } from "../../src/domain/call.ts";
import { canonicalJson, type JsonValue } from "../../src/domain/json.ts";
import type { Capstan } from "../../src/main.ts";
import { scriptedModel, type ScriptedStep } from "../../src/testing/scripted-model.ts";

const add = tool({ name: "add", description: "Adds.", input: z.object({ a: z.number(), b: z.number() }), effect: "read", execute: ({ a, b }) => ({ sum: a + b }) });
const note = tool({ name: "note", description: "Notes.", input: z.object({ text: z.string() }), effect: "once", execute: ({ text }) => `noted: ${text}` });
const fail = tool({
  name: "fail",
  description: "Fails.",
  input: z.object({}),
  effect: "idempotent",
  execute: () => {
    throw new Error("it failed");
  },
});

const scripts: Readonly<Record<string, readonly ScriptedStep[]>> = {
  tools: [
    {
      text: "Adding.",
      toolCalls: [
        { name: "add", input: { a: 1, b: 2 } },
        { name: "note", input: { text: "ä 🧭" } },
      ],
      usage: { input: 100, output: 20, cache_read: 40 },
    },
    { reasoning: "Hm.", toolCalls: [{ name: "fail" }, { name: "nobody", input: {} }], usage: { input: 150, output: 30 } },
    "Three.",
  ],
  corrected: ["", { text: "cut", finish: "length" }, "whole"],
  structured: [{ toolCalls: [{ name: "submit_output", input: { n: "x" } }] }, { toolCalls: [{ name: "submit_output", input: { n: 3 } }] }],
  refused: [{ failure: { code: "PROVIDER_BAD_REQUEST", message: "no" } }],
  chatting: ["Hello.", "Good bye."],
};

const models = new Map(
  Object.entries(scripts).map(([name, steps]) => [name, scriptedModel(steps, { name: `scripted:${name}`, by: name === "refused" ? "call" : "turn", windowTokens: 100_000 })]),
);
const common = (name: string) => ({ name, model: `scripted:${name}`, instructions: "Do as you are told." });

export const plainAgents = [
  agent({ ...common("tools"), tools: [add, note, fail], settings: { temperature: 0, maxOutputTokens: 512 }, limits: { maxTurns: 5 } }),
  agent({ ...common("corrected"), warnTranscriptBytes: false }),
  agent({ ...common("structured"), input: z.object({ q: z.string() }), output: z.object({ n: z.number() }) }),
  agent(common("refused")),
  agent({ ...common("chatting"), interactive: true }),
];
export const plainModels = Object.fromEntries([...models.values()].map((model) => [model.name, model]));

export interface PlainRun {
  readonly agent: string;
  /** Canonical text of each event without the times that it took. */
  readonly events: readonly string[];
  /** sha256 of each request's canonical text. */
  readonly requests: readonly string[];
}

export async function plainRuns(capstan: Capstan): Promise<PlainRun[]> {
  const told: PlainRun[] = [];
  for (const { name } of plainAgents) {
    const handle = await capstan.enqueue(name, name === "structured" ? { q: "how many?" } : "Begin. 🧭");
    const rested = async (parks: number): Promise<void> => {
      for (const until = performance.now() + 20_000; performance.now() < until; await new Promise((resolve) => setTimeout(resolve, 20))) {
        const { state } = await handle.status();
        if (["completed", "failed", "cancelled"].includes(state)) return;
        if (state === "waiting" && (await collected(handle.events({ follow: false }))).filter(({ type }) => type === "run.parked").length === parks) return;
      }
      throw new Error(`run of ${name} did not come to rest`);
    };
    await rested(1);
    if (name === "chatting") {
      await handle.send("Bye.");
      await rested(2);
      await handle.cancel("enough");
    }
    const events = await collected(handle.events({ follow: false }));
    told.push({
      agent: name,
      events: events.map(({ seq, type, version, turn, attempt, payload }) => canonicalJson({ seq, type, version, turn, attempt, payload: timeless(payload) } as JsonValue)),
      requests: (models.get(name)?.calls ?? []).map((call: CanonicalCall) =>
        createHash("sha256")
          .update(canonicalJson(call as unknown as JsonValue))
          .digest("hex"),
      ),
    });
  }
  return told;
}

function timeless(payload: object): object {
  return Object.fromEntries(Object.entries(payload).filter(([key]) => key !== "duration_ms"));
}

async function collected<T>(source: AsyncIterable<T>): Promise<T[]> {
  const all: T[] = [];
  for await (const item of source) all.push(item);
  return all;
}
