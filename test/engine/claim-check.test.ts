/** Claim check: results of listed tools stay out of the transcript, whole in a blob of the tenant. */
import { expect, it } from "vitest";
import { readBlobTool } from "../../src/agents/engine-tools.ts";
import type { AgentSpec } from "../../src/agents/agent.ts";
import type { JsonObject } from "../../src/domain/json.ts";
import { Cases, calls, doing } from "../bad-input/cases.ts";
import { createTestDatabase } from "../support/database.ts";
import { payloads, sha256Hex, type Settled } from "./harness.ts";

const database = await createTestDatabase();
const cases = new Cases();

const claimCheck = { tools: ["fetch"], overBytes: 1_000, previewBytes: 10 };
const fetching = (name: string, result: unknown, spec: Partial<AgentSpec> = {}, more: readonly ReturnType<typeof readBlobTool>[] = []) =>
  cases.add(name, [calls("fetch"), "Read."], { tools: [doing("fetch", () => result), ...more], claimCheck, ...spec }, { by: "turn" });

const emoji = `12345678${"😀".repeat(500)}`;
const plain = fetching("plain", emoji);
const reading = fetching("reading", emoji, {}, [readBlobTool()]);
const ungranted = fetching("ungranted", emoji, { grants: ["model:*", "tool:fetch"] }, [readBlobTool()]);
const json = fetching("json", { rows: Array.from({ length: 200 }, (_, i) => `row ${i}`) });
const atLimit = fetching("at-limit", "x".repeat(1_000));
const overLimit = fetching("over-limit", "x".repeat(1_001), { claimCheck: { ...claimCheck, previewBytes: 0 } });
const defaults = fetching("defaults", "é".repeat(2_049), { claimCheck: { tools: ["fetch"] } });
const other = cases.add("other", [calls("list"), "Read."], { tools: [doing("list", () => "y".repeat(50_000)), doing("fetch", () => "")], claimCheck });
const tiny = fetching("tiny", "\u0001".repeat(3_000), { limits: { inlinePayloadBytes: 4_096 }, claimCheck: { tools: ["fetch"], overBytes: 2_500, previewBytes: 2_500 } });
const capped = cases.add("capped", [calls("fetch"), "Read."], { tools: [doing("fetch", () => emoji, { maxResultBytes: 1_024 })] });
const cappedReading = cases.add("capped-reading", [calls("fetch"), "Read."], { tools: [doing("fetch", () => emoji, { maxResultBytes: 1_024 }), readBlobTool()] });

const twice = cases.later(fetching("twice", "the same text for everybody ".repeat(100)).agent);

const turns = 12;
const growing = (name: string, spec: Partial<AgentSpec>) =>
  cases.later(
    cases.add(name, [...Array.from({ length: turns }, () => calls("fetch")), "Done."], { tools: [doing("fetch", () => "z".repeat(2_000))], warnTranscriptBytes: 4_000, ...spec })
      .agent,
  );
const warnings: { readonly run: unknown; readonly turn: unknown }[] = [];
const onWarn = (_: string, detail: JsonObject): void => void warnings.push({ run: detail["run_id"], turn: detail["turn"] });
const grows = growing("grows", { onWarn });
const growsChecked = growing("grows-checked", { onWarn, claimCheck });
cases.openOn(database.url);

type Card = { sha256: string; size_bytes: number; media_type: string; preview: string; note: string };
const result = (run: Settled) => payloads(run.events, "tool.completed")[0] as { output: Card & string; blob?: JsonObject };
async function blob(digest: string, tenant = "default"): Promise<string | undefined> {
  const { rows } = await cases.lab.db.query<{ text: string }>(
    "select convert_from(string_agg(bytes, ''::bytea order by n), 'UTF8') as text from capstan.blob_chunks where tenant = $1 and sha256 = $2",
    [tenant, digest],
  );
  return rows[0]?.text;
}

it("shows digest, size, media type and a preview cut between code points; the whole is in the blob", async () => {
  const run = await cases.outcome(plain.agent);
  const { output, blob: stored } = result(run);
  // Ten bytes would end in the middle of the first emoji.
  expect(output).toEqual({
    sha256: sha256Hex(emoji),
    size_bytes: 2_008,
    media_type: "text/plain",
    preview: "12345678",
    note: "The result is withheld, except for the first 8 bytes. It is kept for people to look at.",
  });
  expect(stored).toEqual({ sha256: sha256Hex(emoji), size_bytes: 2_008, media_type: "text/plain" });
  expect(await blob(sha256Hex(emoji))).toBe(emoji);
  // What the model saw, and what is counted.
  expect(plain.model.calls[1]?.messages.at(-1)?.content[0]).toMatchObject({ type: "tool_result", output });
  const { rows } = await cases.lab.db.query<{ transcript_bytes: string }>("select transcript_bytes::text from capstan.runs where id = $1", [run.id]);
  expect(Number(rows[0]?.transcript_bytes)).toBeLessThan(1_000);
  await cases.lab.intact(run.id);
});

it("names read_blob only to an agent that has it and may use it", async () => {
  expect(result(await cases.outcome(reading.agent)).output.note).toContain("read_blob");
  expect(result(await cases.outcome(ungranted.agent)).output.note).not.toContain("read_blob");
  expect(result(await cases.outcome(cappedReading.agent)).output).toContain("read_blob");
  const excerpt = result(await cases.outcome(capped.agent)).output;
  expect(excerpt).toContain("characters left out");
  expect(excerpt).not.toContain("read_blob");
});

it("takes JSON in its canonical form", async () => {
  const run = await cases.outcome(json.agent);
  expect(result(run).output).toMatchObject({ media_type: "application/json", preview: '{"rows":["' });
  expect(JSON.parse((await blob(result(run).output.sha256)) ?? "")).toEqual({ rows: Array.from({ length: 200 }, (_, i) => `row ${i}`) });
});

it("leaves alone what is not over the size, and tools that are not listed", async () => {
  expect(result(await cases.outcome(atLimit.agent))).toMatchObject({ output: "x".repeat(1_000) });
  expect(result(await cases.outcome(overLimit.agent)).output).toMatchObject({ size_bytes: 1_001, preview: "" });
  expect(result(await cases.outcome(other.agent)).output).toBe("y".repeat(50_000));
});

it("has defaults: over 4,096 bytes, a preview of 512", async () => {
  expect(result(await cases.outcome(defaults.agent)).output).toMatchObject({ size_bytes: 4_098, preview: "é".repeat(256) });
});

it("fits the preview into the smallest event, whatever it holds", async () => {
  const run = await cases.outcome(tiny.agent);
  expect(run.status.state).toBe("completed");
  const { preview } = result(run).output;
  expect(preview.length).toBeGreaterThan(100);
  expect(preview.length).toBeLessThan(2_500);
  const { rows } = await cases.lab.db.query<{ size: number }>("select max(size) as size from capstan.events where run_id = $1", [run.id]);
  expect(rows[0]?.size).toBeLessThanOrEqual(4_096);
});

it("stores equal contents of a tenant once, and another tenant's apart", async () => {
  const [a, b, c] = [await cases.lab.run(twice, "go"), await cases.lab.run(twice, "go"), await cases.lab.run(twice, "go", { tenant: "rival" })];
  const { sha256 } = result(a).output;
  expect([b, c].map((run) => result(run).output.sha256)).toEqual([sha256, sha256]);
  const count = async (sql: string) => (await cases.lab.db.query<{ tenant: string; n: number }>(sql, [sha256])).rows;
  const once = [
    { tenant: "default", n: 1 },
    { tenant: "rival", n: 1 },
  ];
  expect(await count("select tenant, count(*)::int as n from capstan.blobs where sha256 = $1 group by 1 order by 1")).toEqual(once);
  expect(await count("select tenant, count(*)::int as n from capstan.blob_chunks where sha256 = $1 group by 1 order by 1")).toEqual(once);
  expect(await count("select tenant, count(*)::int as n from capstan.blob_refs where sha256 = $1 group by 1 order by 1")).toEqual([
    { tenant: "default", n: 2 },
    { tenant: "rival", n: 1 },
  ]);
});

it("T5 the growth warning still fires with claim check on, later: a withheld result counts with its preview", async () => {
  const [whole, checked] = [await cases.lab.run(grows, "go"), await cases.lab.run(growsChecked, "go")];
  const turnsOf = (run: Settled) => warnings.filter((warning) => warning.run === run.id).map(({ turn }) => Number(turn));
  expect(turnsOf(whole)).toEqual([2]);
  expect(turnsOf(checked)).toHaveLength(1);
  expect(turnsOf(checked)[0]).toBeGreaterThan(5);
  const size = async (run: Settled) => Number((await cases.lab.db.query<{ n: string }>("select transcript_bytes::text as n from capstan.runs where id = $1", [run.id])).rows[0]?.n);
  expect(await size(checked)).toBeLessThan((await size(whole)) / 3);
});
