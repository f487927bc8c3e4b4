/** Everything one can do with a run from its id alone. */
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { agent } from "../../src/agents/agent.ts";
import { ResultTimeoutError, RunEndedError, RunFailedError, UnknownRunError } from "../../src/client/errors.ts";
import { RunHandle } from "../../src/client/handle.ts";
import { ResultPoller } from "../../src/client/result-poller.ts";
import { createPool } from "../../src/store/pool.ts";
import { scriptedModel } from "../../src/testing/scripted-model.ts";
import { collect, openLab, payloads, until, type Lab } from "../engine/harness.ts";
import { startProxy } from "../engine/proxy.ts";
import { createTestDatabase } from "../support/database.ts";
import { calls, doing } from "../bad-input/cases.ts";

const database = await createTestDatabase();
const quick = agent({ name: "quick", model: "scripted:quick", instructions: "Be quick." });
const fails = agent({ name: "fails", model: "scripted:fails", instructions: "Fail." });
const hanging = agent({ name: "hanging", model: "scripted:hanging", instructions: "Hang." });
const many = agent({ name: "many", model: "scripted:many", instructions: "Take many turns.", tools: [doing("step", () => "stepped")] });
const models = [
  scriptedModel(["Quick."], { name: "scripted:quick", by: "turn" }),
  scriptedModel(
    Array.from({ length: 9 }, () => ({ failure: { code: "PROVIDER_AUTH" as const, message: "no such key" } })),
    { name: "scripted:fails" },
  ),
  scriptedModel(
    Array.from({ length: 9 }, () => ({ hang: true })),
    { name: "scripted:hanging" },
  ),
  scriptedModel([...Array.from({ length: 30 }, () => calls("step")), "Finished."], { name: "scripted:many", by: "turn" }),
];
let lab: Lab;
beforeAll(async () => {
  lab = await openLab(database.url, { agents: [quick, fails, hanging, many], models });
});
afterAll(() => lab[Symbol.asyncDispose]());

const nobody = "01900000-0000-7000-8000-000000000000";
const thrown = (promise: Promise<unknown>) =>
  promise.then(
    () => undefined,
    (error: unknown) => error,
  );

describe("a run's result", () => {
  it("is the output", async () => expect(await (await lab.capstan.enqueue(quick, "go")).result({ timeoutMs: 20_000 })).toBe("Quick."));

  it("is an error with the journal's own code when the run failed", async () => {
    const handle = await lab.capstan.enqueue(fails, "go");
    const error = await thrown(handle.result({ timeoutMs: 20_000 }));
    expect(error).toBeInstanceOf(RunFailedError);
    expect(error).toMatchObject({ code: "PROVIDER_AUTH", details: { run_id: handle.id, state: "failed" }, message: expect.stringContaining("no such key") });
  });

  it("that does not come in time is a timeout which says that the run goes on; a signal ends the wait", async () => {
    const handle = await lab.capstan.enqueue(hanging, "go");
    expect(await thrown(handle.result({ timeoutMs: 30 }))).toBeInstanceOf(ResultTimeoutError);
    const stop = new AbortController();
    const waiting = thrown(handle.result({ signal: stop.signal }));
    stop.abort(new Error("enough"));
    expect(await waiting).toMatchObject({ message: "enough" });
    expect((await handle.status()).state).not.toBe("failed");
    await handle.cancel("over");
    expect(await thrown(handle.result({ timeoutMs: 20_000 }))).toMatchObject({ code: "RUN_CANCELLED", message: expect.stringContaining("over") });
  });

  it("is waited for by 500 at once with one question at a time, on a pool of three connections", async () => {
    const db = createPool({ connectionString: database.url, max: 3, applicationName: "waiters" });
    let asking = 0;
    let most = 0;
    const counted = {
      async query(text: string, values?: unknown[]) {
        most = Math.max(most, ++asking);
        try {
          return await db.query(text, values);
        } finally {
          asking--;
        }
      },
    };
    try {
      const poller = new ResultPoller(counted, (text) => text);
      const slow = await lab.capstan.enqueue(quick, "later", { runAt: new Date(Date.now() + 3_600_000) });
      const handles = Array.from({ length: 500 }, () => new RunHandle(slow.id, { db, named: (text) => text, poller }));
      const results = Promise.all(handles.map((handle) => handle.result({ timeoutMs: 30_000 })));
      expect(await new RunHandle(slow.id, { db, named: (text) => text, poller }).status()).toMatchObject({ state: "queued" });
      // Its time has come.
      await lab.db.query("update capstan.wishes set at = capstan.now(), ready = true where run_id = $1", [slow.id]);
      expect(new Set(await results)).toEqual(new Set(["Quick."]));
      expect(most).toBe(1);
    } finally {
      await db.end();
    }
  });
});

describe("a run's events", () => {
  it("come in order, without gap or double, while the run goes on, and end with it", async () => {
    const handle = await lab.capstan.enqueue(many, "go");
    const seqs: number[] = [];
    let last = "";
    for await (const event of handle.events()) {
      seqs.push(event.seq);
      last = event.type;
    }
    expect(seqs).toEqual(seqs.map((_, i) => i + 1));
    expect(seqs.length).toBeGreaterThan(90);
    expect(last).toBe("run.completed");
  });

  it("go on from a cursor: two readers that take turns see each event once", async () => {
    const handle = await lab.capstan.enqueue(many, "go");
    const seqs: number[] = [];
    let after = 0;
    for (let ended = false; !ended;) {
      let taken = 0;
      for await (const event of lab.capstan.run(handle.id).events({ after })) {
        seqs.push(event.seq);
        after = event.seq;
        ended = event.type === "run.completed";
        if (++taken === 7) break;
      }
    }
    expect(seqs).toEqual(seqs.map((_, i) => i + 1));
  });

  it("stop when their reader's signal says so", async () => {
    const handle = await lab.capstan.enqueue(hanging, "go");
    const stop = new AbortController();
    const types: string[] = [];
    for await (const event of handle.events({ signal: stop.signal })) {
      types.push(event.type);
      if (event.type === "model.requested") stop.abort();
    }
    expect(types).toEqual(["run.created", "model.requested"]);
    await handle.cancel();
  });
});

describe("cancel", () => {
  it("ends the run once: the second call says that it had ended", async () => {
    const handle = await lab.capstan.enqueue(hanging, "go");
    await until("the model to be asked", async () => payloads(await lab.events(handle.id), "model.requested").length === 1);
    expect(await Promise.all([handle.cancel("a"), handle.cancel("b")])).toSatisfy((ended: boolean[]) => ended.filter(Boolean).length === 1);
    expect(await handle.cancel("c")).toBe(false);
    expect((await handle.status()).state).toBe("cancelled");
    expect(payloads(await lab.events(handle.id), "run.cancelled")).toHaveLength(1);
    await lab.intact(handle.id);
  });

  it("of a completed run changes nothing", async () => {
    const handle = await lab.capstan.enqueue(quick, "go");
    await handle.result({ timeoutMs: 20_000 });
    expect(await handle.cancel()).toBe(false);
    expect((await handle.status()).state).toBe("completed");
  });
});

describe("a run that does not exist", () => {
  const handle = () => lab.capstan.run(nobody);
  it.each([
    ["status", () => handle().status()],
    ["send", () => handle().send("x")],
    ["cancel", () => handle().cancel()],
    ["events", () => collect(handle().events())],
    ["result", () => handle().result({ timeoutMs: 5_000 })],
  ])("%s: RUN_MISSING, by name", async (_, ask) => {
    const error = await thrown(ask());
    expect(error).toBeInstanceOf(UnknownRunError);
    expect(error).toMatchObject({ code: "RUN_MISSING", message: expect.stringContaining(nobody) });
  });

  it("nor does one whose id is no id", async () => {
    expect(await thrown(lab.capstan.run("not-an-id").status())).toMatchObject({ code: "ARGUMENT_INVALID", message: expect.stringContaining("not-an-id") });
  });
});

it("an ended run takes no input, and says so", async () => {
  const handle = await lab.capstan.enqueue(quick, "go");
  await handle.result({ timeoutMs: 20_000 });
  const error = await thrown(handle.send("one more"));
  expect(error).toBeInstanceOf(RunEndedError);
  expect(error).toMatchObject({ code: "RUN_FINISHED" });
});

it("a process survives its database going away: waits go on, calls fail by name, and all is well when it is back", async () => {
  await using proxy = await startProxy(database.url);
  await using away = await openLab(proxy.url, { agents: [quick], idle: true });
  const handle = await away.capstan.enqueue(quick, "later", { runAt: new Date(Date.now() + 1_500) });
  const result = handle.result({ timeoutMs: 30_000 });
  const following = collect(handle.events());
  await until("the follower to be connected", () => proxy.connections > 0);
  proxy.cut();
  expect(await thrown(handle.status())).toMatchObject({ code: "DATABASE_UNAVAILABLE", retryable: true });
  expect(await thrown(away.capstan.enqueue(quick, "now"))).toMatchObject({ code: "DATABASE_UNAVAILABLE" });
  proxy.mend();
  expect(await result).toBe("Quick.");
  expect((await following).map((event) => event.seq)).toEqual([1, 2, 3, 4]);
  expect((await handle.status()).state).toBe("completed");
});
