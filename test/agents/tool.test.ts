import { describe, expect, it } from "vitest";
import { z } from "zod";
import { ConfigError } from "../../src/agents/config-error.ts";
import { isTool, tool, type ToolSpec } from "../../src/agents/tool.ts";
import type { ToolContext } from "../../src/engine/code.ts";
import { refusedBy } from "./refused-by.ts";

const spec = (change: object = {}): ToolSpec => ({ name: "search", description: "Finds.", input: z.object({ q: z.string() }), execute: () => 1, ...change });
const refusal = (change: object): string => refusedBy(() => tool(spec(change)));

describe("a tool", () => {
  it("is once unless it says otherwise, and stores only what is set", () => {
    expect(tool(spec()).definition).toEqual({
      name: "search",
      description: "Finds.",
      effect: "once",
      input_schema: { type: "object", properties: { q: { type: "string" } }, required: ["q"] },
    });
  });

  it("stores its settings under their stored names", () => {
    const { definition } = tool(spec({ effect: "idempotent", timeoutMs: 5, retry: { attempts: 3, backoffMs: 10 }, maxResultBytes: 2_048 }));
    expect(definition).toMatchObject({ effect: "idempotent", timeout_ms: 5, retry: { attempts: 3, backoff_ms: 10 }, max_result_bytes: 2_048 });
    expect(tool(spec({ effect: "read", retry: { attempts: 2 } })).definition.retry).toEqual({ attempts: 2 });
  });

  it("gives execute the parsed value: defaults applied, transforms run", () => {
    const input = z.object({ n: z.string().transform(Number), unit: z.string().default("km") });
    const t = tool({ name: "walk", description: "", input, execute: ({ n, unit }) => `${n + 1} ${unit}` });
    const checked = t.check({ n: "4" });
    expect(checked).toEqual({ ok: true, value: { n: 4, unit: "km" } });
    expect(checked.ok && t.execute(checked.value, {} as ToolContext)).toBe("5 km");
    expect(t.definition.input_schema).toMatchObject({ properties: { n: { type: "string" } }, required: ["n"] });
  });

  it("says what does not fit, with the model's own names", () => {
    const t = tool(spec({ input: z.object({ order_ids: z.array(z.object({ line_no: z.int() })) }) }));
    expect(t.check({ order_ids: [{ line_no: "x" }] })).toMatchObject({ ok: false, issues: [{ path: "order_ids.0.line_no" }] });
  });

  it("may be written with methods that use their own object", () => {
    const withMethod = {
      name: "search",
      description: "",
      input: z.object({}),
      execute(): string {
        return this.name;
      },
    };
    expect(tool(withMethod).execute({}, {} as ToolContext)).toBe("search");
  });

  it.each([
    ["date", z.object({ at: z.date() }), "Date cannot be represented"],
    ["map", z.object({ m: z.map(z.string(), z.string()) }), "Map cannot be represented"],
    ["bigint", z.object({ n: z.bigint() }), "BigInt cannot be represented"],
    ["custom", z.object({ c: z.custom<string>(() => true) }), "Custom types cannot be represented"],
  ])("refuses an input that JSON Schema cannot express: %s", (_, input, why) => {
    expect(refusal({ input })).toMatch(new RegExp(`^tool "search": input has no JSON Schema: ${why}`));
  });

  it.each([
    ["a string", z.string()],
    ["an array", z.array(z.string())],
    ["a union", z.union([z.object({ a: z.string() }), z.object({ b: z.string() })])],
    ["anything", z.any()],
  ])("refuses an input that is %s and no object", (_, input) => {
    expect(refusal({ input })).toContain("input must be a zod object");
  });

  it("refuses an input that is no schema at all", () => {
    expect(refusal({ input: { q: "string" } })).toContain("input has no JSON Schema");
    expect(refusal({ input: undefined })).toContain("input has no JSON Schema");
  });

  it.each(["once", undefined])("refuses retry for effect %s: it is never repeated", (effect) => {
    expect(refusal({ effect, retry: { attempts: 2 } })).toMatch(/retry is for effect "read" or "idempotent" only/);
  });

  it.each(["", "has space", "ümlaut", "a.b", "x".repeat(65), 7, undefined])("refuses the name %j", (name) => {
    expect(refusal({ name })).toMatch(/: name /);
  });

  it.each([
    ["timeoutMs", { timeoutMs: 0 }, "timeoutMs must be a whole number from 1 to 86400000, not 0"],
    ["timeoutMs", { timeoutMs: 86_400_001 }, "timeoutMs must be a whole number from 1 to 86400000, not 86400001"],
    ["timeoutMs", { timeoutMs: "5s" }, 'timeoutMs must be a whole number from 1 to 86400000, not "5s"'],
    ["maxResultBytes", { maxResultBytes: 1_023 }, "maxResultBytes must be a whole number from 1024 to 16777216, not 1023"],
    ["maxResultBytes", { maxResultBytes: 16_777_217 }, "maxResultBytes must be a whole number from 1024 to 16777216, not 16777217"],
    ["retry.attempts", { effect: "read", retry: { attempts: 0 } }, "retry.attempts must be a whole number from 1 to 20, not 0"],
    ["retry.attempts", { effect: "read", retry: {} }, "retry.attempts must be a whole number from 1 to 20, not undefined"],
    ["retry.backoffMs", { effect: "read", retry: { attempts: 1, backoffMs: -1 } }, "retry.backoffMs must be a whole number from 0 to 600000, not -1"],
  ])("refuses %s out of range (%j), naming the range", (_, change, message) => {
    expect(refusal(change)).toBe(`tool "search": ${message}`);
  });

  it("takes the ends of each range", () => {
    for (const change of [
      { timeoutMs: 1, maxResultBytes: 1_024 },
      { timeoutMs: 86_400_000, maxResultBytes: 16_777_216 },
    ])
      expect(isTool(tool(spec(change)))).toBe(true);
    for (const retry of [
      { attempts: 1, backoffMs: 0 },
      { attempts: 20, backoffMs: 600_000 },
    ])
      expect(tool(spec({ effect: "read", retry })).definition.retry?.attempts).toBe(retry.attempts);
  });

  it("refuses fields that do not exist, in it and in its parts", () => {
    expect(refusal({ timeoutMS: 5 })).toBe('tool "search": timeoutMS is not a known field');
    expect(refusal({ effect: "read", retry: { attempts: 2, backoff: 5 } })).toBe('tool "search": retry.backoff is not a known field');
  });

  it("refuses an unknown effect, a missing description, an execute that is no function", () => {
    expect(refusal({ effect: "twice" })).toMatch(/effect .*"read"\|"idempotent"\|"once"/);
    expect(refusal({ description: undefined })).toMatch(/description /);
    expect(refusal({ execute: undefined })).toBe('tool "search": execute must be a function');
  });

  it("fails with a stable code and machine-readable issues", () => {
    try {
      tool(spec({ timeoutMs: 0 }));
      expect.unreachable();
    } catch (error) {
      expect(error).toBeInstanceOf(ConfigError);
      expect(error).toMatchObject({ code: "CONFIG_INVALID", retryable: false, details: { where: 'tool "search"', issues: [{ path: "timeoutMs" }] } });
    }
  });

  it("is told from anything else", () => {
    expect([tool(spec()), spec(), null, undefined, "search"].map(isTool)).toEqual([true, false, false, false, false]);
  });
});
