/** Runs that start others and wait for them; turns that are stopped; runs, tenants and everything standing still. */
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { z } from "zod";
import { agent } from "../../src/agents/agent.ts";
import { tool } from "../../src/agents/tool.ts";
import type { RunHandle } from "../../src/client/handle.ts";
import type { Model } from "../../src/engine/model-port.ts";
import { scriptedModel, type ScriptedStep } from "../../src/testing/scripted-model.ts";
import { createTestDatabase } from "../support/database.ts";
import { openLab, payloads, typesOf, until, type AnyAgent, type Lab } from "./harness.ts";

const database = await createTestDatabase();
const models: Model[] = [];
const agents: AnyAgent[] = [];

function made(name: string, steps: readonly ScriptedStep[], spec: Partial<Parameters<typeof agent>[0]> = {}): AnyAgent {
  models.push(scriptedModel(steps, { name: `scripted:${name}`, by: "turn" }));
  const own = agent({ name, model: `scripted:${name}`, instructions: "Work.", ...spec }) as AnyAgent;
  agents.push(own);
  return own;
}

type Request = { readonly messages: readonly { readonly role: string; readonly content: unknown }[] };
const lastOutput = (request: Request): string => JSON.stringify(((request.messages.at(-1)?.content ?? []) as { output: unknown }[]).map(({ output }) => output));
const firstText = (request: Request): string => ((request.messages[0]?.content ?? []) as { text: string }[])[0]?.text ?? "";
const spawn = (children: readonly { readonly agent: string; readonly input?: unknown; readonly compaction?: object }[]) => ({
  toolCalls: [{ name: "agent", input: { op: "parallel_spawn", children } as never }],
});
const tenOf = (name: string, count: number) => Array.from({ length: count }, (_, n) => ({ agent: name, input: `task ${n}` }));

let atOnce = 0;
let most = 0;
const gates: (() => void)[] = [];
const aborted: string[] = [];
const slow = (name: string, effect: "read" | "once" = "read") =>
  tool({
    name,
    description: "Takes its time.",
    input: z.object({}),
    effect,
    execute: (_, { signal }) =>
      new Promise((resolve) => {
        gates.push(() => resolve("late"));
        signal.addEventListener("abort", () => (aborted.push(name), resolve("aborted")), { once: true });
      }),
  });

made("echo", [(request) => `did ${firstText(request)}`]);
made("counting", [
  async (request) => {
    most = Math.max(most, ++atOnce);
    await new Promise((resolve) => setTimeout(resolve, 30));
    atOnce--;
    return firstText(request);
  },
]);
made("failing", [{ failure: { code: "PROVIDER_AUTH", message: "no key", retryable: false } }]);
made("retired", ["never"]);
made("strict-input", ["ok"], { input: z.object({ n: z.number() }) });
const parent = made("parent", [{ toolCalls: [{ name: "agent", input: { op: "spawn", agent: "echo", input: "this" } }] }, lastOutput], { spawn: { agents: ["echo"] } });
const fanOut = made(
  "fan-out",
  [
    spawn([
      { agent: "echo", input: "a" },
      { agent: "failing", input: "b" },
      { agent: "echo", input: "c" },
    ]),
    lastOutput,
  ],
  { spawn: { agents: ["*"] } },
);
const many = made("many", [spawn(tenOf("counting", 32)), lastOutput], { spawn: { agents: ["counting"], concurrency: 3 } });
const tooMany = made("too-many", [spawn(tenOf("echo", 33)), lastOutput], { spawn: { agents: ["echo"] } });
const wrong = made(
  "wrong",
  [
    spawn([
      { agent: "echo", input: "fine" },
      { agent: "nobody", input: "x" },
      { agent: "strict-input", input: { n: "many" } },
      { agent: "echo", input: "x", compaction: { autocompact_at_pct: 12 } },
      { agent: "retired", input: "x" },
    ]),
    lastOutput,
  ],
  { spawn: { agents: ["*"] } },
);
const forbidden = made("forbidden", [spawn([{ agent: "counting", input: "x" }]), lastOutput], { spawn: { agents: ["echo"] } });
const endless = made("endless", [{ toolCalls: [{ name: "agent", input: { op: "spawn", agent: "endless", input: "again" } }] }, lastOutput], { spawn: { agents: ["endless"] } });
made("heir", [{ toolCalls: [{ name: "agent", input: { op: "spawn", agent: "grandchild", input: "x" } }] }, "done"], {
  spawn: { agents: ["grandchild"] },
  compaction: { keep_last_n: 9, target_percentage: 20 },
});
made("grandchild", ["done"], { compaction: { keep_last_n: 2, at_tokens: 5_000, keep_first: false } });
const testator = made("testator", [spawn([{ agent: "heir", input: "x", compaction: { target_percentage: 30 } }]), "done"], {
  spawn: { agents: ["heir"] },
  compaction: { enabled: true, autocompact_at_pct: 70, keep_last_n: 5 },
});
made("hanging", [{ hang: true }]);
const guardian = made("guardian", [spawn(tenOf("hanging", 3)), "never"], { spawn: { agents: ["hanging"] } });
const stoppable = made("stoppable", [{ hang: true }], { interactive: true });
const afterStop = made("after-stop", [{ toolCalls: [{ name: "slow_read" }, { name: "slow_once" }] }, "Continued."], {
  interactive: true,
  tools: [slow("slow_read"), slow("slow_once", "once")],
  limits: { parallelTools: 1 },
});
const parked = made("parked-stop", [spawn(tenOf("hanging", 2)), "Continued."], { interactive: true, spawn: { agents: ["hanging"] } });
const idle = made("idle", ["Hello.", "Again."], { interactive: true });
const busy = made("busy", [{ hang: true }]);
const turns = made("turns", [{ toolCalls: [{ name: "step" }] }, { toolCalls: [{ name: "step" }] }, "Done."], {
  tools: [tool({ name: "step", description: "Steps.", input: z.object({}), effect: "read", execute: () => new Promise((resolve) => gates.push(() => resolve("stepped"))) })],
});

let lab: Lab;
beforeAll(async () => {
  lab = await openLab(database.url, { agents, models });
});
afterAll(() => lab[Symbol.asyncDispose]());

const start = (own: AnyAgent, tenant = "default") => lab.capstan.enqueue(own.name, "begin", { tenant });
const isIn = (run: RunHandle, reason: string) =>
  until(`${reason} of ${run.id}`, async () => {
    const status = await run.status();
    return status.state === "waiting" && status.wait_reason === reason;
  });
const outputOf = async (run: RunHandle) => JSON.parse((await run.result({ timeoutMs: 30_000 })) as string)[0];
const children = async (run: RunHandle) =>
  (
    await lab.db.query<{ id: string; agent: string; state: string; depth: number; policy: object | null }>(
      "select id, agent, state, depth, policy from capstan.runs where parent_run_id = $1 order by child_index",
      [run.id],
    )
  ).rows;

describe("spawn", () => {
  it("starts one child and gives its answer in place, with its origin", async () => {
    const run = await start(parent);
    const [child] = (await outputOf(run)).results;
    expect(child).toEqual({ index: 0, agent: "echo", run_id: expect.any(String), ok: true, output: "did this" });
    const events = await lab.events(run.id);
    expect(events.find(({ type }) => type === "tool.completed")?.origin).toBe("agent:echo");
    expect(payloads(events, "run.parked")).toEqual([expect.objectContaining({ reason: "children" })]);
    expect(await children(run)).toEqual([expect.objectContaining({ agent: "echo", state: "completed", depth: 1 })]);
    await lab.intact(run.id);
    await lab.intact(child.run_id);
  });

  it("brings a child's failure back in its place, and the others' answers in theirs", async () => {
    const run = await start(fanOut);
    expect((await outputOf(run)).results).toEqual([
      expect.objectContaining({ index: 0, ok: true, output: "did a" }),
      expect.objectContaining({ index: 1, ok: false, error: expect.objectContaining({ message: expect.stringContaining("no key") }) }),
      expect.objectContaining({ index: 2, ok: true, output: "did c" }),
    ]);
  });

  it("runs 32 children, a few at a time, in the order in which they were asked for", async () => {
    const run = await start(many);
    const { results } = await outputOf(run);
    expect(results.map(({ output }: { output: string }) => output)).toEqual(Array.from({ length: 32 }, (_, n) => `task ${n}`));
    expect(most).toBeGreaterThan(0);
    expect(most).toBeLessThanOrEqual(3);
    const events = await lab.events(run.id);
    expect(typesOf(events).filter((type) => type === "call.waiting" || type === "run.parked" || type === "run.resumed")).toEqual(["call.waiting", "run.parked", "run.resumed"]);
  });

  it.each([
    ["33 at once", tooMany, "SPAWN_LIMIT"],
    ["an agent it may not start", forbidden, "SPAWN_INVALID"],
  ])("refuses %s, and starts none", async (_, own, code) => {
    const run = await start(own);
    expect(await outputOf(run)).toContain(code);
    expect(await children(run)).toEqual([]);
  });

  it("says of each child what is wrong before any is started", async () => {
    await lab.capstan.agents.retire("retired");
    const run = await start(wrong);
    const said = await outputOf(run);
    expect(said).toContain('child 1: there is no agent "nobody"');
    expect(said).toContain("child 2: its input does not fit agent strict-input: n:");
    expect(said).toContain("child 3: compaction.autocompact_at_pct must be");
    expect(said).toContain("child 4: agent retired is retired and starts no more runs");
    expect(await children(run)).toEqual([]);
  });

  it("of itself for ever ends at the depth limit", async () => {
    const run = await start(endless);
    await run.result({ timeoutMs: 30_000 });
    const { rows } = await lab.db.query<{ depth: number }>("select depth from capstan.runs where root_run_id = $1 order by depth", [run.id]);
    expect(rows.map(({ depth }) => depth)).toEqual([0, 1, 2, 3]);
  });

  it("hands the compaction policy down field by field, to grandchildren too", async () => {
    const run = await start(testator);
    await run.result({ timeoutMs: 30_000 });
    const [heir] = await children(run);
    expect(heir?.policy).toEqual({ enabled: true, autocompact_at_pct: 70, keep_last_n: 5, target_percentage: 30 });
    const [grandchild] = await children(lab.capstan.run(heir?.id ?? ""));
    expect(grandchild?.policy).toEqual({ enabled: true, autocompact_at_pct: 70, keep_last_n: 5, target_percentage: 30, at_tokens: 5_000, keep_first: false });
  });

  it("ends with its parent: a cancel stops the children's calls, and they append nothing more", async () => {
    const run = await start(guardian);
    await isIn(run, "children");
    await until("three model calls", async () => (await children(run)).every(({ state }) => state === "running"));
    await run.cancel("enough");
    const rows = await children(run);
    expect(rows.map(({ state }) => state)).toEqual(["cancelled", "cancelled", "cancelled"]);
    for (const { id } of rows) expect(typesOf(await lab.events(id)).at(-1)).toBe("run.cancelled");
  });
});

describe("stop", () => {
  it("aborts the model call and keeps the run, which takes input", async () => {
    const run = await start(stoppable);
    await until("the call", async () => typesOf(await lab.events(run.id)).includes("model.requested"));
    await run.stop("changed my mind", { actor: "ann" });
    await isIn(run, "input");
    const events = await lab.events(run.id);
    expect(typesOf(events).slice(-3)).toEqual(["model.failed", "turn.stopped", "run.parked"]);
    expect(events.at(-2)).toMatchObject({ payload: { reason: "changed my mind" }, actor: "ann" });
    await lab.intact(run.id);
  });

  it("records what became of each call: unknown, and never made", async () => {
    const run = await start(afterStop);
    await until("the first tool", () => gates.length > 0);
    gates.length = 0;
    await run.stop();
    await isIn(run, "input");
    const events = await lab.events(run.id);
    expect(aborted).toContain("slow_read");
    expect(payloads(events, "tool.failed").map(({ name, error }) => [name, error.code])).toEqual([
      ["slow_read", "STOPPED"],
      ["slow_once", "STOPPED"],
    ]);
    expect(typesOf(events)).not.toContain("tool.started");
    await run.send("go on");
    await until("the next answer", async () => (await run.status()).turn === 2 && (await run.status()).state === "waiting");
    await lab.intact(run.id);
  });

  it("of a run that waits for children ends them", async () => {
    const run = await start(parked);
    await isIn(run, "children");
    await run.stop();
    await isIn(run, "input");
    expect((await children(run)).map(({ state }) => state)).toEqual(["cancelled", "cancelled"]);
    expect(await run.waits()).toEqual([]);
    await run.send("go on");
    await until("the next answer", async () => (await run.status()).turn === 2 && (await run.status()).state === "waiting");
    await lab.intact(run.id);
  });

  it("is refused where there is nothing to stop, by name", async () => {
    const waiting = await start(idle);
    await isIn(waiting, "input");
    await expect(waiting.stop()).rejects.toMatchObject({ code: "NOT_MID_TURN" });
    const other = await start(busy);
    await expect(other.stop()).rejects.toMatchObject({ code: "NOT_INTERACTIVE" });
    await other.cancel();
    await expect(other.stop()).rejects.toMatchObject({ code: "RUN_FINISHED" });
    await expect(lab.capstan.run("00000000-0000-7000-8000-000000000000").stop()).rejects.toMatchObject({ code: "RUN_MISSING" });
  });
});

describe("pause", () => {
  it("of a run finishes the turn at hand, begins no other, survives the worker, and goes on when resumed", async () => {
    gates.length = 0;
    const run = await start(turns);
    await until("the first step", () => gates.length === 1);
    expect(await run.pause()).toBe(true);
    expect(await run.pause()).toBe(false);
    gates.pop()?.();
    await until("the result", async () => typesOf(await lab.events(run.id)).includes("tool.completed"));
    await lab.worker?.stop();
    await lab.startWorker();
    expect(await run.status()).toMatchObject({ paused: true, turn: 1 });
    expect(gates).toHaveLength(0);
    expect(await run.resume()).toBe(true);
    await until("the second step", () => gates.length === 1);
    gates.pop()?.();
    expect(await run.result({ timeoutMs: 20_000 })).toBe("Done.");
    await lab.intact(run.id);
  });

  it("of a tenant leaves the others alone; of everything, nobody; queued runs stay queued", async () => {
    await lab.capstan.pauses.pause({ tenant: "still", reason: "too much" });
    const [still, lively] = [await lab.capstan.enqueue("echo", "a", { tenant: "still" }), await lab.capstan.enqueue("echo", "b", { tenant: "lively" })];
    expect(await lively.result({ timeoutMs: 20_000 })).toBe("did b");
    expect(await still.status()).toMatchObject({ state: "queued" });
    await lab.capstan.pauses.pause();
    const third = await lab.capstan.enqueue("echo", "c", { tenant: "lively" });
    await lab.capstan.pauses.resume({ tenant: "still" });
    await lab.worker?.stop();
    await lab.startWorker();
    expect((await Promise.all([still.status(), third.status()])).map(({ state }) => state)).toEqual(["queued", "queued"]);
    expect(await lab.capstan.pauses.list()).toEqual([expect.not.objectContaining({ tenant: expect.anything() })]);
    expect(await lab.capstan.pauses.resume()).toBe(true);
    expect(await lab.capstan.pauses.resume()).toBe(false);
    expect(await Promise.all([still.result({ timeoutMs: 20_000 }), third.result({ timeoutMs: 20_000 })])).toEqual(["did a", "did c"]);
  });
});
