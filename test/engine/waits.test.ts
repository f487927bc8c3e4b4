/** Calls that wait for people, signals, time and work done elsewhere: the run holds nothing meanwhile, and each answer counts once. */
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { z } from "zod";
import { agent } from "../../src/agents/agent.ts";
import { ask, later, sleep, waitFor } from "../../src/agents/deferred.ts";
import { askHumanTool, waitTool } from "../../src/agents/engine-tools.ts";
import { tool } from "../../src/agents/tool.ts";
import type { RunHandle } from "../../src/client/handle.ts";
import type { WaitView } from "../../src/client/waits.ts";
import type { Model } from "../../src/engine/model-port.ts";
import { scriptedModel, type ScriptedStep } from "../../src/testing/scripted-model.ts";
import { createTestDatabase } from "../support/database.ts";
import { openLab, payloads, typesOf, until, type AnyAgent, type Lab } from "./harness.ts";

const database = await createTestDatabase();

const models: Model[] = [];
const agents: AnyAgent[] = [];
const executed: { readonly tool: string; readonly input: unknown }[] = [];
const tokens: string[] = [];

function made(name: string, steps: readonly ScriptedStep[], spec: Partial<Parameters<typeof agent>[0]> = {}): AnyAgent {
  models.push(scriptedModel(steps, { name: `scripted:${name}`, by: "turn" }));
  const own = agent({ name, model: `scripted:${name}`, instructions: "Work.", ...spec }) as AnyAgent;
  agents.push(own);
  return own;
}

const input = z.object({ amount: z.number() });
const pay = (name: string, approval: Parameters<typeof tool<typeof input>>[0]["approval"]) =>
  tool({
    name,
    description: "Pays.",
    input,
    ...(approval === undefined ? {} : { approval }),
    execute: (given) => (executed.push({ tool: name, input: given }), { paid: given.amount }),
  });
const call = (name: string, args: object = {}) => ({ toolCalls: [{ name, input: args as never }] });
const free = tool({ name: "free", description: "Looks.", input: z.object({}), effect: "read", execute: () => "seen" });

const approved = made("approved", [call("pay_approved", { amount: 5 }), "Paid."], { tools: [pay("pay_approved", true)] });
const edited = made("edited", [call("pay_edited", { amount: 5 }), "Paid."], { tools: [pay("pay_edited", true)] });
const denied = made("denied", [call("pay_denied", { amount: 5 }), "Not paid."], { tools: [pay("pay_denied", true)] });
const twice = made("twice", [call("pay_twice", { amount: 5 }), "Done."], { tools: [pay("pay_twice", true)] });
const mixed = made("mixed", [{ toolCalls: [{ name: "pay_mixed", input: { amount: 1 } }, { name: "free" }, { name: "pay_mixed", input: { amount: 100 } }] }, "Done."], {
  tools: [pay("pay_mixed", { when: ({ amount }) => amount > 10 }), free],
});
const thrower = made("thrower", [call("pay_thrower", { amount: 5 }), "Done."], {
  tools: [
    pay("pay_thrower", {
      when: () => {
        throw new Error("no idea");
      },
    }),
  ],
});
const expiring = made("expiring", [call("pay_expiring", { amount: 5 }), "Expired."], { tools: [pay("pay_expiring", { expiresMs: 300 })] });
const lenient = made("lenient", [call("pay_lenient", { amount: 5 }), "Paid."], { tools: [pay("pay_lenient", { expiresMs: 300, onExpiry: "approve" })] });
const invalid = made("invalid", [call("pay_invalid", { amount: "many" }), "Done."], { tools: [pay("pay_invalid", true)] });
const listed = made("listed", [call("free"), "Done."], { tools: [free], approvals: { tools: ["free"] } });

const asking = made("asking", [call("ask_human", { question: "Which colour?", options: ["red", "blue"] }), (request) => lastOutput(request)], { tools: [askHumanTool()] });
const typed = made("typed", [call("ask_typed"), (request) => lastOutput(request)], {
  tools: [tool({ name: "ask_typed", description: "Asks.", input: z.object({}), execute: () => ask("How many?", { schema: z.object({ n: z.number() }) }) })],
});
const declined = made("declined", [call("ask_human", { question: "Anyone?" }), (request) => lastOutput(request)], { tools: [askHumanTool()] });
const signalled = made("signalled", [call("wait", { signal: "go" }), (request) => lastOutput(request)], { tools: [waitTool()] });
const early = made("early", [call("free"), call("wait", { signal: "go" }), (request) => lastOutput(request)], { tools: [free, waitTool()] });
const timed = made("timed", [call("wait", { signal: "never", seconds: 0.2 }), (request) => lastOutput(request)], { tools: [waitTool()] });
const schemed = made("schemed", [call("wait_schema"), (request) => lastOutput(request)], {
  tools: [tool({ name: "wait_schema", description: "Waits.", input: z.object({}), execute: () => waitFor("typed", { schema: z.object({ ok: z.boolean() }) }) })],
});
const sleeping = made("sleeping", [call("nap"), "Awake."], { tools: [tool({ name: "nap", description: "Sleeps.", input: z.object({}), execute: () => sleep(200) })] });
const completed = made("completed", [call("order"), (request) => lastOutput(request)], {
  tools: [tool({ name: "order", description: "Orders.", input: z.object({}), execute: (_, context) => (tokens.push(context.completionToken), later()) })],
});
const tooSoon = made("too-soon", [call("order_soon"), (request) => lastOutput(request)], {
  tools: [
    tool({
      name: "order_soon",
      description: "Orders.",
      input: z.object({}),
      async execute(_, context) {
        // The other side is quicker than this tool.
        await lab.capstan.waits.complete(context.completionToken, { done: "already" });
        return later();
      },
    }),
  ],
});

const thenSleeps = made("then-sleeps", [call("approved_nap"), "Awake."], {
  tools: [tool({ name: "approved_nap", description: "Sleeps.", input: z.object({}), approval: true, execute: () => sleep(200) })],
});
const thenWaits = made("then-waits", [call("approved_order"), (request) => lastOutput(request)], {
  tools: [
    tool({
      name: "approved_order",
      description: "Orders.",
      input: z.object({}),
      approval: true,
      execute: (_, context) => (executed.push({ tool: "approved_order", input: context.completionToken }), later()),
    }),
  ],
});
const allListed = made("all-listed", [call("wait", { signal: "go" }), (request) => lastOutput(request)], { tools: [waitTool()], approvals: { tools: ["*"] } });

function lastOutput(request: { readonly messages: readonly { readonly role: string; readonly content: unknown }[] }): string {
  const last = request.messages.at(-1)?.content as { output: unknown }[];
  return JSON.stringify(last.map(({ output }) => output));
}

let lab: Lab;
beforeAll(async () => {
  lab = await openLab(database.url, { agents, models });
});
afterAll(() => lab[Symbol.asyncDispose]());

const start = (own: AnyAgent) => lab.capstan.enqueue(own.name, "begin");
/** What the run waits for, once it waits and holds nothing. */
async function waiting(run: RunHandle, reason: string): Promise<WaitView> {
  await until(reason, async () => {
    const status = await run.status();
    return status.state === "waiting" && status.wait_reason === reason;
  });
  const { rows } = await lab.db.query("select worker_id from capstan.runs where id = $1", [run.id]);
  expect(rows).toEqual([{ worker_id: null }]);
  const [wait] = await run.waits();
  if (wait === undefined) throw new Error("the run waits for nothing");
  return wait;
}
const ended = async (run: RunHandle) => ({ output: (await run.result({ timeoutMs: 20_000 })) as string, events: await lab.events(run.id) });
const calls = (name: string) => executed.filter((one) => one.tool === name).map((one) => one.input);

describe("an approval", () => {
  it("is asked for before anything is executed, listed, and lets the call be made once", async () => {
    const run = await start(approved);
    const wait = await waiting(run, "approval");
    expect(wait).toMatchObject({ kind: "approval", name: "pay_approved", detail: { input: { amount: 5 } }, run_id: run.id, turn: 1 });
    expect(calls("pay_approved")).toEqual([]);
    expect((await lab.capstan.waits.list({ runId: run.id })).map(({ id }) => id)).toEqual([wait.id]);
    await lab.capstan.waits.approve(wait.id, { actor: "ann", reason: "fine" });
    const { events } = await ended(run);
    expect(calls("pay_approved")).toEqual([{ amount: 5 }]);
    expect(payloads(events, "approval.decided")).toEqual([expect.objectContaining({ decision: "approve", reason: "fine", wait_id: wait.id })]);
    expect(events.find(({ type }) => type === "approval.decided")?.actor).toBe("ann");
    expect(await run.waits()).toEqual([]);
    await lab.intact(run.id);
  });

  it("may edit the arguments; the model is told which were used, and the journal says so", async () => {
    const run = await start(edited);
    const wait = await waiting(run, "approval");
    await expect(lab.capstan.waits.approve(wait.id, { input: { amount: "five" } })).rejects.toMatchObject({ code: "INPUT_INVALID" });
    await lab.capstan.waits.approve(wait.id, { input: { amount: 3 } });
    const { events } = await ended(run);
    expect(calls("pay_edited")).toEqual([{ amount: 3 }]);
    expect(payloads(events, "tool.completed")).toEqual([expect.objectContaining({ output: { paid: 3 }, executed_input: { amount: 3 } })]);
    const requests: unknown[] = [];
    await lab.intact(run.id, { onRequest: (request) => requests.push(request.messages.at(-1)?.content) });
    expect(requests.at(-1)).toEqual([expect.objectContaining({ output: expect.objectContaining({ arguments: { amount: 3 }, result: { paid: 3 } }) })]);
  });

  it("that is denied keeps the call from being made, and the model reads the reason", async () => {
    const run = await start(denied);
    await lab.capstan.waits.deny((await waiting(run, "approval")).id, { reason: "too much", actor: "bob" });
    const { events, output } = await ended(run);
    expect(output).toBe("Not paid.");
    expect(calls("pay_denied")).toEqual([]);
    expect(payloads(events, "tool.failed")).toEqual([
      expect.objectContaining({ error: expect.objectContaining({ code: "APPROVAL_DENIED", message: expect.stringContaining("too much") }) }),
    ]);
    await lab.intact(run.id);
  });

  it("of two people who decide at once one counts, and the other is told", async () => {
    const run = await start(twice);
    const { id } = await waiting(run, "approval");
    const settled = await Promise.allSettled([
      ...Array.from({ length: 5 }, (_, n) => lab.capstan.waits.approve(id, { actor: `yes ${n}` })),
      ...Array.from({ length: 5 }, (_, n) => lab.capstan.waits.deny(id, { actor: `no ${n}` })),
    ]);
    expect(settled.filter(({ status }) => status === "fulfilled")).toHaveLength(1);
    for (const one of settled) if (one.status === "rejected") expect(one.reason).toMatchObject({ code: "WAIT_DECIDED" });
    const { events } = await ended(run);
    expect(payloads(events, "approval.decided")).toHaveLength(1);
    expect(calls("pay_twice")).toHaveLength(payloads(events, "approval.decided")[0].decision === "approve" ? 1 : 0);
    await expect(lab.capstan.waits.approve(id)).rejects.toMatchObject({ code: "WAIT_DECIDED" });
  });

  it("is asked by the arguments; calls beside it are made meanwhile, results keep the order of the calls", async () => {
    const run = await start(mixed);
    const wait = await waiting(run, "approval");
    expect(wait.detail).toEqual({ kind: "approval", input: { amount: 100 } });
    expect(calls("pay_mixed")).toEqual([{ amount: 1 }]);
    await lab.capstan.waits.approve(wait.id);
    const { events } = await ended(run);
    expect(calls("pay_mixed")).toEqual([{ amount: 1 }, { amount: 100 }]);
    expect(payloads(events, "tool.completed").map(({ index }) => index)).toEqual([0, 1, 2]);
    await lab.intact(run.id);
  });

  it("is asked when its predicate throws", async () => {
    const run = await start(thrower);
    await lab.capstan.waits.deny((await waiting(run, "approval")).id);
    await ended(run);
    expect(calls("pay_thrower")).toEqual([]);
  });

  it("expires into its default: denied if nothing else is set", async () => {
    const [no, yes] = [await start(expiring), await start(lenient)];
    const first = await ended(no);
    expect(payloads(first.events, "approval.decided")).toEqual([expect.objectContaining({ decision: "deny", expired: true })]);
    expect(calls("pay_expiring")).toEqual([]);
    const second = await ended(yes);
    expect(payloads(second.events, "approval.decided")).toEqual([expect.objectContaining({ decision: "approve", expired: true })]);
    expect(calls("pay_lenient")).toEqual([{ amount: 5 }]);
    const { wait_id: id } = payloads(first.events, "approval.decided")[0];
    await expect(lab.capstan.waits.approve(id)).rejects.toMatchObject({ code: "WAIT_DECIDED" });
  });

  it("is not asked for a call that would be refused anyway", async () => {
    const run = await start(invalid);
    const { events } = await ended(run);
    expect(payloads(events, "tool.failed")).toEqual([expect.objectContaining({ error: expect.objectContaining({ code: "TOOL_ARGUMENTS_INVALID" }) })]);
    expect(typesOf(events)).not.toContain("call.waiting");
  });

  it("can be demanded by the agent for tools that do not ask", async () => {
    const run = await start(listed);
    await lab.capstan.waits.approve((await waiting(run, "approval")).id);
    expect((await ended(run)).output).toBe("Done.");
  });

  it("is one wait, and what the approved tool then waits for another", async () => {
    const nap = await start(thenSleeps);
    await lab.capstan.waits.approve((await waiting(nap, "approval")).id);
    expect((await ended(nap)).output).toBe("Awake.");

    const order = await start(thenWaits);
    await lab.capstan.waits.approve((await waiting(order, "approval")).id);
    await waiting(order, "signal");
    const [token] = calls("approved_order") as [string];
    await lab.capstan.waits.complete(token, { shipped: true });
    expect((await ended(order)).output).toBe('[{"shipped":true}]');
    expect(calls("approved_order")).toHaveLength(1);

    const signal = await start(allListed);
    await lab.capstan.waits.approve((await waiting(signal, "approval")).id);
    await waiting(signal, "signal");
    await signal.signal("go", "now");
    expect((await ended(signal)).output).toBe('["now"]');
    for (const { id } of [nap, order, signal]) await lab.intact(id);
  });

  it("takes no arguments beyond the limit", async () => {
    const run = await start(approved);
    const wait = await waiting(run, "approval");
    await expect(lab.db.query("select capstan.decide($1, 'approve', jsonb_build_object('amount', 1, 'x', repeat('y', 1000001)))", [wait.id])).rejects.toMatchObject({
      code: "KC005",
    });
    await lab.capstan.waits.deny(wait.id);
    await ended(run);
  });

  it("for what was never asked is refused by name", async () => {
    await expect(lab.capstan.waits.approve("00000000-0000-7000-8000-000000000000")).rejects.toMatchObject({ code: "WAIT_UNKNOWN" });
    await expect(lab.capstan.waits.approve("nonsense")).rejects.toMatchObject({ code: "ARGUMENT_INVALID" });
  });
});

describe("a question", () => {
  it("waits for a person's answer, which is the call's result", async () => {
    const run = await start(asking);
    const wait = await waiting(run, "approval");
    expect(wait).toMatchObject({ kind: "question", detail: { question: "Which colour?", options: ["red", "blue"] } });
    await expect(lab.capstan.waits.answer(wait.id, "green")).rejects.toMatchObject({ code: "ARGUMENT_INVALID" });
    await lab.capstan.waits.answer(wait.id, "blue", { actor: "ann" });
    expect((await ended(run)).output).toBe('["blue"]');
  });

  it("with a schema refuses an answer that does not fit before anything is recorded", async () => {
    const run = await start(typed);
    const { id } = await waiting(run, "approval");
    await expect(lab.capstan.waits.answer(id, { n: "many" })).rejects.toMatchObject({ code: "INPUT_INVALID" });
    expect((await run.status()).wait_reason).toBe("approval");
    await lab.capstan.waits.answer(id, { n: 3 });
    expect((await ended(run)).output).toBe('[{"n":3}]');
  });

  it("answered past the schema, by SQL, is told to the model as it is: not fitting", async () => {
    const run = await start(typed);
    const { id } = await waiting(run, "approval");
    await lab.db.query(`select capstan.answer($1, '{"n": "many"}')`, [id]);
    expect((await ended(run)).output).toContain("ANSWER_INVALID");
  });

  it("can be declined", async () => {
    const run = await start(declined);
    await lab.capstan.waits.decline((await waiting(run, "approval")).id);
    expect((await ended(run)).output).toContain("ANSWER_DECLINED");
  });
});

describe("a signal", () => {
  it("wakes the run that waits for it", async () => {
    const run = await start(signalled);
    await waiting(run, "signal");
    await run.signal("other", "not this one");
    await run.signal("go", { at: 7 }, { dedupeKey: "one" });
    expect((await ended(run)).output).toBe('[{"at":7}]');
  });

  it("that comes before anybody waits is kept, the same one twice is one, and the next of its name is kept in turn", async () => {
    const run = await start(early);
    const sent = [await run.signal("go", "first", { dedupeKey: "a" }), await run.signal("go", "again", { dedupeKey: "a" }), await run.signal("go", "second")];
    expect(sent[1]).toBe(sent[0]);
    expect((await ended(run)).output).toBe('["first"]');
    const { rows } = await lab.db.query("select payload, wait_id is null as kept from capstan.signals where run_id = $1 order by id", [run.id]);
    expect(rows).toEqual([
      { payload: "first", kept: false },
      { payload: "second", kept: true },
    ]);
    await expect(run.signal("go")).rejects.toMatchObject({ code: "RUN_FINISHED" });
  });

  it("that does not come in time fails the call", async () => {
    expect((await ended(await start(timed))).output).toContain("WAIT_EXPIRED");
  });

  it("that does not fit the schema is refused where it is sent", async () => {
    const run = await start(schemed);
    await waiting(run, "signal");
    await expect(run.signal("typed", { ok: "yes" })).rejects.toMatchObject({ code: "INPUT_INVALID" });
    await run.signal("typed", { ok: true });
    expect((await ended(run)).output).toBe('[{"ok":true}]');
  });
});

describe("time and work elsewhere", () => {
  it("a tool sleeps without a worker", async () => {
    const run = await start(sleeping);
    const { events } = await ended(run);
    expect(payloads(events, "run.parked")).toEqual([expect.objectContaining({ reason: "timer" })]);
  });

  it("a call is completed from outside, once", async () => {
    const run = await start(completed);
    await waiting(run, "signal");
    const [token] = tokens as [string];
    await lab.capstan.waits.complete(token, { shipped: true });
    await lab.capstan.waits
      .complete(token, { shipped: "again" })
      .catch((error: unknown) => expect(error).toMatchObject({ code: expect.stringMatching(/WAIT_DECIDED|RUN_FINISHED/) }));
    expect((await ended(run)).output).toBe('[{"shipped":true}]');
    await expect(lab.capstan.waits.complete("nonsense", 1)).rejects.toMatchObject({ code: "ARGUMENT_INVALID" });
  });

  it("a call that is completed before its tool has returned keeps its result", async () => {
    expect((await ended(await start(tooSoon))).output).toBe('[{"done":"already"}]');
  });
});
