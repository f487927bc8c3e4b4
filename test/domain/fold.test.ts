import fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { CapstanEvent } from "../../src/domain/event.ts";
import { evolve, fold, initialState, type RunState } from "../../src/domain/fold.ts";
import { canonicalJson, type JsonValue } from "../../src/domain/json.ts";
import { TransitionError } from "../../src/domain/run.ts";
import type { AssistantPart } from "../../src/domain/transcript/message.ts";
import { toEvent, type StoredEvent } from "../../src/domain/upcast.ts";
import { Journal, run } from "./runs.ts";

const text = (state: RunState): string => canonicalJson(state as unknown as JsonValue);
const call = (id: string, name = "search"): AssistantPart => ({ type: "tool_call", call_id: id, name, input: {} });
const answer = (said: string): AssistantPart[] => [{ type: "text", text: said }];

describe("for every run", () => {
  it("folding all equals folding any beginning and then the rest, over a stored snapshot too", () => {
    fc.assert(
      fc.property(run, fc.nat(), (events, at) => {
        const cut = at % (events.length + 1);
        const whole = text(fold(events));
        const beginning = fold(events.slice(0, cut));
        const snapshot = structuredClone(beginning);
        expect(text(fold(events.slice(cut), beginning))).toBe(whole);
        expect(text(fold(events.slice(cut), snapshot))).toBe(whole);
      }),
    );
  });

  it("folding again gives the same, and leaves the events as they were", () => {
    fc.assert(
      fc.property(run, (events) => {
        const before = canonicalJson(events as unknown as JsonValue);
        expect(text(fold(events))).toBe(text(fold(events)));
        expect(canonicalJson(events as unknown as JsonValue)).toBe(before);
      }),
    );
  });

  it("folds stored rows to the same state as live events, for jsonb that reorders members", () => {
    fc.assert(
      fc.property(run, (events) => {
        const rows = events.map((event): StoredEvent => ({ ...event, version: 1, payload: JSON.parse(canonicalJson(event.payload as unknown as JsonValue)) as unknown }));
        expect(text(fold(rows.map(toEvent)))).toBe(text(fold(events)));
      }),
    );
  });

  it("a tool message answers exactly the calls of the response before it, in their order, and no call stays unanswered", () => {
    fc.assert(
      fc.property(run, (events) => {
        const { view, phase } = fold(events);
        const callsOf = (i: number): string[] => view[i]?.content.flatMap((part) => (part.type === "tool_call" ? [part.call_id] : [])) ?? [];
        view.forEach((message, i) => {
          if (message.role === "tool") {
            expect(view[i - 1]?.role).toBe("assistant");
            expect(message.content.map((part) => part.call_id)).toEqual(callsOf(i - 1));
          }
          const isOpen = i === view.length - 1 && phase.kind === "calling";
          if (callsOf(i).length > 0 && !isOpen) expect(view[i + 1]?.role).toBe("tool");
        });
        expect(view[0]?.role).toBe("user");
      }),
      { numRuns: 300 },
    );
  });

  it("names the event that changed the view last", () => {
    fc.assert(
      fc.property(run, (events) => {
        const state = initialState();
        let last = 0;
        for (const event of events) {
          const before = state.view.length;
          evolve(state, event);
          expect(state.seq).toBe(event.seq);
          if (state.view.length > before) last = event.seq;
          expect(state.viewSeq).toBe(last);
          // What was rendered once stays: later requests begin with the same messages.
          expect(state.view.length).toBeGreaterThanOrEqual(before);
        }
      }),
    );
  });

  it("counts the tokens of every response and of every failure that was billed", () => {
    fc.assert(
      fc.property(run, (events) => {
        const billed = events.flatMap((e) => (e.type === "model.responded" || e.type === "model.failed" ? [e.payload.usage?.input ?? 0] : []));
        expect(fold(events).usage.inputTokens).toBe(billed.reduce((a, b) => a + b, 0));
      }),
    );
  });

  it("takes nothing after its end", () => {
    fc.assert(
      fc.property(run, (events) => {
        const state = fold(events);
        fc.pre(["completed", "failed", "cancelled"].includes(state.status));
        const more = new Journal().requested().events[0] as CapstanEvent;
        expect(() => evolve(state, { ...more, seq: state.seq + 1 })).toThrow(TransitionError);
      }),
    );
  });
});

describe("a turn with tools", () => {
  it("shows parallel results in call order, however they ended", () => {
    const journal = new Journal()
      .created("pay")
      .requested()
      .responded([call("a"), call("b", "pay"), call("c")], { announced: [1] });
    let state = fold(journal.events);
    expect(state.phase).toMatchObject({ kind: "calling", calls: [{ announced: false }, { announced: true }, { announced: false }] });
    journal.write("tool.failed", { call_id: "c", index: 2, name: "search", error: { code: "TOOL_FAILED", message: "no" }, duration_ms: 1 });
    journal.write("tool.interrupted", { call_id: "b", index: 1, name: "pay", reason: "worker_lost" });
    state = fold(journal.events);
    expect(state.view).toHaveLength(2);
    journal.write("tool.completed", { call_id: "a", index: 0, name: "search", output: { rows: 3 }, duration_ms: 1 });
    state = fold(journal.events);
    expect(state.phase).toEqual({ kind: "boundary" });
    expect(state.view[2]).toEqual({
      role: "tool",
      content: [
        { type: "tool_result", call_id: "a", name: "search", output: { rows: 3 } },
        { type: "tool_result", call_id: "b", name: "pay", is_error: true, output: expect.stringContaining("OUTCOME_UNKNOWN") },
        { type: "tool_result", call_id: "c", name: "search", is_error: true, output: "TOOL_FAILED: no" },
      ],
    });
  });

  it("runs again when a parked run's open calls are answered", () => {
    const journal = new Journal()
      .created()
      .requested()
      .responded([call("a"), call("b")])
      .write("run.parked", { reason: "agent_missing" });
    expect(fold(journal.events)).toMatchObject({ status: "waiting", waitReason: "agent_missing" });
    journal.write("tool.completed", { call_id: "a", index: 0, name: "search", output: 1, duration_ms: 1 });
    expect(fold(journal.events)).toMatchObject({ status: "running", waitReason: undefined });
  });

  it("says that a journal is damaged when a result answers no open call", () => {
    const journal = new Journal().created().requested().responded(answer("hi"));
    journal.write("tool.completed", { call_id: "a", index: 0, name: "search", output: 1, duration_ms: 1 });
    expect(() => fold(journal.events)).toThrow("the journal is damaged");
  });
});

describe("failures and corrections", () => {
  const failed = (counts: boolean) => ({ error: { code: "X", message: "x" }, retryable: true, counts, duration_ms: 1 });

  it("counts only failures that count, and starts anew with each turn", () => {
    const journal = new Journal().created();
    journal.turn = 1;
    journal.requested().write("model.failed", failed(true)).requested(2).write("model.failed", failed(false)).requested(3).write("model.failed", failed(true));
    expect(fold(journal.events)).toMatchObject({ modelFailures: 2, phase: { kind: "failed" } });
    journal
      .requested(4)
      .responded([call("a")])
      .write("tool.completed", { call_id: "a", index: 0, name: "search", output: 1, duration_ms: 1 });
    expect(fold(journal.events).modelFailures).toBe(2);
    journal.turn = 2;
    expect(fold(journal.requested().events).modelFailures).toBe(0);
  });

  it("tells the model as a user message, and forgets empty and cut-off answers once it calls a tool", () => {
    const journal = new Journal().created().requested().responded([]).write("model.corrected", { reason: "empty", text: "go on" });
    journal.requested().responded(answer("half")).write("model.corrected", { reason: "truncated", text: "shorter" });
    journal.requested().responded(answer("{}")).write("model.corrected", { reason: "output_invalid", text: "fit it" });
    const state = fold(journal.events);
    expect(state.corrections).toEqual({ empty: 1, truncated: 1, output_invalid: 1 });
    expect(state.view.map((m) => m.role)).toEqual(["user", "user", "assistant", "user", "assistant", "user"]);
    expect(fold(journal.requested().responded([call("a")]).events).corrections).toEqual({ empty: 0, truncated: 0, output_invalid: 1 });
  });

  it("counts an output refused by submit_output like one refused as text", () => {
    const journal = new Journal()
      .created()
      .requested()
      .responded([call("a", "submit_output")]);
    journal.write("tool.failed", { call_id: "a", index: 0, name: "submit_output", error: { code: "OUTPUT_INVALID", message: "no" }, duration_ms: 1 });
    expect(fold(journal.events).corrections.output_invalid).toBe(1);
  });

  it("forgets corrections when an interactive run waits for input: its answer was good", () => {
    const journal = new Journal().created("hi", { interactive: true }).requested().responded([]).write("model.corrected", { reason: "empty", text: "go on" });
    journal.requested().responded(answer("hello")).write("run.parked", { reason: "input" });
    expect(fold(journal.events).corrections).toEqual({ empty: 0, truncated: 0, output_invalid: 0 });
  });

  it("keeps corrections while a run merely waits for a retry", () => {
    const journal = new Journal().created().requested().responded([]).write("model.corrected", { reason: "empty", text: "go on" });
    journal.requested().write("model.failed", failed(true)).write("run.parked", { reason: "retry" });
    expect(fold(journal.events).corrections.empty).toBe(1);
  });
});

describe("states", () => {
  it("goes from queued over running and waiting to its end", () => {
    const journal = new Journal().created("hi", { interactive: true });
    const seen = [fold(journal.events).status];
    journal.requested();
    seen.push(fold(journal.events).status);
    journal.responded(answer("hello")).write("run.parked", { reason: "input" });
    expect(fold(journal.events)).toMatchObject({ status: "waiting", waitReason: "input" });
    journal.write("input.applied", { content: [{ type: "text", text: "more" }] });
    expect(fold(journal.events)).toMatchObject({ status: "running", waitReason: undefined, phase: { kind: "boundary" } });
    seen.push(fold(journal.write("run.completed", { output: 7 }).events).status);
    expect(seen).toEqual(["queued", "running", "completed"]);
    expect(fold(journal.events).output).toBe(7);
  });

  it("remembers the definition that was pinned later, and why a run failed", () => {
    const journal = new Journal().created("x", { definition_sha: null });
    expect(fold(journal.events).definitionSha).toBeUndefined();
    expect(fold(journal.write("run.pinned", { definition_sha: "sha256:2" }).events).definitionSha).toBe("sha256:2");
    journal.write("run.failed", { error: { code: "INPUT_INVALID", message: "no" } });
    expect(fold(journal.events)).toMatchObject({ status: "failed", error: { code: "INPUT_INVALID" } });
  });

  it("takes the last response's whole prompt and answer as the context's size", () => {
    const state = fold(
      new Journal()
        .created()
        .requested()
        .responded(answer("x"), { usage: { input: 100, output: 20, cache_read: 50, scale: "estimate" } }).events,
    );
    expect(state).toMatchObject({ contextTokens: 120, contextScale: "estimate", usage: { inputTokens: 100, outputTokens: 20, cacheReadTokens: 50 } });
  });
});
