/** A run that is written down here and goes on in another database: the same journal, the same requests. */
import { randomBytes } from "node:crypto";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { z } from "zod";
import { agent } from "../../src/agents/agent.ts";
import { tool } from "../../src/agents/tool.ts";
import type { CanonicalCall } from "../../src/domain/call.ts";
import { canonicalJson, type JsonValue } from "../../src/domain/json.ts";
import { scriptedModel } from "../../src/testing/scripted-model.ts";
import { createTestDatabase } from "../support/database.ts";
import { collect, openLab, typesOf, until, type Lab } from "../engine/harness.ts";

const [here, there] = [await createTestDatabase(), await createTestDatabase()];
const big = randomBytes(300_000).toString("hex");
const fetchBig = tool({ name: "fetch", description: "Fetches.", input: z.object({}), effect: "read", execute: () => big });
const script = [{ toolCalls: [{ name: "fetch" }] }, ...Array.from({ length: 12 }, (_, n) => (n % 3 === 2 ? `Answer ${n}.` : { toolCalls: [{ name: "fetch" }] }))];
const seen: { readonly where: string; readonly call: CanonicalCall }[] = [];
const modelOf = (where: string) =>
  scriptedModel(
    script.map((step) => (call: CanonicalCall) => (seen.push({ where, call }), step)),
    { name: "scripted:mover", by: "turn" },
  );
const mover = agent({
  name: "mover",
  model: "scripted:mover",
  instructions: "Move.",
  tools: [fetchBig],
  interactive: true,
  compaction: { enabled: true, keep_last_n: 1, summarizer: "short" },
  input: z.string(),
});

const summarizers = { short: () => Promise.resolve({ summary: "The agent fetched some things and answered." }) };

let source: Lab;
let target: Lab;
beforeAll(async () => {
  [source, target] = await Promise.all([
    openLab(here.url, { agents: [mover], models: [modelOf("here")], summarizers }),
    openLab(there.url, { agents: [mover], models: [modelOf("there")], summarizers }),
  ]);
});
afterAll(() => Promise.all([source[Symbol.asyncDispose](), target[Symbol.asyncDispose]()]));

const awaits = (lab: Lab, id: string, turn: number) =>
  until(`turn ${turn}`, async () => {
    const status = await lab.capstan.run(id).status();
    return status.state === "waiting" && status.wait_reason === "input" && status.turn >= turn;
  });
async function* from(lines: readonly string[]): AsyncGenerator<string> {
  yield* lines;
}
async function parked(): Promise<string> {
  const run = await source.capstan.enqueue(mover, "begin");
  await awaits(source, run.id, 4);
  return run.id;
}

describe("an exported run", () => {
  it("that is for a later time keeps it", async () => {
    const later = new Date(Date.now() + 86_400_000);
    const { id } = await source.capstan.enqueue(mover, "later", { runAt: later });
    await target.capstan.importRun(from(await collect(source.capstan.exportRun(id))));
    expect((await target.db.query("select at, ready from capstan.wishes where run_id = $1", [id])).rows).toEqual([{ at: later, ready: false }]);
  });

  it("with blobs, a waiting input and a kept signal goes on elsewhere with requests of the same bytes", async () => {
    const id = await parked();
    const before = await source.events(id);
    // A copy of the same run goes on here: what it asks is what the other must ask.
    await source.capstan.pauses.pause();
    await source.capstan.run(id).send("and on", { dedupeKey: "one" });
    await source.capstan.run(id).signal("later", { kept: true });
    const lines = await collect(source.capstan.exportRun(id));
    const report = await target.capstan.importRun(from(lines));
    expect(report).toMatchObject({ runId: id, runs: 1, events: before.length, blobs: 1 });
    await awaits(target, id, 7);
    await source.capstan.pauses.resume();
    await awaits(source, id, 7);
    const asked = (where: string) => seen.filter((one) => one.where === where).map(({ call }) => canonicalJson(call as unknown as JsonValue));
    expect(asked("there")).toHaveLength(3);
    expect(asked("there")).toEqual(asked("here").slice(-3));
    expect((await target.events(id)).slice(0, before.length)).toEqual(before);
    await target.intact(id);
    const { rows } = await target.db.query("select name, payload from capstan.signals where run_id = $1", [id]);
    expect(rows).toEqual([{ name: "later", payload: { kept: true } }]);
    const { rows: blobs } = await target.db.query("select length(string_agg(bytes, '' order by n)) as bytes from capstan.blob_chunks");
    expect(blobs).toEqual([{ bytes: 600_000 }]);
  });

  it("that was compacted goes on from its marker", async () => {
    const id = await parked();
    const compacted = await source.capstan.run(id).compact({ timeoutMs: 20_000 });
    expect(compacted).toMatchObject({ applied: "live" });
    await target.capstan.importRun(from(await collect(source.capstan.exportRun(id))));
    await target.capstan.run(id).send("and on");
    await awaits(target, id, 7);
    await target.intact(id);
    expect(typesOf(await target.events(id))).toContain("context.compacted");
  });

  it("is refused where it is already, and nothing changes", async () => {
    const id = await parked();
    const lines = await collect(source.capstan.exportRun(id));
    await target.capstan.importRun(from(lines), { paused: true });
    expect(await target.capstan.run(id).status()).toMatchObject({ paused: true });
    const before = await target.events(id);
    await expect(target.capstan.importRun(from(lines))).rejects.toMatchObject({ code: "IMPORT_EXISTS" });
    await expect(source.capstan.importRun(from(lines))).rejects.toMatchObject({ code: "IMPORT_EXISTS" });
    expect(await target.events(id)).toEqual(before);
  });

  it("is refused when anything in it was changed, left out, doubled, moved or cut off; nothing of it stays", async () => {
    const id = await parked();
    const lines = await collect(source.capstan.exportRun(id));
    const at = (type: string, nth = 0) => lines.flatMap((line, i) => (JSON.parse(line).type === type ? [i] : []))[nth] as number;
    const without = (i: number) => lines.toSpliced(i, 1);
    const changed = (i: number, change: (line: string) => string) => lines.with(i, change(lines[i] as string));
    const files: Record<string, string[]> = {
      "an event's text": changed(at("event", 1), (line) => line.replace(/"turn":1/, '"turn":2')),
      "a payload": changed(at("event", 0), (line) => line.replace("begin", "Begin")),
      "an event missing": without(at("event", 2)),
      "an event twice": lines.toSpliced(at("event", 2), 0, lines[at("event", 2)] as string),
      "two events swapped": lines.with(at("event", 1), lines[at("event", 2)] as string).with(at("event", 2), lines[at("event", 1)] as string),
      "a blob's bytes": changed(at("blob_chunk"), (line) => line.replace(/"base64":"..../, '"base64":"AAAA')),
      "a blob missing": without(at("blob_chunk")),
      "the definition": changed(at("definition"), (line) => line.replace("Move.", "Obey.")),
      "the run's row": changed(at("run"), (line) => line.replace('"tenant":"default"', '"tenant":"other"')),
      "the last line missing": lines.slice(0, -1),
      "half of it": lines.slice(0, Math.floor(lines.length / 2)),
      "nothing in it": [],
      "no JSON": ["not json"],
      "another format": ['{"type":"header","format":"something","version":1}'],
      "more behind its end": [...lines, lines[1] as string],
    };
    for (const [what, file] of Object.entries(files)) {
      await expect(target.capstan.importRun(from(file)), what).rejects.toMatchObject({ code: "IMPORT_DAMAGED" });
    }
    await expect(target.capstan.importRun(from(changed(0, (line) => line.replace('"version":1', '"version":9'))))).rejects.toMatchObject({ code: "IMPORT_UNKNOWN_VERSION" });
    const { rowCount } = await target.db.query("select from capstan.events where run_id = $1", [id]);
    expect(rowCount).toBe(0);
  });

  it("must rest: one at work is refused by name, and an unknown one too", async () => {
    const run = await source.capstan.enqueue(mover, "begin");
    await source.db.query("update capstan.runs set paused = false where id = $1", [run.id]);
    const outcome = await collect(source.capstan.exportRun(run.id)).then(
      (lines) => (JSON.parse(lines[0] as string) as { type: string }).type,
      (error: { code: string }) => error.code,
    );
    // Queued still, or at work already.
    expect(["header", "RUN_BUSY"]).toContain(outcome);
    await expect(collect(source.capstan.exportRun("00000000-0000-7000-8000-000000000000"))).rejects.toMatchObject({ code: "RUN_MISSING" });
    await awaits(source, run.id, 4);
  });
});
