/** What a run may take: soft limits that are told once, hard ones that end it, one turn to wrap up, a tree within its root's limits. */
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { z } from "zod";
import { agent, type Agent } from "../../src/agents/agent.ts";
import { tool } from "../../src/agents/tool.ts";
import type { RunHandle } from "../../src/client/handle.ts";
import type { Budget } from "../../src/domain/budget.ts";
import type { Model } from "../../src/engine/model-port.ts";
import { scriptedModel, type ScriptedModel, type ScriptedStep } from "../../src/testing/scripted-model.ts";
import { createTestDatabase } from "../support/database.ts";
import { openLab, payloads, typesOf, until, type AnyAgent, type Lab } from "./harness.ts";

const database = await createTestDatabase();
const models = new Map<string, ScriptedModel>();
const agents: AnyAgent[] = [];
let looks = 0;
const look = tool({ name: "look", description: "Looks.", input: z.object({}), effect: "read", execute: () => `look ${++looks}` });

/** By turn: a model that is asked again says the same. Each answer counts as 100 tokens, 90 of them input. */
function made(name: string, steps: readonly ScriptedStep[], spec: Partial<Parameters<typeof agent>[0]> = {}): AnyAgent {
  const counted = steps.map((step): ScriptedStep =>
    typeof step === "function" ? step : { usage: { input: 90, output: 10 }, ...(typeof step === "string" ? { text: step } : step) },
  );
  models.set(name, scriptedModel(counted, { name: `scripted:${name}`, by: "turn" }));
  const own = agent({ name, model: `scripted:${name}`, instructions: "Work.", tools: [look], ...spec }) as AnyAgent;
  agents.push(own);
  return own;
}
const lookStep: ScriptedStep = { toolCalls: [{ name: "look", input: {} }] };
const looking = (turns: number, end: ScriptedStep = "done"): ScriptedStep[] => [...Array.from({ length: turns }, () => lookStep), end];
const toolsOf = (name: string): string[][] => (models.get(name)?.calls ?? []).map(({ tools }) => tools.map((one) => one.name));
const spawn = (...names: string[]): ScriptedStep => ({
  toolCalls: [{ name: "agent", input: { op: "parallel_spawn", children: names.map((name) => ({ agent: name, input: "x" })) } }],
});

const plain = made("plain", looking(5));
const soft = made("soft", looking(5), { budget: { soft: { turns: 2, tokens: 300 } } });
const hardTurns = made("hard-turns", looking(9), { budget: { soft: { turns: 2 }, hard: { turns: 3 } } });
const hardTokens = made("hard-tokens", looking(9), { budget: { hard: { tokens: 250 } } });
const known = made("known", looking(9), { settings: { maxOutputTokens: 200 }, budget: { hard: { tokens: 900 } } });
const priced = made("priced", looking(9), { settings: { maxOutputTokens: 10 }, budget: { hard: { cost_usd_micros: 30 } } });
const wraps = made("wraps", [...looking(2, lookStep), "what I have"], { budget: { hard: { turns: 3 }, wrap_up: true } });
const wrapsBadly = made("wraps-badly", [...looking(2, lookStep), lookStep], { budget: { hard: { turns: 3 }, wrap_up: true } });
const wrapsSilently = made("wraps-silently", [...looking(2, lookStep), { text: "" }], { budget: { hard: { turns: 3 }, wrap_up: true } });
const structured = made("structured", [...looking(1, lookStep), { toolCalls: [{ name: "submit_output", input: { n: 4 } }] }], {
  output: z.object({ n: z.number() }),
  budget: { hard: { turns: 2 }, wrap_up: true },
});
made("talks", ["hello", lookStep, "bye"], { interactive: true, budget: { hard: { turns: 2 }, wrap_up: true } });
made("patient", ["hello", "bye"], { interactive: true, budget: { hard: { wall_ms: 60_000 }, wrap_up: true } });
made("leaf", ["leaf"]);
made("greedy", looking(30, "never"));
const parent = made("parent", [spawn("greedy", "greedy"), "joined", "and more"], { spawn: { agents: ["*"] }, budget: { soft: { tokens: 500 }, hard: { tokens: 1_100 } } });
const twice = made("twice", [{ toolCalls: [...((spawn("greedy") as { toolCalls: [] }).toolCalls ?? []), ...((spawn("greedy") as { toolCalls: [] }).toolCalls ?? [])] }, "joined"], {
  spawn: { agents: ["*"] },
  budget: { hard: { tokens: 1_000 } },
});
const poor = made("poor", [{ ...(spawn("leaf", "leaf", "leaf") as object), usage: { input: 4_990, output: 10 } }, "never"], {
  spawn: { agents: ["*"] },
  budget: { hard: { tokens: 5_002 } },
});
made("leaf-of-grandchild", ["deep"]);
made("branch", [spawn("leaf-of-grandchild"), "branched"], { spawn: { agents: ["*"] } });
const deep = made("deep", [spawn("branch"), "joined"], { spawn: { agents: ["*"] }, budget: { soft: { tokens: 450 }, hard: { tokens: 5_000, wall_ms: 600_000 } } });

let lab: Lab;
beforeAll(async () => {
  lab = await openLab(database.url, {
    agents,
    models: [...models.values()] as Model[],
    // 100 micro-dollars a thousand tokens of input, and ten times that for output: 9 + 10 a turn.
    catalogue: { prices: { "scripted:priced": { input: 0.1, output: 1 } } },
  });
});
afterAll(() => lab[Symbol.asyncDispose]());

/** A run that waits for its children rests, but is not over. */
const ending = (handle: Pick<RunHandle<unknown>, "status">) =>
  until("the end", async () => {
    const status = await handle.status();
    return status.finished_at === undefined ? undefined : status;
  });
async function runTree(root: AnyAgent) {
  const handle = await lab.capstan.enqueue(root as Agent, "go");
  const status = await ending(handle);
  return { id: handle.id, status, events: await lab.events(handle.id) };
}
const reached = (events: Parameters<typeof payloads>[0]) => payloads(events, "budget.reached");

describe("a run without a budget", () => {
  it("has no trace of one in its journal, its row and its status", async () => {
    const { id, status, events } = await lab.run(plain, "go");
    expect(status.state).toBe("completed");
    expect(JSON.stringify(events)).not.toContain("budget");
    expect(status).not.toHaveProperty("budget");
    expect(status).not.toHaveProperty("budget_level");
    const { rows } = await lab.db.query("select budget_level, overrides from capstan.runs where id = $1", [id]);
    expect(rows).toEqual([{ budget_level: 0, overrides: null }]);
  });
});

describe("a soft limit", () => {
  it("is told once per limit, at the boundary where it is reached, and ends nothing", async () => {
    const { id, status, events } = await lab.run(soft, "go");
    expect(status).toMatchObject({ state: "completed", output: "done", turn: 6, budget_level: 1, budget: { soft: { turns: 2, tokens: 300 } } });
    expect(reached(events)).toEqual([
      { level: "soft", limit: "turns", used: 2, of: 2 },
      { level: "soft", limit: "tokens", used: 300, of: 300 },
    ]);
    const at = (limit: string) => events.findIndex(({ type, payload }) => type === "budget.reached" && payload["limit"] === limit);
    expect(events[at("turns") + 1]).toMatchObject({ type: "model.requested", turn: 3 });
    expect(events[at("tokens") + 1]).toMatchObject({ type: "model.requested", turn: 4 });
    expect(lab.log.filter(({ message, fields }) => message === "budget reached" && fields["runId"] === id)).toHaveLength(2);
    await lab.intact(id);
  });

  it("is told of the last turn too, in the commit of the end", async () => {
    const { status, events } = await lab.run(plain, "go", { budget: { soft: { turns: 6 } } });
    expect(typesOf(events).slice(-2)).toEqual(["budget.reached", "run.completed"]);
    expect(status.budget_level).toBe(1);
  });

  it("is told once although the run is claimed turn by turn, and again in a fork, which begins at zero", async () => {
    const { handle, events } = await lab.run(plain, "go", { budget: { soft: { turns: 2 } } });
    expect(reached(events)).toHaveLength(1);
    const fork = await handle.fork({ input: "once more" });
    const status = await lab.settled(fork.id);
    expect(status.budget).toEqual({ soft: { turns: 2 } });
    expect(reached(await lab.events(fork.id))).toHaveLength(0);
  });
});

describe("a hard limit", () => {
  const exhausted = (details: object) => ({ state: "failed", budget_level: 2, error: { code: "BUDGET_EXHAUSTED", details } });

  it("of turns ends the run before the next call", async () => {
    const { status, events } = await lab.run(hardTurns, "go");
    expect(status).toMatchObject({ turn: 3, ...exhausted({ limit: "turns", used: 3, of: 3 }) });
    expect(status.error?.message).toMatch(/^the run has used 3 of its 3 turns \(budget\.hard\.turns\); with budget\.wrap_up/);
    expect(reached(events).map(({ level }) => level)).toEqual(["soft", "hard"]);
    expect(models.get("hard-turns")?.calls).toHaveLength(3);
    await expect(lab.capstan.run(status.run_id).result()).rejects.toMatchObject({ code: "BUDGET_EXHAUSTED" });
  });

  it("of tokens ends it where the next request alone would pass it", async () => {
    const { status } = await lab.run(hardTokens, "go");
    expect(status).toMatchObject({ turn: 2, ...exhausted({ limit: "tokens", used: 200, of: 250 }) });
    expect(status.error?.details?.["next"]).toBeGreaterThan(50);
  });

  it("of tokens takes the answer's known maximum into account, so that it is never passed", async () => {
    const { status } = await lab.run(known, "go");
    expect(status).toMatchObject(exhausted({ limit: "tokens", of: 900 }));
    const used = status.usage.input_tokens + status.usage.output_tokens;
    expect(used).toBeLessThanOrEqual(900);
    expect(used + (status.error?.details?.["next"] as number)).toBeGreaterThan(900);
  });

  it("of cost is counted in micro-dollars", async () => {
    const { status } = await lab.run(priced, "go");
    expect(status).toMatchObject(exhausted({ limit: "cost_usd_micros", of: 30 }));
    expect(status.usage.cost_usd_micros).toBeGreaterThan(0);
    expect(status.usage.cost_usd_micros).toBeLessThanOrEqual(30);
  });

  it("of wall time is counted from the run's start by the database's clock", async () => {
    const handle = await lab.capstan.enqueue("patient", "hi");
    await lab.settled(handle.id);
    await lab.db.query("update capstan.runs set created_at = created_at - interval '61 seconds' where id = $1", [handle.id]);
    // A memory of the run may hold the old time: nobody has one behind a worker that starts.
    await lab.worker?.stop();
    await lab.startWorker();
    await handle.send("more");
    expect(await ending(handle)).toMatchObject({ state: "completed", output: "bye" });
    expect(reached(await lab.events(handle.id))).toMatchObject([{ level: "hard", limit: "wall_ms", of: 60_000 }]);
  });

  it("of the run's own is within the definition's, and a run whose definition is not known yet gets the smaller one", async () => {
    const { status } = await lab.run(hardTurns, "go", { budget: { hard: { turns: 1 } } });
    expect(status).toMatchObject({ turn: 1, budget: { soft: { turns: 2 }, hard: { turns: 1 } }, ...exhausted({ limit: "turns", of: 1 }) });
    await expect(lab.capstan.enqueue("hard-turns", "go", { budget: { hard: { turns: 4 } } })).rejects.toMatchObject({ code: "ARGUMENT_INVALID" });
    const early = agent({ name: "early", model: "scripted:hard-turns", instructions: "Work.", tools: [look], budget: { hard: { turns: 1 } } });
    const { id } = await lab.capstan.enqueue("early", "go", { budget: { hard: { turns: 9 } } });
    await using other = await openLab(database.url, { agents: [early], models: [models.get("hard-turns") as Model] });
    expect(await other.settled(id)).toMatchObject({ turn: 1, ...exhausted({ limit: "turns", of: 1 }) });
  });
});

describe("one turn to wrap up", () => {
  it("is told to the model, has no tools, and its answer is the run's", async () => {
    const { id, status, events } = await lab.run(wraps, "go");
    expect(status).toMatchObject({ state: "completed", output: "what I have", turn: 4, budget_level: 2 });
    expect(toolsOf("wraps")).toEqual([["look"], ["look"], ["look"], []]);
    const [hard] = reached(events);
    expect(hard).toMatchObject({ level: "hard", limit: "turns", used: 3, of: 3, text: expect.stringContaining("last turn") as string });
    expect(JSON.stringify(models.get("wraps")?.calls.at(-1)?.messages.at(-1))).toContain(hard.text);
    expect(payloads(events, "model.requested").map(({ no_tools: none }) => none)).toEqual([undefined, undefined, undefined, true]);
    // Its request is made of rows like any other.
    await lab.intact(id);
  });

  it("that is used for a call instead ends the run, and nothing is executed", async () => {
    const before = looks;
    const { id, status, events } = await lab.run(wrapsBadly, "go");
    expect(status).toMatchObject({ state: "failed", turn: 4, error: { code: "BUDGET_EXHAUSTED", message: expect.stringContaining("it called look") as string } });
    expect(typesOf(events).slice(-2)).toEqual(["model.responded", "run.failed"]);
    expect(looks - before).toBe(3);
    await lab.intact(id);
  });

  it("that is empty ends the run: there is no second one", async () => {
    const { status } = await lab.run(wrapsSilently, "go");
    expect(status).toMatchObject({ state: "failed", turn: 4, error: { code: "BUDGET_EXHAUSTED" } });
  });

  it("keeps the tool by which a structured result is given", async () => {
    const { id, status } = await lab.run(structured, "go");
    expect(status).toMatchObject({ state: "completed", output: { n: 4 }, turn: 3 });
    expect(toolsOf("structured").at(-1)).toEqual(["submit_output"]);
    await lab.intact(id);
  });

  it("of an interactive run ends it with what the model says, although input waits", async () => {
    const handle = await lab.capstan.enqueue("talks", "hi");
    await lab.settled(handle.id);
    await handle.send("go on");
    expect(await ending(handle)).toMatchObject({ state: "completed", output: "bye", turn: 3 });
    await expect(handle.send("too late")).rejects.toMatchObject({ code: "RUN_FINISHED" });
  });
});

describe("a tree", () => {
  it("stays within its root's hard limit: children share what is left, and what they took counts", async () => {
    const { id, status, events } = await runTree(parent);
    const children = payloads(events, "call.waiting")[0].wait.children as { run_id: string; budget: Budget }[];
    expect(children.map(({ budget }) => budget)).toEqual([{ hard: { tokens: 500 } }, { hard: { tokens: 500 } }]);
    const [join] = payloads(events, "tool.completed");
    expect(join.output.results.map(({ error }: { error: { code: string } }) => error.code)).toEqual(["BUDGET_EXHAUSTED", "BUDGET_EXHAUSTED"]);
    const { rows } = await lab.db.query<{ total: number; max: number }>(
      "select sum(input_tokens + output_tokens)::int as total, max(input_tokens + output_tokens)::int as max from capstan.runs where parent_run_id = $1",
      [id],
    );
    expect(rows[0]?.max).toBeLessThanOrEqual(500);
    expect(join.spent).toEqual({ tokens: rows[0]?.total, cost_usd_micros: 0 });
    expect(reached(events)[0]).toMatchObject({ level: "soft", limit: "tokens", used: 100 + (rows[0]?.total ?? 0) });
    expect(100 + (rows[0]?.total ?? 0) + (status.usage.input_tokens + status.usage.output_tokens - 100)).toBeLessThanOrEqual(1_100);
    expect((await lab.capstan.run(children[0]?.run_id as string).status()).budget).toEqual({ hard: { tokens: 500 } });
    await lab.intact(id);
  });

  it("has no more although two calls of one response start children", async () => {
    const { events } = await runTree(twice);
    const shares = payloads(events, "call.waiting").flatMap(({ wait }) => wait.children.map(({ budget }: { budget: Budget }) => budget.hard?.tokens as number));
    expect(shares).toEqual([450, 450]);
  });

  it("starts no child that would have nothing, and the model reads why", async () => {
    const { status, events } = await runTree(poor);
    expect(payloads(events, "tool.failed")).toMatchObject([{ error: { code: "SPAWN_LIMIT", message: expect.stringContaining("budget.hard.tokens") as string } }]);
    expect(status.error?.code).toBe("BUDGET_EXHAUSTED");
  });

  it("counts grandchildren, and hands down the time that is left", async () => {
    const { events } = await runTree(deep);
    const [child] = payloads(events, "call.waiting")[0].wait.children as { budget: Budget }[];
    expect(child?.budget.hard?.tokens).toBe(4_900);
    expect(child?.budget.hard?.wall_ms).toBeGreaterThan(500_000);
    expect(child?.budget.hard?.wall_ms).toBeLessThanOrEqual(600_000);
    expect(payloads(events, "tool.completed")[0].spent.tokens).toBe(300);
    // 100 of its own, 300 of the branch and its leaf, 100 for the answer.
    expect(reached(events)).toMatchObject([{ level: "soft", limit: "tokens", used: 500 }]);
  });
});
