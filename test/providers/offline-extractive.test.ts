import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { extractSummary } from "../../src/domain/compaction/extract.ts";
import { wrapMaterial } from "../../src/domain/compaction/material.ts";
import { extractiveAnswer, offlineExtractive } from "../../src/providers/offline/extractive.ts";
import { offlineModels } from "../../src/providers/offline/index.ts";
import { cpuMs } from "../compaction/support.ts";
import { rawText } from "../domain/arbitrary-json.ts";

const record = [
  "user: Migrate the billing service. Never restart the database during the day. The budget is 500 USD.",
  "assistant: I will look around first.",
  'assistant [tool_use read_file]: {"path":"/srv/billing/config.yaml"}',
  `tool [tool_result]: port: 80\n${"# filler without anything of note\n".repeat(200)}ECONNREFUSED when connecting to db-7`,
  "assistant: The port is 80.",
  "assistant: Decided to use pg_dump instead of replication, as invoice INV-20311 must stay readable.",
  "assistant: The port is now 9090. The migration of table invoices is completed.",
  "assistant: Waiting for approval of order A-4711 by the owner.",
].join("\n");

describe("offline:extractive", () => {
  it("keeps goals, values, errors, decisions, what is done and what is open, each under its heading", () => {
    const text = extractSummary({ record, maxBytes: 2_000 });
    const [goals, rest] = text.split("FACTS:") as [string, string];
    expect(goals).toContain("Never restart the database");
    expect(rest.split("DONE:")[0]).toMatch(/ECONNREFUSED when connecting to db-7/);
    expect(text).toContain("INV-20311");
    expect(text.split("DONE:")[1]?.split("OPEN:")[0]).toContain("migration of table invoices is completed");
    expect(text.split("OPEN:")[1]).toContain("approval of order A-4711");
    expect(text).not.toContain("filler");
    expect(Buffer.byteLength(text)).toBeLessThanOrEqual(2_000);
  });

  it("lets a newer statement replace an older one, also of an earlier summary", () => {
    const text = extractSummary({ record, previousSummary: "FACTS:\nThe port is 79.\nThe host is db-7.\nOPEN:\nask about invoice 12", maxBytes: 2_000 });
    expect(text).toContain("The port is now 9090");
    expect(text).not.toMatch(/port is (79|80)\b/);
    expect(text).toContain("The host is db-7.");
    expect(text.split("OPEN:")[1]).toContain("ask about invoice 12");
  });

  it("two constraints are no versions of one", () => {
    const text = extractSummary({ record: "user: Constraint: never delete rows.\nuser: Constraint: at most 5 retries.", maxBytes: 1_000 });
    expect(text).toContain("never delete rows");
    expect(text).toContain("at most 5 retries");
  });

  it("stays as long over many compactions", () => {
    let summary = "";
    const sizes = Array.from({ length: 8 }, (_, round) => {
      summary = extractSummary({ record: `${record}\nassistant: Round ${round} is completed with id R-${1000 + round}.`, previousSummary: summary, maxBytes: 1_200 });
      return Buffer.byteLength(summary);
    });
    expect(Math.max(...sizes)).toBeLessThanOrEqual(1_200);
    expect(summary).toContain("R-1007");
    expect(summary.match(/GOALS AND CONSTRAINTS:/g)).toHaveLength(1);
  });

  it("is known by its name, counts in words, and answers within the size that it is told", async () => {
    const model = offlineModels()("offline:extractive");
    const call = {
      renderVersion: 1,
      model: "offline:extractive",
      system: "s",
      tools: [],
      messages: [
        { role: "user" as const, content: [{ type: "text" as const, text: wrapMaterial({ origin: "o", record, targetTokens: 100, obligations: ["approval of deploy #4"] }) }] },
      ],
      settings: { maxOutputTokens: 1_024 },
      breakpoints: [],
    };
    const context = { signal: new AbortController().signal, tenant: "t", runId: "r", turn: 1 };
    const outcome = await model.call(call, context);
    expect(outcome).toEqual(await offlineExtractive().call(call, context));
    expect(outcome).toMatchObject({ kind: "responded", finish: { reason: "stop" }, usage: { scale: "offline" } });
    const [part] = extractiveAnswer(call);
    expect(part?.type === "text" && Buffer.byteLength(part.text)).toBeLessThanOrEqual(400);
    expect(part).toMatchObject({ text: expect.stringContaining("approval of deploy #4") });
  });

  it("says nothing where there is nothing, and picks from a plain conversation", () => {
    expect(extractiveAnswer({ messages: [], settings: {} })).toEqual([]);
    expect(extractiveAnswer({ messages: [{ role: "user", content: [{ type: "text", text: "The code is 4711." }] }], settings: {} })).toEqual([
      { type: "text", text: "GOALS AND CONSTRAINTS:\nThe code is 4711." },
    ]);
  });

  it("is bounded and only made of what it read, for any text", () => {
    fc.assert(
      fc.property(fc.array(fc.oneof(rawText, fc.constantFrom("user: a 1", "must", "\n", "x: y")), { maxLength: 30 }), fc.integer({ min: 0, max: 400 }), (texts, maxBytes) => {
        const text = texts.join("").toWellFormed();
        const extract = extractSummary({ record: text, maxBytes });
        expect(Buffer.byteLength(extract)).toBeLessThanOrEqual(Math.max(0, maxBytes));
        expect(extract.isWellFormed()).toBe(true);
      }),
      { numRuns: 300 },
    );
  });

  it("reads four megabytes of anything in seconds", () => {
    for (const unit of ["a ", "1,", '{"a":1},', "x: y. ", "done ", "-".repeat(300), "must\n"]) {
      expect(cpuMs(() => extractSummary({ record: unit.repeat(Math.ceil(4_000_000 / unit.length)), maxBytes: 4_000 }))).toBeLessThan(20_000);
    }
  });
});
