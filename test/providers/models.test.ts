import { describe, expect, test } from "vitest";
import { costUsdMicros, findModel, KNOWN_MODELS, windowOf } from "../../src/providers/models.ts";

const usage = (input: number, output: number, over: { cache_read?: number; cache_write?: number; reasoning?: number } = {}) =>
  ({ input, output, scale: "provider", ...over }) as const;

describe("prices", () => {
  test("prices cached tokens by their class and once", () => {
    // 3 $ in, 15 $ out, 0.30 $ read, 3.75 $ write per million: 100 plain, 800 read, 100 written, 50 out.
    expect(costUsdMicros("anthropic:claude-sonnet-4-5", usage(1000, 50, { cache_read: 800, cache_write: 100 }))).toBe(300 + 240 + 375 + 750);
    expect(costUsdMicros("anthropic:claude-sonnet-4-5-20250929", usage(1000, 0))).toBe(3000);
  });

  test("does not bill reasoning twice", () => {
    expect(costUsdMicros("openai:gpt-5", usage(0, 100, { reasoning: 90 }))).toBe(1000);
  });

  test("prices the whole request higher above the vendor's limit", () => {
    expect(costUsdMicros("openai:gpt-6-sol", usage(272_000, 10))).toBe(544_000 + 100);
    expect(costUsdMicros("openai:gpt-6-sol", usage(272_001, 10))).toBe(1_088_004 + 150);
  });

  test("gives whole micro-dollars", () => {
    expect(costUsdMicros("openai-chat:gpt-4o-mini", usage(1, 1))).toBe(1);
  });

  test("has none for unknown models, and configuration wins", () => {
    expect(costUsdMicros("ollama:gpt-5", usage(10, 10))).toBeUndefined();
    expect(costUsdMicros("anthropic:claude-sonnet-99", usage(10, 10))).toBeUndefined();
    expect(costUsdMicros("ollama:q", usage(10, 10, { cache_read: 5 }), { "ollama:q": { input: 1, output: 2 } })).toBe(30);
  });
});

describe("windows", () => {
  test("come from the setting, else the table, else are unknown", () => {
    expect(windowOf("anthropic:claude-haiku-4-5", { "anthropic:claude-haiku-4-5": 50_000 })).toEqual({ tokens: 50_000, source: "setting" });
    expect(windowOf("anthropic:claude-haiku-4-5")).toMatchObject({
      tokens: 200_000,
      source: "table",
      asOf: expect.stringMatching(/^\d{4}-\d{2}-\d{2}$/) as string,
    });
    expect(windowOf("ollama:llama")).toEqual({ tokens: undefined, source: "unknown" });
    expect(windowOf("openai:constructor")).toEqual({ tokens: undefined, source: "unknown" });
  });

  test("do not spread to similar names", () => {
    expect(findModel("openai:gpt-5-codex-max")).toBeUndefined();
    expect(findModel("anthropic:claude-opus-4-10")).toBeUndefined();
    expect(findModel("openai-chat:gpt-4.1")?.windowTokens).toBe(1_047_576);
  });
});

test("the table's rows exclude one another", () => {
  for (const name of ["claude-opus-5", "claude-opus-5-5", "claude-sonnet-5", "claude-sonnet-4-5", "gpt-5", "gpt-5-mini", "gpt-5.1", "gpt-4o", "gpt-4o-mini", "gpt-4.1-nano"]) {
    expect(KNOWN_MODELS.filter((model) => model.id.test(name)).length, name).toBe(1);
  }
});
