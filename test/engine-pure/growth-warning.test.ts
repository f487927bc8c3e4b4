import { setImmediate as tick } from "node:timers/promises";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import type { AgentDefinition } from "../../src/domain/definition.ts";
import type { GrowthNumbers } from "../../src/domain/growth.ts";
import { crosses, GROWTH_WARNING_CODE, warnOfGrowth, type GrowthFacts } from "../../src/engine/growth-warning.ts";
import type { Log, WarnSink } from "../../src/engine/ports.ts";

const KiB = 1024;
const plain: AgentDefinition = { name: "clerk", model: "offline:x", instructions: "", tools: [] };
const at = (transcriptBytes: number, more: Partial<GrowthNumbers> = {}): GrowthNumbers => ({
  transcriptBytes,
  journalBytes: 0,
  contextTokens: undefined,
  windowTokens: undefined,
  ...more,
});

interface Lines extends Log {
  readonly lines: { fields: Record<string, unknown>; message: string }[];
}
function memoryLog(): Lines {
  const lines: Lines["lines"] = [];
  const write = (fields: object, message: string): void => void lines.push({ fields: fields as Record<string, unknown>, message });
  return { lines, debug: write, info: write, warn: write, error: write };
}

let warnings: (string | Error)[][] = [];
beforeEach(() => {
  warnings = [];
  vi.spyOn(process, "emitWarning").mockImplementation((...args: unknown[]) => void warnings.push(args as (string | Error)[]));
});
afterEach(() => {
  vi.restoreAllMocks();
});

function facts(change: Partial<GrowthFacts> = {}): GrowthFacts {
  return {
    runId: "run-1",
    agent: "clerk",
    turn: 107,
    definition: plain,
    before: at(262_144),
    after: at(262_145),
    takenOver: false,
    agentSink: undefined,
    appSink: undefined,
    log: memoryLog(),
    ...change,
  };
}

/** How often the sink is called over a run whose counter has these values after its commits. */
function callsOver(counters: readonly number[], definition = plain): number {
  const sink = vi.fn<WarnSink>();
  for (let i = 1; i < counters.length; i++) warnOfGrowth(facts({ definition, before: at(counters[i - 1] as number), after: at(counters[i] as number), agentSink: sink }));
  return sink.mock.calls.length;
}

it("T1 is silent at 262,143 and at 262,144 bytes, and speaks at 262,145", () => {
  expect(callsOver([0, 262_143])).toBe(0);
  expect(callsOver([0, 262_143, 262_144])).toBe(0);
  expect(callsOver([0, 262_143, 262_144, 262_145])).toBe(1);
});

it("T2 speaks once: not at further turns, whatever they add", () => {
  expect(callsOver([0, 262_145, 262_146, 300_000, 10_000_000])).toBe(1);
  expect(callsOver([0, 10_000_000, 10_000_000])).toBe(1);
});

it("T3 speaks at the first turn over the agent's own threshold, and never with false", () => {
  expect(callsOver([0, 999, 1_000], { ...plain, warn_transcript_bytes: 1_000 })).toBe(0);
  expect(callsOver([0, 999, 1_000, 1_001, 300_000], { ...plain, warn_transcript_bytes: 1_000 })).toBe(1);
  expect(callsOver([0, 300_000, 10_000_000], { ...plain, warn_transcript_bytes: false })).toBe(0);
});

it("T4 is silent with compaction configured, even when the lease was taken over", () => {
  const compaction = { enabled: true };
  expect(callsOver([0, 300_000, 10_000_000], { ...plain, compaction })).toBe(0);
  const sink = vi.fn<WarnSink>();
  warnOfGrowth(facts({ definition: { ...plain, compaction }, takenOver: true, agentSink: sink }));
  expect(sink).not.toHaveBeenCalled();
});

it("T5 speaks with claim check on", () => {
  expect(callsOver([0, 262_145], { ...plain, claim_check: { tools: ["t"] } })).toBe(1);
});

describe("T6 exactly one sink is called", () => {
  it("the agent's, when it has one", () => {
    const [agentSink, appSink] = [vi.fn<WarnSink>(), vi.fn<WarnSink>()];
    warnOfGrowth(facts({ agentSink, appSink }));
    expect(agentSink).toHaveBeenCalledTimes(1);
    expect(appSink).not.toHaveBeenCalled();
    expect(warnings).toEqual([]);
  });

  it("else the application's", () => {
    const appSink = vi.fn<WarnSink>();
    warnOfGrowth(facts({ appSink }));
    expect(appSink).toHaveBeenCalledTimes(1);
    expect(warnings).toEqual([]);
  });

  it("else the process warns, with a stable code", () => {
    warnOfGrowth(facts());
    expect(warnings).toEqual([[expect.stringContaining("run-1"), { type: "CapstanWarning", code: "CAPSTAN_STATE_GROWTH" }]]);
    expect(GROWTH_WARNING_CODE).toBe("CAPSTAN_STATE_GROWTH");
  });

  it("is not called in place of one that throws", async () => {
    const [appSink, agentSink] = [vi.fn<WarnSink>(), vi.fn<WarnSink>(() => Promise.reject(new Error("no")))];
    warnOfGrowth(facts({ agentSink, appSink }));
    await tick();
    expect(appSink).not.toHaveBeenCalled();
    expect(warnings).toEqual([]);
  });

  it("is told the facts as fields too", () => {
    const sink = vi.fn<WarnSink>();
    warnOfGrowth(facts({ agentSink: sink }));
    expect(sink.mock.calls[0]?.[1]).toEqual({ code: "CAPSTAN_STATE_GROWTH", run_id: "run-1", agent: "clerk", turn: 107, transcript_bytes: 262_145, threshold_bytes: 262_144 });
  });
});

it.each<[string, WarnSink]>([
  [
    "throws",
    () => {
      throw new Error("the sink is broken");
    },
  ],
  ["rejects", () => Promise.reject(new Error("the sink is broken"))],
  [
    "throws no error",
    () => {
      // oxlint-disable-next-line typescript/only-throw-error -- a sink of the user's may throw anything
      throw undefined;
    },
  ],
  // oxlint-disable-next-line unicorn/no-thenable -- that is the case
  [
    "gives a thenable that throws",
    () => ({
      // oxlint-disable-next-line unicorn/no-thenable -- a hostile thenable is the case
      then() {
        throw new Error("the sink is broken");
      },
    }),
  ],
])("T7 a sink that %s fails nothing: it is logged", async (_, sink) => {
  for (const place of ["agentSink", "appSink"] as const) {
    const log = memoryLog();
    expect(() => warnOfGrowth(facts({ [place]: sink, log }))).not.toThrow();
    await tick();
    expect(log.lines).toMatchObject([{ fields: { runId: "run-1" }, message: "the growth warning's sink failed" }]);
  }
});

it("T8 the text names what happened, the ways out, and what they cost", () => {
  const sink = vi.fn<WarnSink>();
  warnOfGrowth(facts({ agentSink: sink, definition: { ...plain, warn_transcript_bytes: 1_000 }, before: at(0), after: at(1_234) }));
  const text = sink.mock.calls[0]?.[0] as string;
  for (const part of [
    "clerk",
    "run run-1",
    "turn 107",
    "1234 bytes",
    "above 1000",
    "`compaction`",
    "`claimCheck`",
    "docs/scaling.md",
    '"Agent state growth"',
    "context window",
    "268,435,455-byte JSONB cap",
    "warnTranscriptBytes",
  ]) {
    expect(text).toContain(part);
  }
  expect(text).toContain("withholds an offloaded result from the model except for its digest and preview, so list only tools whose full output the model does not need");
});

describe("G6 a lease taken over from a dead worker", () => {
  it("makes the next one say it again, if the counter is above", () => {
    const sink = vi.fn<WarnSink>();
    warnOfGrowth(facts({ agentSink: sink, takenOver: true, before: at(300_000), after: at(300_000) }));
    expect(sink).toHaveBeenCalledTimes(1);
  });

  it("is no reason to speak below the threshold, nor twice at the crossing", () => {
    const sink = vi.fn<WarnSink>();
    warnOfGrowth(facts({ agentSink: sink, takenOver: true, before: at(1), after: at(262_144) }));
    expect(sink).not.toHaveBeenCalled();
    warnOfGrowth(facts({ agentSink: sink, takenOver: true }));
    expect(sink).toHaveBeenCalledTimes(1);
  });
});

describe("G7 the critical level", () => {
  const critical = at(17 * KiB * KiB);

  it("is a log line with its code, once, and never a second call of the sink", () => {
    const [sink, log] = [vi.fn<WarnSink>(), memoryLog()];
    warnOfGrowth(facts({ agentSink: sink, appSink: sink, log, before: at(300_000), after: critical }));
    warnOfGrowth(facts({ agentSink: sink, appSink: sink, log, before: critical, after: critical }));
    expect(sink).not.toHaveBeenCalled();
    expect(warnings).toEqual([]);
    expect(log.lines).toEqual([
      { fields: expect.objectContaining({ code: "STATE_GROWTH_CRITICAL", runId: "run-1", turn: 107, transcriptBytes: critical.transcriptBytes }), message: expect.any(String) },
    ]);
  });

  it("is logged beside the one warning when both are crossed at once", () => {
    const [sink, log] = [vi.fn<WarnSink>(), memoryLog()];
    warnOfGrowth(facts({ agentSink: sink, log, before: at(0), after: critical }));
    expect(sink).toHaveBeenCalledTimes(1);
    expect(log.lines).toHaveLength(1);
  });

  it("is logged with compaction configured and with the warning silenced", () => {
    for (const change of [{ compaction: { enabled: true } }, { warn_transcript_bytes: false as const }]) {
      const [sink, log] = [vi.fn<WarnSink>(), memoryLog()];
      warnOfGrowth(facts({ agentSink: sink, log, definition: { ...plain, ...change }, before: at(0), after: critical }));
      expect(sink).not.toHaveBeenCalled();
      expect(log.lines.map((l) => l.fields["code"])).toEqual(["STATE_GROWTH_CRITICAL"]);
    }
  });

  it("is reached by the share of the window too", () => {
    const log = memoryLog();
    const window = { windowTokens: 1_000 };
    warnOfGrowth(facts({ log, before: at(1, { ...window, contextTokens: 799 }), after: at(1, { ...window, contextTokens: 800 }) }));
    expect(log.lines).toHaveLength(1);
  });
});

it("G5 crosses between the same two counters on every host", () => {
  expect([crosses(plain, 262_144, 262_145), crosses(plain, 262_143, 262_144), crosses(plain, 262_145, 262_146), crosses(plain, 0, 1e9)]).toEqual([true, false, false, true]);
  expect(crosses({ ...plain, compaction: { after_bytes: 5_000 } }, 0, 1e9)).toBe(false);
  expect(crosses({ ...plain, warn_transcript_bytes: false }, 0, 1e9)).toBe(false);
});
