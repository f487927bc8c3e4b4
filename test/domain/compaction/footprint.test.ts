import { describe, expect, it } from "vitest";
import { detectSilentTruncation, estimateTokens, firesAt, footprint, frameTokens, hardLine, hasReached, messageTokens } from "../../../src/domain/compaction/footprint.ts";
import { resolvePolicy } from "../../../src/domain/compaction/policy.ts";
import type { Message } from "../../../src/domain/transcript/message.ts";
import { calls, groups, plan, says, user } from "./messages.ts";

const policy = resolvePolicy({ enabled: true });
const line = (windowTokens: number | undefined, outputTokens = 4_000) => ({ windowTokens, outputTokens, marginTokens: 1_000 });

describe("estimates", () => {
  it("counts four UTF-8 bytes a token, not characters", () => {
    expect(messageTokens(user("x".repeat(400)))).toBe(108);
    expect(messageTokens(user("日".repeat(400)))).toBe(308);
  });

  it("counts arguments, names, results as JSON and reasoning", () => {
    const call: Message = { role: "assistant", content: [{ type: "tool_call", call_id: "c", name: "tool", input: { text: "x".repeat(400) } }] };
    expect(messageTokens(call)).toBeGreaterThan(100);
    expect(messageTokens({ role: "tool", content: [{ type: "tool_result", call_id: "c", name: "tool", output: { rows: ["x".repeat(400)] } }] })).toBeGreaterThan(100);
    expect(messageTokens({ role: "assistant", content: [{ type: "reasoning", text: "x".repeat(400) }] })).toBeGreaterThan(100);
  });

  it("counts reasoning that comes encrypted, without text", () => {
    expect(messageTokens({ role: "assistant", content: [{ type: "reasoning", text: "", metadata: { openai: { encrypted_content: "x".repeat(6_000) } } }] })).toBeGreaterThan(1_000);
  });

  it("C23 schemas and system prompt are part of the request: 41 KB of them are some 10,000 tokens, not 45", () => {
    const tools = Array.from({ length: 30 }, (_, i) => ({
      name: `tool_${i}`,
      description: "d".repeat(100),
      inputSchema: { type: "object", properties: { a: { description: "x".repeat(700) } } },
    }));
    const frame = frameTokens({ system: "s".repeat(15_000), tools });
    const view = [user("hi"), says("hello"), user("go"), says("well")];
    const { tokens, scale } = footprint({ lastUsage: undefined, epoch: 0, view, frameTokens: frame });
    expect(estimateTokens(view)).toBeLessThan(60);
    expect(scale).toBe("estimate");
    expect(tokens).toBeGreaterThan(9_000);
    expect(tokens).toBeLessThan(12_000);
    expect(hasReached(tokens, firesAt({ policy, windowTokens: 12_000, outputTokens: 500, marginTokens: 100 }))).toBe(true);
  });

  it("C33 an image counts by a constant, never by its bytes: a new chat with a 1.5 MB picture does not compact", () => {
    const picture: Message = {
      role: "user",
      content: [
        { type: "file", media_type: "image/png", sha256: "s", size_bytes: 1_500_000 },
        { type: "text", text: "what is this?" },
      ],
    };
    expect(messageTokens(picture)).toBeLessThan(2_000);
    const { tokens } = footprint({ lastUsage: undefined, epoch: 0, view: [picture], frameTokens: 0 });
    expect(hasReached(tokens, firesAt({ policy, ...line(200_000) }))).toBe(false);
    expect(plan([picture], { enabled: true }, { windowTokens: 200_000, trigger: "auto" })).toMatchObject({ kind: "skip", reason: "too_few_units" });
  });
});

describe("the footprint", () => {
  const counted = { scale: "provider", epoch: 0, messages: 2 } as const;
  const view = [user("go"), says("x".repeat(4_000))];

  it("is the vendor's count and what came after it", () => {
    expect(footprint({ lastUsage: { ...counted, tokens: 50_000 }, epoch: 0, view, frameTokens: 100 })).toEqual({ tokens: 50_000, scale: "provider" });
    const more = [...view, user("x".repeat(4_000))];
    expect(footprint({ lastUsage: { ...counted, tokens: 50_000 }, epoch: 0, view: more, frameTokens: 100 })).toEqual({ tokens: 51_008, scale: "provider" });
  });

  it("C18 fires by the whole prompt: 161,200 of 200,000 tokens with 158,000 of them read from the cache", () => {
    // usage.input is the whole prompt in our scale, cached parts included, whatever the vendor adds up (providers/collect.ts).
    const usage = { input: 200 + 158_000 + 3_000, output: 0, cache_read: 158_000, cache_write: 3_000, scale: "provider" } as const;
    const used = footprint({ lastUsage: { ...counted, tokens: usage.input + usage.output }, epoch: 0, view, frameTokens: 0 });
    expect(used.tokens).toBe(161_200);
    expect(hasReached(used.tokens, firesAt({ policy, ...line(200_000) }))).toBe(true);
  });

  it("C20 does not count cached tokens twice where they are part of the prompt: 38,196, and no trigger at 70,000", () => {
    const usage = { input: 38_196, output: 0, cache_read: 38_153, scale: "provider" } as const;
    const used = footprint({ lastUsage: { ...counted, tokens: usage.input + usage.output }, epoch: 0, view, frameTokens: 0 });
    expect(used.tokens).toBe(38_196);
    expect(hasReached(used.tokens, firesAt({ policy: resolvePolicy({ enabled: true, at_tokens: 70_000 }), ...line(undefined) }))).toBe(false);
  });

  it("is an estimate right after a compaction: a count of the view before says nothing", () => {
    expect(footprint({ lastUsage: { ...counted, tokens: 164_000 }, epoch: 1, view, frameTokens: 100 })).toEqual({ tokens: 100 + estimateTokens(view), scale: "estimate" });
  });

  it("never adds an offline model's words to tokens", () => {
    expect(footprint({ lastUsage: { ...counted, scale: "offline", tokens: 9_999_999 }, epoch: 0, view, frameTokens: 0 }).scale).toBe("estimate");
  });

  it.each([Number.NaN, Number.POSITIVE_INFINITY, 0, -5])("C15 takes a count of %s for none", (tokens) => {
    expect(footprint({ lastUsage: { ...counted, tokens }, epoch: 0, view, frameTokens: 7 })).toEqual({ tokens: 7 + estimateTokens(view), scale: "estimate" });
  });

  it("C35 an estimate ten times too high makes at most twice what the vendor counted", () => {
    const base64 = [user("x".repeat(4_000_000)), says("ok")];
    expect(estimateTokens(base64)).toBeGreaterThan(1_000_000);
    expect(footprint({ lastUsage: { ...counted, tokens: 20_000 }, epoch: 0, view: base64, frameTokens: 0 })).toEqual({ tokens: 40_000, scale: "estimate" });
  });
});

describe("lines", () => {
  it("fires at the least of share, cap and what is left for input", () => {
    expect(firesAt({ policy, ...line(200_000) })).toBe(160_000);
    expect(firesAt({ policy: resolvePolicy({ enabled: true, at_tokens: 120_000 }), ...line(200_000) })).toBe(120_000);
    expect(firesAt({ policy, ...line(200_000, 64_000) })).toBe(135_000);
    expect(firesAt({ policy, pct: 60, ...line(200_000) })).toBe(120_000);
  });

  it.each([undefined, 0, Number.NaN, -1])("C15 with a window of %s only an absolute cap fires", (window) => {
    expect(hardLine(line(window))).toBeUndefined();
    expect(firesAt({ policy, ...line(window) })).toBeUndefined();
    expect(hasReached(10_000_000, firesAt({ policy, ...line(window) }))).toBe(false);
    expect(firesAt({ policy: resolvePolicy({ enabled: true, at_tokens: 9 }), ...line(window) })).toBe(9);
  });

  it.each([undefined, Number.NaN, 0])("C15 a gauge of %s never fires", (tokens) => {
    expect(hasReached(tokens, 1)).toBe(false);
  });

  it("keeps half of the window for input, whatever output is wished", () => {
    expect(hardLine({ windowTokens: 8_000, outputTokens: 128_000, marginTokens: 100 })).toBe(3_900);
  });
});

describe("a server that cuts the prompt and says nothing", () => {
  it("C63 counted 4,096 of some 9,000 tokens: its window is 4,096", () => {
    expect(detectSilentTruncation({ counted: 4_096, estimated: 9_000 })).toEqual({ windowTokens: 4_096 });
    expect(detectSilentTruncation({ counted: 4_096, estimated: 9_000 }, { counted: 4_090, estimated: 7_000 })).toEqual({ windowTokens: 4_096 });
  });

  it("C35 is not suspected when the count grows with the prompt, or of small prompts, or of a plausible count", () => {
    expect(detectSilentTruncation({ counted: 20_000, estimated: 200_000 }, { counted: 15_000, estimated: 150_000 })).toBeUndefined();
    expect(detectSilentTruncation({ counted: 100, estimated: 1_000 })).toBeUndefined();
    expect(detectSilentTruncation({ counted: 6_000, estimated: 9_000 })).toBeUndefined();
    expect(detectSilentTruncation({ counted: Number.NaN, estimated: 9_000 })).toBeUndefined();
  });
});

it("C33 an image in what is summarized has no bytes in the estimate of a long run either", () => {
  const view = [user("task"), ...groups(6), calls("last"), { role: "tool", content: [{ type: "tool_result", call_id: "last", name: "tool", output: "ok" }] } as Message];
  expect(estimateTokens(view)).toBeLessThan(2_000);
});
