import { describe, expect, it } from "vitest";
import { z } from "zod";
import { agent } from "../../src/agents/agent.ts";
import { tool } from "../../src/agents/tool.ts";
import type { ToolDefinition } from "../../src/domain/definition.ts";
import type { JsonValue } from "../../src/domain/json.ts";
import { mismatch } from "../../src/engine/agent-match.ts";
import { reordered } from "../domain/arbitrary-json.ts";

const search = tool({ name: "search", description: "Finds.", input: z.object({ q: z.string(), page: z.int().optional() }), effect: "read", execute: () => 1 });
const pay = tool({ name: "pay", description: "Pays.", input: z.object({ cents: z.int() }), execute: () => 1 });
const clerk = agent({ name: "clerk", model: "offline:auditor", instructions: "Help.", tools: [search, pay] });

describe("a worker's code and a stored definition", () => {
  it("fit when tools agree in name, effect and input", () => {
    expect(mismatch(clerk.definition, clerk.code)).toBeUndefined();
    expect(mismatch(reordered(clerk.definition as unknown as JsonValue) as unknown as typeof clerk.definition, clerk.code)).toBeUndefined();
  });

  it("fit when prompt, model, limits and descriptions differ: a deploy that edits a prompt strands nothing", () => {
    const tools = clerk.definition.tools.map((t): ToolDefinition => ({ ...t, description: "other words", timeout_ms: 5, max_result_bytes: 2_048 }));
    const older = { ...clerk.definition, tools, instructions: "Other.", model: "offline:other", limits: { max_turns: 1 }, compaction: { enabled: true }, output_schema: {} };
    expect(mismatch(older, clerk.code)).toBeUndefined();
  });

  it("fit when code has more tools than the definition, in any order", () => {
    expect(mismatch({ ...clerk.definition, tools: [pay.definition] }, clerk.code)).toBeUndefined();
    expect(mismatch({ ...clerk.definition, tools: [] }, { name: "clerk", tools: new Map(), onWarn: undefined })).toBeUndefined();
  });

  it("do not fit when a tool is missing", () => {
    expect(mismatch(clerk.definition, { ...clerk.code, tools: new Map([["search", search]]) })).toBe("tool pay is missing");
  });

  it("do not fit when a tool's effect differs, either way: it decides whether a call is repeated", () => {
    const now = new Map([
      ["search", search],
      ["pay", { ...pay, definition: { ...pay.definition, effect: "idempotent" as const } }],
    ]);
    expect(mismatch(clerk.definition, { ...clerk.code, tools: now })).toBe("tool pay is idempotent in code, once in the definition");
  });

  it("do not fit when a tool takes another input", () => {
    const now = tool({ name: "pay", description: "Pays.", input: z.object({ euros: z.int() }), execute: () => 1 });
    expect(
      mismatch(clerk.definition, {
        ...clerk.code,
        tools: new Map([
          ["search", search],
          ["pay", now],
        ]),
      }),
    ).toBe("tool pay takes another input in code than in the definition");
  });

  it("are said to differ in everything that differs", () => {
    expect(mismatch(clerk.definition, { ...clerk.code, tools: new Map() })).toBe("tool search is missing; tool pay is missing");
  });
});
