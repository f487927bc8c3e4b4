/** `compact()` in every state that a run can be in, and threads that are carried by a rolling summary. */
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { z } from "zod";
import { agent } from "../../src/agents/agent.ts";
import { tool } from "../../src/agents/tool.ts";
import type { CanonicalCall } from "../../src/domain/call.ts";
import { createSummarizerEffect } from "../../src/compaction/index.ts";
import type { Model, ModelCallContext } from "../../src/engine/model-port.ts";
import { scriptedModel, type ScriptedStep } from "../../src/testing/scripted-model.ts";
import { createTestDatabase } from "../support/database.ts";
import { openLab, payloads, typesOf, until, type AnyAgent, type Lab } from "./harness.ts";

const database = await createTestDatabase();
const models: Model[] = [];
const agents: AnyAgent[] = [];
const LONG = "The harbour master wrote down every ship that came in, its cargo and its captain. ".repeat(20);
const requests = new Map<string, CanonicalCall[]>();

function made(name: string, steps: readonly ScriptedStep[], spec: Partial<Parameters<typeof agent>[0]> = {}): AnyAgent {
  const noted = steps.map((step) => async (call: CanonicalCall, context: ModelCallContext) => {
    requests.set(name, [...(requests.get(name) ?? []), call]);
    return typeof step === "function" ? await step(call, context) : step;
  });
  models.push(scriptedModel(noted, { name: `scripted:${name}`, by: name === "autonomous" ? "call" : "turn" }));
  const own = agent({ name, model: `scripted:${name}`, instructions: "Work.", ...spec }) as AnyAgent;
  agents.push(own);
  return own;
}

const look = tool({ name: "look", description: "Looks.", input: z.object({}), effect: "read", execute: () => LONG });
const pay = tool({ name: "pay", description: "Pays.", input: z.object({}), approval: true, execute: () => "paid" });
const looks = (n: number) => Array.from({ length: n }, () => ({ toolCalls: [{ name: "look" }] }));
const answers = Array.from({ length: 40 }, (_, n) => `${LONG} Answer ${n}.`);

let open: () => void = () => {};
const gate = new Promise<void>((resolve) => (open = resolve));
const parked = made("parked", [...looks(6), "Done.", "More."], { interactive: true, tools: [look], compaction: { summarizer: "rolling" } });
const busy = made("busy", [...looks(6), () => gate.then(() => "Done.")], { tools: [look], compaction: { summarizer: "rolling" } });
const ended = made("ended", [...looks(6), "Done.", ...answers], { tools: [look], compaction: { summarizer: "rolling" } });
const short = made("short", ["Done."]);
const asked = made("asked", [...looks(6), { toolCalls: [{ name: "pay" }] }, "Done."], { tools: [look, pay] });
made("thread", answers);
const autonomous = made("autonomous", [...looks(12), "Done."], { tools: [look], compaction: { enabled: true, at_tokens: 2_000, summarizer: "rolling", keep_last_n: 1 } });
// One registered effect for the agent's loop and for the conversation's rolling summary.
const writer = scriptedModel(
  Array.from({ length: 60 }, (_, n) => `Summary ${n}: ships came in.`),
  { name: "scripted:writer" },
);
models.push(writer);
const rolling = createSummarizerEffect(writer);

let lab: Lab;
beforeAll(async () => {
  lab = await openLab(database.url, { agents, models, summarizers: { rolling } });
});
afterAll(() => lab[Symbol.asyncDispose]());

const start = (own: AnyAgent) => lab.capstan.enqueue(own.name, "begin");
const rests = (id: string, reason: string) => until(reason, async () => (await lab.capstan.run(id).status()).wait_reason === reason);

describe("compact()", () => {
  it("of a run that awaits input is `live`: its next request begins with the summary", async () => {
    const run = await start(parked);
    await rests(run.id, "input");
    expect(await run.compact()).toMatchObject({ applied: "live", before_tokens: expect.any(Number), after_tokens: expect.any(Number) });
    await run.send("go on");
    await until("the answer", async () => (await run.status()).turn > 7 && (await run.status()).wait_reason === "input");
    await lab.intact(run.id);
  });

  it("in the middle of a turn is refused and nothing is changed; at the boundary it is done", async () => {
    const run = await start(busy);
    await until("turn 7", async () => typesOf(await lab.events(run.id)).filter((type) => type === "model.requested").length === 7);
    const before = await lab.events(run.id);
    await expect(run.compact()).rejects.toMatchObject({ code: "RUN_BUSY" });
    expect(await lab.events(run.id)).toEqual(before);
    expect(await run.compact({ when: "boundary" })).toMatchObject({ applied: "pending" });
    open();
    expect(await run.result({ timeoutMs: 20_000 })).toBe("Done.");
  });

  it("of a run that has ended is a `marker`, with which its continuation begins; its end and its result stand", async () => {
    const thread = await lab.capstan.conversations.create({ agent: ended.name });
    const first = await thread.send("begin");
    expect(await first.result({ timeoutMs: 20_000 })).toBe("Done.");
    expect(await first.compact()).toMatchObject({ applied: "marker" });
    expect(await first.status()).toMatchObject({ state: "completed", output: "Done." });
    expect(await first.result({ timeoutMs: 5_000 })).toBe("Done.");
    expect(typesOf(await lab.events(first.id)).slice(-3)).toEqual(["run.completed", "compaction.requested", "context.compacted"]);
    await lab.intact(first.id);
    const calls = requests.get("ended")?.length ?? 0;
    const second = await thread.send("and then?");
    await second.result({ timeoutMs: 20_000 });
    const request = requests.get("ended")?.[calls];
    expect(request?.messages.length).toBeLessThan(12);
    expect(JSON.stringify(request?.messages[0])).toContain("begin");
    expect(request?.messages.at(-1)).toMatchObject({ role: "user", content: [{ type: "text", text: "and then?" }] });
    await lab.intact(second.id);
    expect(await first.compact()).toMatchObject({ applied: "noop" });
  });

  it("of a run that is too short, ended or not, is a `noop` with its reason", async () => {
    const run = await start(short);
    await run.result({ timeoutMs: 20_000 });
    expect(await run.compact()).toMatchObject({ applied: "noop", reason: expect.stringMatching(/too_few_units|nothing_to_cut/) });
  });

  it("of a run that awaits an approval is refused: a call is open", async () => {
    const run = await start(asked);
    await rests(run.id, "approval");
    await expect(run.compact()).rejects.toMatchObject({ code: "RUN_BUSY" });
    const [wait] = await run.waits();
    await lab.capstan.waits.approve(wait?.id ?? "");
    expect(await run.result({ timeoutMs: 20_000 })).toBe("Done.");
  });
});

describe("one registered summarizer", () => {
  it("serves an agent's own compaction and a conversation's rolling summary under its budget (T24)", async () => {
    const run = await start(autonomous);
    await run.result({ timeoutMs: 30_000 });
    const ofAgent = payloads(await lab.events(run.id), "context.compacted");
    expect(ofAgent.length).toBeGreaterThan(0);
    expect(ofAgent[0]).toMatchObject({ summarizer: "rolling" });
    const thread = await lab.capstan.conversations.create({ agent: "thread", budget: { max_tokens: 3_000, summarizer: "rolling" } });
    let compacted = 0;
    for (let n = 0; n < 16; n++) {
      const next = await thread.send(`Message ${n}`);
      await next.result({ timeoutMs: 30_000 });
      await lab.intact(next.id);
      const events = await lab.events(next.id);
      compacted += typesOf(events).filter((type) => type === "context.compacted").length;
    }
    const { messages } = await thread.transcript();
    expect(compacted).toBeGreaterThan(0);
    expect(JSON.stringify(messages[0])).toContain("ships came in");
    expect(messages.length).toBeLessThan(20);
  });
});
