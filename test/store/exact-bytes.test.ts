/** P5: the call before storing and the call rebuilt from Postgres are the same bytes, whatever input, arguments and results hold. */
import fc from "fast-check";
import { afterAll, beforeAll, expect, it } from "vitest";
import { z } from "zod";
import { agent } from "../../src/agents/agent.ts";
import { tool } from "../../src/agents/tool.ts";
import { canonicalJson, type JsonObject, type JsonValue } from "../../src/domain/json.ts";
import type { Model } from "../../src/engine/model-port.ts";
import { openLab, type Lab } from "../engine/harness.ts";
import { createTestDatabase } from "../support/database.ts";

const database = await createTestDatabase();

/** Every UTF-16 code unit may come, NUL and halves of surrogate pairs included. */
const rawText = fc.oneof(
  fc.string({ unit: "binary", maxLength: 12 }),
  fc.array(fc.integer({ min: 0, max: 0xffff }), { maxLength: 8 }).map((units) => String.fromCharCode(...units)),
  fc.constantFrom("", "\u0000", "\\u0000", "\uD800", "\uDC00x", '"', "\\", "\u2028", "😀", "é", "e\u0301", "null", "1e400"),
);
const key = fc.oneof(rawText, fc.constantFrom("__proto__", "constructor", "toString", "hasOwnProperty", "10", "9", "-1", "type", "text", "a", "B", "ä"));
const number = fc.oneof(fc.double({ noNaN: true, noDefaultInfinity: true }), fc.integer(), fc.constantFrom(-0, 5e-324, 1.7976931348623157e308, 2 ** 53 + 2, 1e21, 1e-7, 0.1 + 0.2));
const { value } = fc.letrec<{ value: JsonValue }>((tie) => ({
  value: fc.oneof(
    { maxDepth: 4, depthSize: "small", withCrossShrink: true },
    rawText,
    number,
    fc.boolean(),
    fc.constant(null),
    fc.array(tie("value"), { maxLength: 5 }),
    fc.array(fc.tuple(key, tie("value")), { maxLength: 5 }).map(objectOf),
  ),
}));
const object = fc.array(fc.tuple(key, value), { maxLength: 6 }).map(objectOf);

/** Also members named `__proto__`, as JSON.parse makes them. */
function objectOf(members: readonly (readonly [string, JsonValue])[]): JsonObject {
  const out: Record<string, JsonValue> = {};
  for (const [name, member] of members) Object.defineProperty(out, name, { value: member, enumerable: true, configurable: true, writable: true });
  return out;
}

interface Sample {
  readonly input: JsonValue;
  readonly args: JsonObject;
  readonly text: string;
  readonly result: JsonValue;
}
const sample: fc.Arbitrary<Sample> = fc.record({ input: value, args: object, text: rawText, result: value });

/** By run: what is to be said and given, and the calls as they were handed to the model. */
const told = new Map<string, Sample>();
const handed = new Map<string, string[]>();
const waiting: Sample[] = [];
const nothing: Sample = { input: null, args: {}, text: "", result: null };

const model: Model = {
  name: "scripted:exact",
  structuredOutput: false,
  window: { tokens: undefined, source: "unknown" },
  call(call, { runId, turn }) {
    const own = told.get(runId) ?? waiting.shift() ?? nothing;
    told.set(runId, own);
    handed.set(runId, [...(handed.get(runId) ?? []), canonicalJson(call as unknown as JsonValue)]);
    return Promise.resolve({
      kind: "responded",
      content:
        turn === 1
          ? [
              { type: "reasoning", text: own.text, metadata: { vendor: own.args } },
              { type: "text", text: own.text },
              { type: "tool_call", call_id: `c ${own.text}`, name: "any", input: own.args, arguments: JSON.stringify(own.args) },
              { type: "tool_call", call_id: "c", name: "any", input: { second: own.result } },
            ]
          : [{ type: "text", text: "Done." }],
      finish: { reason: turn === 1 ? "tool_calls" : "stop" },
      usage: { input: 1, output: 1, scale: "offline" },
    });
  },
};
const any = tool({ name: "any", description: "Gives anything.", input: z.looseObject({}), effect: "read", execute: (_, { runId }) => told.get(runId)?.result });
const exact = agent({ name: "exact", model: model.name, instructions: "Ü\r\n“quoted” \u2028", tools: [any], input: z.json() });

let lab: Lab;
beforeAll(async () => {
  lab = await openLab(database.url, { agents: [exact], models: [model] });
});
afterAll(() => lab[Symbol.asyncDispose]());

it("for 100 arbitrary runs", async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(sample, { minLength: 10, maxLength: 10 }), async (samples) => {
      waiting.length = 0;
      waiting.push(...samples);
      const handles = await Promise.all(samples.map(({ input }) => lab.capstan.enqueue(exact as never, input as never)));
      await Promise.all(
        handles.map(async (handle) => {
          expect(await handle.result({ timeoutMs: 20_000 })).toBe("Done.");
          const rebuilt: string[] = [];
          await lab.intact(handle.id, { onRequest: (call) => void rebuilt.push(canonicalJson(call as unknown as JsonValue)) });
          expect(rebuilt).toEqual(handed.get(handle.id));
        }),
      );
    }),
    { numRuns: 10 },
  );
}, 120_000);
