/** Compaction from its trigger to the marker, on a real worker of each pool. */
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { z } from "zod";
import { agent } from "../../src/agents/agent.ts";
import { tool } from "../../src/agents/tool.ts";
import type { SummarizerFunction } from "../../src/compaction/effect.ts";
import { fold } from "../../src/domain/fold.ts";
import type { Model } from "../../src/engine/model-port.ts";
import { remember } from "../../src/engine/run-memory.ts";
import { JournalReader } from "../../src/store/journal-reader.ts";
import { namedSql, defaultNames } from "../../src/store/names.ts";
import { createTestDatabase } from "../support/database.ts";
import { openLab, payloads, typesOf, until, type Lab } from "./harness.ts";

const database = await createTestDatabase();
const TURNS = 30;

const lookup = tool({
  name: "lookup",
  description: "Looks a page up.",
  input: z.object({ page: z.int() }),
  effect: "read",
  execute: ({ page }) => `page ${page}: ${"the ledger of this month holds entries, and one of them is odd; ".repeat(30)}`,
});

/** Goes on with page after page, by the number of turns that the engine tells, whatever the view has been made to. */
function pager(name: string, windowTokens: number | undefined, turns = TURNS): Model {
  return {
    name,
    structuredOutput: false,
    window: windowTokens === undefined ? { tokens: undefined, source: "unknown" } : { tokens: windowTokens, source: "setting" },
    async call(call, { turn }) {
      const usage = { input: 1, output: 1, scale: "estimate" as const };
      if (call.tools.length === 0) return { kind: "responded", content: [{ type: "text", text: "DONE: pages were read. OPEN: the rest." }], finish: { reason: "stop" }, usage };
      if (turn > turns) return { kind: "responded", content: [{ type: "text", text: "All pages are read." }], finish: { reason: "stop" }, usage };
      return {
        kind: "responded",
        content: [
          { type: "text", text: `Reading page ${turn}.` },
          { type: "tool_call", call_id: `call_${turn}`, name: "lookup", input: { page: turn } },
        ],
        finish: { reason: "tool_calls" },
        usage,
      };
    },
  };
}

const summaries: { messages: number; text: string }[] = [];
const note: SummarizerFunction = async ({ messages }) => {
  summaries.push({ messages: messages.length, text: JSON.stringify(messages) });
  return { summary: `DONE: ${messages.length} messages were read. OPEN: the rest.` };
};

const common = { instructions: "Read all pages.", tools: [lookup], limits: { maxTurns: 10_000 } };
const byShare = agent({ name: "by-share", model: "scripted:small", compaction: { enabled: true, keep_last_n: 2 }, ...common });
const byBytes = agent({ name: "by-bytes", model: "scripted:unknown", compaction: { after_bytes: 16_384, summarizer: "note", keep_last_n: 2 }, ...common });
const chatty = agent({ name: "chatty", model: "scripted:unknown", interactive: true, ...common });

let lab: Lab;
beforeAll(async () => {
  lab = await openLab(database.url, { agents: [byShare, byBytes, chatty], models: [pager("scripted:small", 12_000), pager("scripted:unknown", undefined)], summarizers: { note } });
});
afterAll(() => lab[Symbol.asyncDispose]());

/** The view as a fold of all events gives it, and as one that begins at the marker does. */
async function bothViews(runId: string) {
  const reader = new JournalReader(lab.db, namedSql(defaultNames));
  const loaded = await reader.load(runId);
  if (loaded === undefined) throw new Error("no run");
  const all = [];
  for await (const { event } of reader.walk(runId)) all.push(event);
  return { whole: fold(all), resumed: remember(loaded, 0).state, read: loaded.events.length, all: all.length };
}

describe("auto by percentage", () => {
  it("keeps a run of thirty turns inside a window that holds eight, and the journal whole", async () => {
    const run = await lab.run(byShare, "Read the thirty pages.");
    expect(run.status.state).toBe("completed");
    const markers = payloads(run.events, "context.compacted");
    expect(markers.length).toBeGreaterThanOrEqual(2);
    for (const { before, after } of markers) expect(after.bytes).toBeLessThan(before.bytes);
    expect(payloads(run.events, "tool.completed")).toHaveLength(TURNS);
    await lab.intact(run.id);
    const { whole, resumed, read, all } = await bothViews(run.id);
    expect(resumed).toEqual({ ...whole, compaction: resumed.compaction });
    expect(JSON.stringify(resumed.view)).toBe(JSON.stringify(whole.view));
    expect(read).toBeLessThan(all / 2);
    const [row] = (await lab.db.query("select view_epoch, view_marker_seq, transcript_bytes::int from capstan.runs where id = $1", [run.id])).rows;
    expect(row.view_epoch).toBe(markers.length);
    const tasks = (await lab.db.query("select distinct state from capstan.compaction_tasks where run_id = $1", [run.id])).rows;
    expect(tasks).toEqual([{ state: "applied" }]);
  });
});

describe("auto by bytes with a registered summarizer", () => {
  it("hands it the span once per compaction, and records what it said", async () => {
    summaries.length = 0;
    const run = await lab.run(byBytes, "Read the thirty pages.");
    expect(run.status.state).toBe("completed");
    const markers = payloads(run.events, "context.compacted");
    expect(markers.length).toBeGreaterThanOrEqual(2);
    expect(summaries).toHaveLength(markers.length);
    expect(markers[0]?.head.summary).toContain("OPEN: the rest.");
    expect(run.events.some(({ type }) => type === "compaction.failed")).toBe(false);
    await lab.intact(run.id);
  });
});

describe("by hand", () => {
  it("compacts a run that waits for input, which goes on waiting", async () => {
    const run = await lab.run(chatty, "Read the thirty pages.");
    expect(run.status).toMatchObject({ state: "waiting", wait_reason: "input" });
    const outcome = await run.handle.compact();
    expect(outcome).toMatchObject({ run_id: run.id, applied: "live" });
    expect(outcome.after_tokens).toBeLessThan(outcome.before_tokens as number);
    expect(await run.handle.status()).toMatchObject({ state: "waiting", wait_reason: "input" });
    await lab.intact(run.id);
    expect((await run.handle.compact()).applied).toBe("noop");
    await run.handle.send("And now?");
    const status = await until("the answer", async () => {
      const now = await run.handle.status();
      return now.turn > run.status.turn && now.state === "waiting" ? now : undefined;
    });
    expect(status.wait_reason).toBe("input");
    await lab.intact(run.id);
    expect(typesOf(await lab.events(run.id))).toContain("context.compacted");
  });
});
