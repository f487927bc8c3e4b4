/** The default policy on a large window, and agents that look at their gauge and compact themselves. */
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { agent } from "../../src/agents/agent.ts";
import { auditorAgent } from "../../src/agents/auditor.ts";
import { contextTool } from "../../src/agents/engine-tools.ts";
import type { JsonObject } from "../../src/domain/json.ts";
import type { Model } from "../../src/engine/model-port.ts";
import { offlineAuditor } from "../../src/providers/offline/auditor.ts";
import { AUDIT_SUMMARIZER, auditSummarizer } from "../../src/providers/offline/auditor/summarizer.ts";
import { createTestDatabase } from "../support/database.ts";
import { openLab, payloads, typesOf, type Lab } from "../engine/harness.ts";
import { driver, look, lookTool, noneUnderWay, patient, ran, reading, sound, textOf, type Told } from "./support.ts";

const database = await createTestDatabase();
const TASK = "Read all pages, and name the odd entries.";
const system = "Read.";
const common = { instructions: system, tools: [lookTool], limits: { maxTurns: 500 } };

/** Writes as long as it is told, and is cut off where it would write more than it may. */
function obedient({ call }: Told) {
  const asked = Number(/in about (\d+) tokens/.exec(textOf(call.messages[0]))?.[1]);
  const limit = call.settings.maxOutputTokens ?? 0;
  return { text: "DONE it. ".repeat(Math.min(asked, limit) / 3), finish: asked > limit ? ("length" as const) : ("stop" as const) };
}
const first = driver("first", { windowTokens: 200_000, turn: reading(14, 60_000), summary: obedient });
const all = driver("all", { windowTokens: 200_000, turn: reading(14, 60_000), summary: obedient });

/** Does what the tool's guidance says, by what it reads of the tool's answers alone. */
const careful = driver("careful", {
  windowTokens: 9_000,
  turn: patient(
    () => lab,
    ({ turn, call }) => {
      const last = call.messages.at(-1)?.content.at(-1);
      const answer = last?.type === "tool_result" && last.name === "context" ? (last.output as JsonObject) : undefined;
      const gauge = answer?.["context"] as { used_pct?: number } | undefined;
      const policy = answer?.["compaction"] as { autocompact_at_pct?: number } | undefined;
      if (gauge?.used_pct !== undefined && policy?.autocompact_at_pct !== undefined && gauge.used_pct >= policy.autocompact_at_pct)
        return { asks: [{ name: "context", input: { op: "compact" } }] };
      if (turn > 50) return undefined;
      return { asks: [turn % 3 === 0 && answer === undefined ? { name: "context", input: { op: "self" } } : look(turn, 1_200)] };
    },
  ),
});

const folder = mkdtempSync(join(tmpdir(), "capstan-audit-"));
for (let n = 0; n < 24; n++) writeFileSync(join(folder, `notes-${n}.md`), `# Notes ${n}\n\n[See](./missing-${n}.md).\n${"A line of notes that says little.\n".repeat(80)}`);
const auditor = auditorAgent({
  root: folder,
  reportsDir: join(folder, "reports"),
  name: "self-auditor",
  selfCompacting: true,
  compaction: { enabled: false, autocompact_at_pct: 60, summarizer: AUDIT_SUMMARIZER },
  env: {},
});

/** The offline auditor as it is, with a window, and never ahead of its summary. */
const offline = offlineAuditor();
const auditing: Model = {
  ...offline,
  window: { tokens: 8_000, source: "setting" },
  call: async (call, context) => {
    await noneUnderWay(lab, context.runId);
    return await offline.call(call, context);
  },
};

const agents = {
  first: agent({ ...common, name: "first", model: first.name, compaction: { enabled: true } }),
  all: agent({ ...common, name: "all", model: all.name, compaction: { enabled: true, keep_first: false } }),
  careful: agent({ ...common, name: "careful", model: careful.name, tools: [lookTool, contextTool()], settings: { maxOutputTokens: 500 } }),
};

let lab: Lab;
beforeAll(async () => {
  lab = await openLab(database.url, {
    agents: [...Object.values(agents), auditor],
    models: [first, all, careful, auditing],
    summarizers: { [AUDIT_SUMMARIZER]: auditSummarizer },
  });
});
afterAll(async () => {
  await lab[Symbol.asyncDispose]();
  rmSync(folder, { recursive: true, force: true });
});

describe.concurrent("the default policy", () => {
  it.each([["first"], ["all"]] as const)("is applied, not cut off, to a span of 160,000 tokens: %s", async (name) => {
    const model = name === "first" ? first : all;
    const run = await ran(lab, agents[name], TASK);
    expect(run.status.state).toBe("completed");
    expect(payloads(run.events, "compaction.failed")).toEqual([]);
    const [marker] = payloads(run.events, "context.compacted");
    expect(marker.before.tokens).toBeGreaterThanOrEqual(160_000);
    expect(marker.after.tokens).toBeLessThan(marker.before.tokens * 0.75);
    expect(marker.rung).toBe(0);
    const { state } = await sound(lab, run.id, model, { system, ...(name === "first" ? { task: TASK } : {}) });
    expect(textOf(state.view[0]).includes(TASK)).toBe(name === "first");
  });
});

describe.concurrent("an agent that compacts itself", () => {
  it("reads its gauge, asks at the right time, and finishes with auto off", async () => {
    const run = await ran(lab, agents.careful, TASK);
    expect(run.status.state).toBe("completed");
    const markers = payloads(run.events, "context.compacted");
    expect(markers.length).toBeGreaterThanOrEqual(1);
    expect(new Set(markers.map(({ trigger }) => trigger))).toEqual(new Set(["self"]));
    expect(payloads(run.events, "model.failed")).toEqual([]);
    const [requested] = payloads(run.events, "compaction.requested");
    expect(requested.before.tokens).toBeGreaterThanOrEqual(9_000 * 0.8);
    expect(requested.before.tokens).toBeLessThan(9_000);
    await sound(lab, run.id, careful, { system, task: TASK });
  });

  it("does so as the offline auditor too", async () => {
    const run = await ran(lab, auditor.name, { max_reads: 40, lines_per_read: 60, calls_per_turn: 2 });
    expect(run.status.state).toBe("completed");
    expect(payloads(run.events, "context.compacted").map(({ trigger }) => trigger)).toContain("self");
    expect(typesOf(run.events)).not.toContain("compaction.failed");
    expect(JSON.stringify(run.status.output)).toContain("missing-");
    await lab.intact(run.id);
  });
});
