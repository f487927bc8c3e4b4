import { describe, expect, it } from "vitest";
import { decideAnswer, modelFor, type CheckOutput } from "../../src/domain/decide.ts";
import type { AgentDefinition } from "../../src/domain/definition.ts";
import type { EventPayload } from "../../src/domain/event.ts";
import { initialState, type RunState } from "../../src/domain/fold.ts";
import { MAX_CORRECTIONS, resolveLimits } from "../../src/domain/limits.ts";
import type { AssistantPart } from "../../src/domain/transcript/message.ts";

const plain: AgentDefinition = { name: "a", model: "offline:x", instructions: "", tools: [] };
const structured: AgentDefinition = { ...plain, output_schema: { type: "object" } };

type Response = EventPayload<"model.responded">;
const said = (content: string | AssistantPart[], reason: Response["finish"]["reason"] = "stop"): Response => ({
  content: typeof content === "string" ? [{ type: "text", text: content }] : content,
  finish: { reason },
  usage: { input: 1, output: 1, scale: "provider" },
  duration_ms: 1,
});
const fits: CheckOutput = () => ({ ok: true });
const fitsNot: CheckOutput = () => ({ ok: false, issues: "n: must be a number" });
const unused: CheckOutput = () => {
  throw new Error("the output was checked without need");
};
const state = (change: Partial<RunState> = {}): RunState => ({ ...initialState(), ...change });
const told = (reason: keyof RunState["corrections"], times: number): RunState => state({ corrections: { empty: 0, truncated: 0, output_invalid: 0, [reason]: times } });

describe("an answer without calls", () => {
  it("completes the run with its text", () => {
    expect(decideAnswer(plain, state(), said("  done  "), unused)).toEqual({ kind: "complete", output: "  done  " });
    expect(
      decideAnswer(
        plain,
        state(),
        said(
          [
            { type: "reasoning", text: "hm" },
            { type: "text", text: "a" },
            { type: "text", text: "b" },
          ],
          "other",
        ),
        unused,
      ),
    ).toEqual({ kind: "complete", output: "ab" });
  });

  it("lets an interactive run wait for input", () => {
    expect(decideAnswer(plain, state({ interactive: true }), said("hello"), unused)).toEqual({ kind: "await_input" });
  });

  it.each<[string, string | AssistantPart[]]>([
    ["nothing", []],
    ["empty text", ""],
    ["white space", " \n\t\u00a0"],
    ["reasoning only", [{ type: "reasoning", text: "thinking" }]],
  ])("tells the model that %s is no answer", (_, content) => {
    expect(decideAnswer(plain, state(), said(content), unused)).toMatchObject({ kind: "correct", reason: "empty" });
    expect(decideAnswer(structured, state(), said(content), unused)).toMatchObject({ kind: "correct", reason: "empty" });
    expect(decideAnswer(plain, state({ interactive: true }), said(content), unused)).toMatchObject({ kind: "correct", reason: "empty" });
  });

  it("tells the model that its answer was cut off, before looking at what it says", () => {
    expect(decideAnswer(plain, state(), said("half an", "length"), unused)).toMatchObject({ kind: "correct", reason: "truncated" });
    expect(decideAnswer(structured, state(), said('{"n":', "length"), unused)).toMatchObject({ kind: "correct", reason: "truncated" });
    expect(decideAnswer(plain, state(), said("", "length"), unused)).toMatchObject({ kind: "correct", reason: "empty" });
  });

  it("fails at once when the provider withheld the answer", () => {
    for (const text of ["", "some"]) expect(decideAnswer(plain, state(), said(text, "content_filter"), unused)).toMatchObject({ kind: "fail", code: "CONTENT_FILTERED" });
  });

  it.each([
    ["empty", "RESPONSE_EMPTY", said("")],
    ["truncated", "RESPONSE_TRUNCATED", said("x", "length")],
    ["output_invalid", "OUTPUT_INVALID", said("no JSON")],
  ] as const)("tells the model of %s answers twice, then fails with %s", (reason, code, response) => {
    expect(MAX_CORRECTIONS).toBe(2);
    for (const times of [0, 1]) expect(decideAnswer(structured, told(reason, times), response, fits)).toMatchObject({ kind: "correct", reason });
    for (const times of [2, 3]) expect(decideAnswer(structured, told(reason, times), response, fits)).toMatchObject({ kind: "fail", code });
  });

  it("counts each kind on its own", () => {
    const all = state({ corrections: { empty: 2, truncated: 2, output_invalid: 0 } });
    expect(decideAnswer(structured, all, said("no JSON"), fits)).toMatchObject({ kind: "correct", reason: "output_invalid" });
  });
});

describe("an answer to an agent with an output schema", () => {
  it("completes the run with the value, not with its text", () => {
    let seen: unknown;
    const decision = decideAnswer(structured, state(), said('{"n": 1}'), (output) => {
      seen = output;
      return { ok: true };
    });
    expect(decision).toEqual({ kind: "complete", output: { n: 1 } });
    expect(seen).toEqual({ n: 1 });
  });

  it("completes an interactive run too: the result is what it was for", () => {
    expect(decideAnswer(structured, state({ interactive: true }), said("{}"), fits)).toEqual({ kind: "complete", output: {} });
  });

  it("tells the model what does not fit, and how to answer", () => {
    const native = decideAnswer(structured, state({ nativeOutput: true }), said("{}"), fitsNot);
    expect(native).toMatchObject({ kind: "correct", reason: "output_invalid", text: expect.stringMatching(/n: must be a number.*answer with JSON only/) });
    const byTool = decideAnswer(structured, state({ nativeOutput: false }), said("{}"), fitsNot);
    expect(byTool).toMatchObject({ text: expect.stringContaining("call the tool submit_output") });
  });

  it("tells the model that text is no JSON, and that 1e400 is no number", () => {
    expect(decideAnswer(structured, state(), said("Here it is: {}"), unused)).toMatchObject({ kind: "correct", text: expect.stringContaining("not JSON") });
    expect(decideAnswer(structured, state(), said('{"n": 1e400}'), unused)).toMatchObject({ kind: "correct", text: expect.stringContaining("Infinity is not a JSON number") });
  });

  it("fails naming what did not fit", () => {
    expect(decideAnswer(structured, told("output_invalid", 2), said("{}"), fitsNot)).toMatchObject({ kind: "fail", message: expect.stringContaining("n: must be a number") });
  });
});

describe("the model that is asked next", () => {
  const definition = { ...plain, fallbacks: ["offline:y", "offline:z"] };
  const limits = resolveLimits({ ...definition, limits: { model_attempts: 2 } }, false);

  it("is the agent's own, then each fallback after as many failures as may count, then none", () => {
    expect([0, 1, 2, 3, 4, 5, 6, 7].map((failures) => modelFor(definition, failures, limits))).toEqual([
      "offline:x",
      "offline:x",
      "offline:y",
      "offline:y",
      "offline:z",
      "offline:z",
      undefined,
      undefined,
    ]);
  });

  it("is given up after five failures when nothing is set", () => {
    const defaults = resolveLimits(plain, false);
    expect([modelFor(plain, 4, defaults), modelFor(plain, 5, defaults)]).toEqual(["offline:x", undefined]);
  });
});

describe("limits", () => {
  it("are those of the documentation when unset", () => {
    expect(resolveLimits(plain, false)).toEqual({ maxTurns: 64, parallelTools: 8, maxCallsPerTurn: 128, modelAttempts: 5, modelTimeoutMs: 600_000, inlinePayloadBytes: 1_048_576 });
  });

  it("put no cap on an interactive run's turns unless one is set", () => {
    expect(resolveLimits(plain, true).maxTurns).toBe(Number.POSITIVE_INFINITY);
    expect(resolveLimits({ ...plain, limits: { max_turns: 3 } }, true).maxTurns).toBe(3);
  });

  it("are the agent's where it sets them", () => {
    const limits = { max_turns: 1, parallel_tools: 2, max_calls_per_turn: 3, model_attempts: 4, model_timeout_ms: 5, inline_payload_bytes: 6_000 };
    expect(resolveLimits({ ...plain, limits }, false)).toEqual({
      maxTurns: 1,
      parallelTools: 2,
      maxCallsPerTurn: 3,
      modelAttempts: 4,
      modelTimeoutMs: 5,
      inlinePayloadBytes: 6_000,
    });
  });
});
