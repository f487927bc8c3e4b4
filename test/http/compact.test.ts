/** Compaction by hand over HTTP: each answer that the contract has. */
import { afterAll, describe, expect, it } from "vitest";
import { z } from "zod";
import { agent } from "../../src/agents/agent.ts";
import { tool } from "../../src/agents/tool.ts";
import { createSummarizerEffect } from "../../src/compaction/index.ts";
import { scriptedModel, type ScriptedStep } from "../../src/testing/scripted-model.ts";
import { openLab, typesOf, until } from "../engine/harness.ts";
import { createTestDatabase } from "../support/database.ts";
import { ask, openApi, type Answer } from "./api-lab.ts";

const database = await createTestDatabase();
const LONG = "The harbour master wrote down every ship that came in, its cargo and its captain. ".repeat(20);
const look = tool({ name: "look", description: "Looks.", input: z.object({}), effect: "read", execute: () => LONG });
const pay = tool({ name: "pay", description: "Pays.", input: z.object({}), approval: true, execute: () => "paid" });
const looks: ScriptedStep[] = Array.from({ length: 6 }, () => ({ toolCalls: [{ name: "look", input: {} }] }));
const gate = Promise.withResolvers<void>();
const slow = Promise.withResolvers<void>();
const writer = scriptedModel(
  Array.from({ length: 20 }, () => "Ships came in."),
  { name: "scripted:writer" },
);
const slowWriter = scriptedModel([() => slow.promise.then(() => "Ships came in.")], { name: "scripted:slow-writer" });
const emptyWriter = scriptedModel(
  Array.from({ length: 20 }, () => ""),
  { name: "scripted:empty-writer" },
);
const made = (name: string, summarizer: string, interactive = true) =>
  agent({ name, model: `scripted:${name}`, instructions: "Work.", tools: [look, pay], interactive, compaction: { summarizer } });
const steps: Readonly<Record<string, readonly ScriptedStep[]>> = {
  parked: [...looks, "Done.", "More."],
  busy: [...looks, () => gate.promise.then(() => "Done.")],
  ended: [...looks, "Done."],
  short: ["Done."],
  asked: [...looks, { toolCalls: [{ name: "pay", input: {} }] }, "Done."],
  patient: [...looks, "Done."],
  failing: [...looks, "Done."],
};
const lab = await openLab(database.url, {
  agents: [
    made("parked", "quick"),
    made("busy", "quick", false),
    made("ended", "quick", false),
    made("short", "quick", false),
    made("asked", "quick", false),
    made("patient", "slow"),
    made("failing", "empty"),
  ],
  models: [writer, slowWriter, emptyWriter, ...Object.entries(steps).map(([name, own]) => scriptedModel([...own], { name: `scripted:${name}`, by: "turn" }))],
  summarizers: { quick: createSummarizerEffect(writer), slow: createSummarizerEffect(slowWriter), empty: createSummarizerEffect(emptyWriter) },
});
const api = await openApi(database.url);
afterAll(async () => {
  slow.resolve();
  await api[Symbol.asyncDispose]();
  await lab[Symbol.asyncDispose]();
});

const start = async (name: string): Promise<string> => (await ask(api.url, "/v1/runs", { body: { agent: name, input: "begin" } })).body.run_id;
const compact = (id: string, query = ""): Promise<Answer> => ask(api.url, `/v1/runs/${id}/compact${query}`, { method: "POST" });
const status = async (id: string): Promise<Answer["body"]> => (await ask(api.url, `/v1/runs/${id}`)).body;
const rests = (id: string, reason: string): Promise<unknown> => until(reason, async () => (await status(id)).wait_reason === reason);

describe("POST /v1/runs/{run_id}/compact", () => {
  it("answers `live` for a run that awaits input", async () => {
    const id = await start("parked");
    await rests(id, "input");
    expect(await compact(id)).toMatchObject({
      status: 200,
      body: { run_id: id, applied: "live", compaction_id: expect.any(String), before_tokens: expect.any(Number), after_tokens: expect.any(Number), scale: expect.any(String) },
    });
    const [entry] = (await ask(api.url, "/v1/audit?action=run.compact")).body.items;
    expect(entry).toMatchObject({ target: id, actor: "api", detail: { when: "now" } });
  });

  it("answers `marker` for a run that has ended, and `noop` with the reason when nothing can be cut", async () => {
    const id = await start("ended");
    await until("the end", async () => (await status(id)).state === "completed");
    expect(await compact(id)).toMatchObject({ status: 200, body: { applied: "marker" } });
    const short = await start("short");
    await until("the end", async () => (await status(short)).state === "completed");
    expect(await compact(short)).toMatchObject({ status: 200, body: { applied: "noop", reason: expect.stringMatching(/too_few_units|nothing_to_cut/) } });
  });

  it("refuses in the middle of a turn and while a call is open, changes nothing, and takes it for the boundary", async () => {
    const id = await start("busy");
    await until("turn 7", async () => typesOf(await lab.events(id)).filter((type) => type === "model.requested").length === 7);
    const before = await lab.events(id);
    expect(await compact(id)).toMatchObject({ status: 409, body: { code: "RUN_BUSY" } });
    expect(await lab.events(id)).toEqual(before);
    expect(await compact(id, "?when=boundary")).toMatchObject({ status: 202, body: { run_id: id, applied: "pending" } });
    gate.resolve();
    await until("the end", async () => (await status(id)).state === "completed");
    const asked = await start("asked");
    await rests(asked, "approval");
    expect(await compact(asked)).toMatchObject({ status: 409, body: { code: "RUN_BUSY" } });
    const [wait] = (await ask(api.url, `/v1/runs/${asked}/waits`)).body.items;
    await ask(api.url, `/v1/runs/${asked}/approvals/${wait.call_id}`, { body: { decision: "deny" } });
  });

  it("answers 202 with the id when the time is over, and joins the one that is under way", async () => {
    const id = await start("patient");
    await rests(id, "input");
    const first = await until("the summary to have begun", async () => {
      const answer = await compact(id, "?wait_ms=200");
      expect(answer).toMatchObject({ status: 202, body: { applied: "pending" } });
      return answer.body.compaction_id === undefined ? undefined : answer;
    });
    expect((await compact(id, "?wait_ms=200")).body.compaction_id).toBe(first.body.compaction_id);
    slow.resolve();
    expect(await compact(id)).toMatchObject({ status: 200, body: { applied: expect.stringMatching(/live|noop/) } });
    expect(typesOf(await lab.events(id)).filter((type) => type === "context.compacted")).toHaveLength(1);
  });

  it("answers 502 with the compaction's id when the summary could not be made, and the run is as before", async () => {
    const id = await start("failing");
    await rests(id, "input");
    const messages = (await ask(api.url, `/v1/runs/${id}/transcript`)).body.messages;
    const answer = await compact(id);
    expect(answer).toMatchObject({
      status: 502,
      body: { code: "COMPACTION_FAILED", status: 502, details: { run_id: id, compaction_id: expect.any(String), reason: expect.any(String) } },
    });
    expect(answer.headers.get("content-type")).toBe("application/problem+json");
    expect((await ask(api.url, `/v1/runs/${id}/transcript`)).body.messages).toEqual(messages);
  });

  it("refuses where nobody knows the agent, what is no id, and what is no such way", async () => {
    const id = await start("nobody");
    expect(await compact(id)).toMatchObject({ status: 409, body: { code: "AGENT_GONE" } });
    expect((await compact("abc")).status).toBe(400);
    expect((await compact(id, "?when=later")).body).toMatchObject({ status: 400, issues: [{ path: "when" }] });
    expect((await compact(id, "?wait_ms=120001")).status).toBe(400);
    expect((await compact("01900000-0000-7000-8000-000000000000")).body).toMatchObject({ status: 404, code: "RUN_MISSING" });
  });
});
