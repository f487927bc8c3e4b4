/** The `context` tool: an agent asks how full its context is, and asks for what keeps it workable. */
import { expect, it } from "vitest";
import { contextTool } from "../../src/agents/engine-tools.ts";
import { MAX_PINS } from "../../src/domain/compaction/pins.ts";
import { resolvePolicy } from "../../src/domain/compaction/policy.ts";
import { canonicalJson, type JsonObject, type JsonValue } from "../../src/domain/json.ts";
import { Cases, calls, doing } from "../bad-input/cases.ts";
import { createTestDatabase } from "../support/database.ts";
import type { Settled } from "./harness.ts";

const database = await createTestDatabase();
const cases = new Cases();
const tools = [contextTool()];
const context = (input: JsonObject) => calls("context", input);
const asked = (...inputs: JsonObject[]) => ({ toolCalls: inputs.map((input) => ({ name: "context", input })) });

const usage = { input: 4_000, output: 100 };
const known = cases.add("self-known", [{ ...context({ op: "self" }), usage }, "Seen."], { tools, compaction: { enabled: true, autocompact_at_pct: 70 } }, { windowTokens: 10_000 });
const unknown = cases.add("self-unknown", [context({ op: "self" }), "Seen."], { tools });
const off = cases.add("self-off", [context({ op: "self" }), "Seen."], { tools, compaction: { enabled: false, after_bytes: 100_000 } }, { windowTokens: 10_000 });
const compacts = cases.add("compacts", [{ toolCalls: [{ name: "context", input: { op: "compact" } }, { name: "note" }] }, "Done."], {
  tools: [...tools, doing("note", () => "noted")],
});
const pins = cases.add(
  "pins",
  [
    context({ op: "pins" }),
    asked({ op: "pin", text: "order 4711" }, { op: "pin", text: "order 4711" }, { op: "pin", text: "" }, { op: "pin" }, { op: "pin", text: "x".repeat(1_001) }),
    asked({ op: "pin", text: "order 4711" }, { op: "pin", text: "ends 😀\u0000" }),
    context({ op: "pins" }),
    "Kept.",
  ],
  { tools },
);
const many = cases.add("many-pins", [asked(...Array.from({ length: MAX_PINS + 3 }, (_, i) => ({ op: "pin", text: `fact ${i}` }))), context({ op: "pins" }), "Kept."], {
  tools,
  limits: { parallelTools: 64 },
});
const long = cases.add("long-pins", [asked(...Array.from({ length: 10 }, (_, i) => ({ op: "pin", text: String(i).repeat(1_000) }))), "Kept."], {
  tools,
  limits: { parallelTools: 64 },
});
const ledger = cases.add("ledger", [calls("send"), context({ op: "ledger" }), "Seen."], { tools: [...tools, doing("send", () => "sent", { effect: "once" })] });
const without = cases.add("without", [calls("note"), "Done."], { tools: [doing("note", () => "noted")] });
const impostor = cases.add("impostor", [context({ op: "self" }), "Done."], { tools: [doing("context", () => "mine")] });
const unlisted = cases.add("unlisted", [context({ op: "compact" }), "Done."]);
cases.openOn(database.url);

type Payload = { readonly index: number; readonly output: JsonValue; readonly context?: JsonObject; readonly error: { readonly code: string } };
/** In the order in which they were called: those of one turn end in any order. */
function ends(run: Settled, type: "tool.completed" | "tool.failed"): Payload[] {
  const found = run.events.filter((event) => event.type === type).map(({ turn, payload }) => ({ turn, payload: payload as unknown as Payload }));
  return found.toSorted((a, b) => a.turn - b.turn || a.payload.index - b.payload.index).map(({ payload }) => payload);
}
const completed = (run: Settled): Payload[] => ends(run, "tool.completed");
const outputs = (run: Settled) => completed(run).map(({ output }) => output as JsonObject);
/** What the run's first call was told of its context. */
const told = (run: Settled) => outputs(run)[0] as { readonly context: { readonly [field: string]: number }; readonly compaction: JsonObject };
const failures = (run: Settled): string[] => ends(run, "tool.failed").map(({ error }) => error.code);

it("op=self says how full the context is, in the provider's own count, and the policy with its defaults", async () => {
  const run = await cases.outcome(known.agent);
  const { context: gauge, compaction } = told(run);
  expect(gauge).toMatchObject({ max_tokens: 10_000, scale: "provider" });
  expect(gauge["used_tokens"]).toBe(4_100);
  expect(gauge["used_pct"]).toBe(41);
  // All but system prompt and tool schemas.
  expect(gauge["reducible"]).toBeGreaterThan(3_000);
  expect(gauge["reducible"]).toBeLessThan(4_100);
  expect(compaction).toEqual({ enabled: true, autocompact_at_pct: 70, keep_first: true, keep_last_n: 4, target_percentage: 10 });
  await cases.lab.intact(run.id);
});

it("op=self leaves out what nobody knows: max and share without a window, bytes of a policy that is off", async () => {
  const { context: gauge } = told(await cases.outcome(unknown.agent));
  expect(Object.keys(gauge).toSorted()).toEqual(["reducible", "scale", "used_tokens"]);
  expect(gauge["used_tokens"]).toBeGreaterThan(0);
  expect(canonicalJson(gauge)).not.toContain("null");
  expect(told(await cases.outcome(off.agent)).compaction).toEqual(resolvePolicy({ enabled: false }));
});

it("op=compact is scheduled: this call and its siblings are answered before anything changes", async () => {
  const run = await cases.outcome(compacts.agent);
  expect(completed(run).find(({ context: asks }) => asks !== undefined)).toMatchObject({
    output: { compaction: "scheduled", applies_at: "the next boundary" },
    context: { op: "compact" },
  });
  expect(outputs(run)).toContain("noted");
  const answered = run.events.filter(({ type }) => type === "tool.completed").map(({ seq }) => seq);
  const after = run.events.filter(({ type }) => type.startsWith("compaction.") || type === "context.compacted").map(({ seq }) => seq);
  expect(answered).toHaveLength(2);
  for (const seq of after) expect(seq).toBeGreaterThan(Math.max(...answered));
  expect(compacts.model.calls[1]?.messages.at(-1)?.role).toBe("tool");
  expect(run.status.state).toBe("completed");
  await cases.lab.intact(run.id);
});

it("op=pin keeps a text once, and tells the model why it keeps none", async () => {
  const run = await cases.outcome(pins.agent);
  expect(outputs(run)[0]).toEqual({ pins: [], pins_left: 32, bytes_left: 8_192 });
  const kept = completed(run).flatMap(({ context: asks }) => (asks === undefined ? [] : [asks]));
  expect(kept).toEqual([
    { op: "pin", text: "order 4711" },
    { op: "pin", text: "ends 😀\uFFFD" },
  ]);
  expect(failures(run)).toEqual(["PIN_EMPTY", "PIN_EMPTY", "PIN_TOO_LONG"]);
  expect(outputs(run).filter((output) => output["pinned"] === "already")).toHaveLength(2);
  expect(outputs(run).at(-1)).toEqual({ pins: ["order 4711", "ends 😀\uFFFD"], pins_left: 30, bytes_left: 8_192 - 10 - 12 });
  await cases.lab.intact(run.id);
});

it("pins are bounded in number and in bytes, also when they are asked for side by side", async () => {
  const run = await cases.outcome(many.agent);
  const kept = completed(run).flatMap(({ context: asks }) => (asks === undefined ? [] : [asks["text"]]));
  expect(new Set(kept)).toEqual(new Set(Array.from({ length: MAX_PINS }, (_, i) => `fact ${i}`)));
  expect(kept).toHaveLength(MAX_PINS);
  expect(failures(run)).toEqual(["PINS_FULL", "PINS_FULL", "PINS_FULL"]);
  expect(outputs(run).at(-1)).toMatchObject({ pins_left: 0 });

  const bytes = await cases.outcome(long.agent);
  expect(completed(bytes).filter(({ context: asks }) => asks !== undefined)).toHaveLength(8);
  expect(failures(bytes)).toEqual(["PINS_FULL", "PINS_FULL"]);
});

it("op=ledger has nothing to add while every call is still in view", async () => {
  const run = await cases.outcome(ledger.agent);
  expect(outputs(run).at(-1)).toEqual({ lines: [], total: 0, note: "nothing was summarized yet: all calls are in your context" });
});

it("an agent that does not list the tool sends the bytes that it always sent, and has it not", async () => {
  const run = await cases.outcome(without.agent);
  expect(canonicalJson(without.model.calls[0] as unknown as JsonValue)).toBe(
    '{"breakpoints":[0],"messages":[{"content":[{"text":"go","type":"text"}],"role":"user"}],"model":"scripted:without","renderVersion":1,"settings":{},"system":"Do as you are told.",' +
      '"tools":[{"description":"Does note.","inputSchema":{"additionalProperties":{},"properties":{},"type":"object"},"name":"note"}]}',
  );
  await cases.lab.intact(run.id);
  expect(failures(await cases.outcome(unlisted.agent))).toEqual(["TOOL_UNKNOWN"]);
});

it("a tool of the user's own that has its name is the user's own", async () => {
  expect(outputs(await cases.outcome(impostor.agent))).toEqual(["mine"]);
});
