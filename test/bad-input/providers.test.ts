/** Vendors that fail, over their real protocols: what is retried, what it costs, where the run stands afterwards. */
import { describe, expect, it } from "vitest";
import { agent } from "../../src/agents/agent.ts";
import { payloads, typesOf, until } from "../engine/harness.ts";
import { createTestDatabase } from "../support/database.ts";
import { Cases, httpModel } from "./cases.ts";

const database = await createTestDatabase();
const cases = new Cases();
const limits = { modelAttempts: 2, modelTimeoutMs: 20_000 };
const ok = { text: "Done." };
const protocols = ["openai-chat", "anthropic", "openai-responses"] as const;

/** With headers that ask for a short pause, so that no test waits for a back-off. */
const soon = { "retry-after-ms": "20" };
const per = <T>(make: (protocol: (typeof protocols)[number]) => T) => protocols.map((protocol) => ({ protocol, ...make(protocol) }));

const limited = per((protocol) => ({
  agent: cases.addHttp(`limited-${protocol}`, protocol, [...Array.from({ length: 4 }, () => ({ error: { status: 429, headers: soon } })), ok], {
    limits: { ...limits, modelAttempts: 1 },
  }),
}));
const waits = cases.later(cases.addHttp("waits", "anthropic", [{ error: { status: 429, headers: { "retry-after": "3" } } }, ok], { limits }));
const overloaded = cases.addHttp("overloaded", "anthropic", [{ error: { status: 529, code: "overloaded_error", headers: soon } }, ok], { limits });
const down = per((protocol) => ({ agent: cases.addHttp(`down-${protocol}`, protocol, [{ error: { status: 500, headers: soon } }], { limits }) }));
const noKey = per((protocol) => ({ agent: cases.addHttp(`no-key-${protocol}`, protocol, [{ error: { status: 401, message: "bad key" } }], { limits }) }));
const badRequest = cases.addHttp("bad-request", "openai-chat", [{ error: { status: 400, message: "temperature is not supported" } }], { limits });
const overflow = per((protocol) => ({
  agent: cases.addHttp(
    `overflow-${protocol}`,
    protocol,
    [
      {
        error:
          protocol === "anthropic"
            ? { status: 400, message: "prompt is too long: 210000 tokens > 200000 maximum" }
            : { status: 400, code: "context_length_exceeded", message: "This model's maximum context length is 128000 tokens." },
      },
    ],
    { limits },
  ),
}));
const cut = per((protocol) => ({
  agent: cases.addHttp(
    `cut-${protocol}`,
    protocol,
    [{ text: "Half of an ans", cutAfterEvents: 3 }, { text: "Half of an answer that is longer than a few of the pieces", cutAfterEvents: 3, cutBy: "end" }, ok],
    { limits: { ...limits, modelAttempts: 3 } },
  ),
}));
const midway = per((protocol) => ({
  agent: cases.addHttp(`midway-${protocol}`, protocol, [{ text: "Half of", error: { status: 529, code: "overloaded_error", message: "Overloaded", afterEvents: 3 } }, ok], {
    limits,
  }),
}));
const slow = per((protocol) => ({
  agent: cases.addHttp(`slow-${protocol}`, protocol, [{ hang: true }, { text: "so slow", hang: 2 }], { limits: { modelAttempts: 2, modelTimeoutMs: 150 } }),
}));
const html = cases.addHttp("html", "openai-chat", [{ error: { status: 502, body: "<html>Bad gateway</html>", headers: soon } }, ok], { limits });

cases.answerHttp(httpModel("openai-chat", "first"), [{ error: { status: 503, headers: soon } }]);
cases.answerHttp(httpModel("anthropic", "second"), [ok]);
const fallback = cases.addAgent(
  agent({ name: "fallback", model: httpModel("openai-chat", "first"), fallbacks: [httpModel("anthropic", "second")], instructions: "Do as you are told.", limits }) as never,
);
const keyless = cases.addAgent(agent({ name: "keyless", model: "nobody:model", instructions: "Do as you are told." }) as never);

cases.openOn(database.url);

/** The failures of a run's model calls, and that its journal is whole. */
async function failures(name: (typeof limited)[number]["agent"]) {
  const run = await cases.outcome(name);
  await cases.lab.intact(run.id);
  return { run, failed: payloads(run.events, "model.failed") };
}

describe("what passes", () => {
  it.each(limited)("rate limits over $protocol do not use up attempts", async ({ agent: own }) => {
    const { run, failed } = await failures(own);
    expect(run.status).toMatchObject({ state: "completed", output: "Done.", turn: 1 });
    expect(failed.map(({ error, counts }) => [error.code, counts])).toEqual(Array.from({ length: 4 }, () => ["PROVIDER_RATE_LIMITED", false]));
    expect(payloads(run.events, "model.requested").map(({ again }) => again)).toEqual([undefined, "failed", "failed", "failed", "failed"]);
  });

  it("a long retry-after is waited for without a slot, as long as the vendor asked", async () => {
    const handle = await cases.lab.capstan.enqueue(waits as never, "go" as never);
    const parked = await until("the run to wait for its retry", async () => {
      const status = await handle.status();
      return status.wait_reason === "retry" ? status : undefined;
    });
    expect(Date.parse(parked.wake_at ?? "") - Date.parse(parked.updated_at)).toBeGreaterThan(2_500);
    const { rows } = await cases.lab.db.query("select worker_id, retry_count from capstan.runs where id = $1", [handle.id]);
    expect(rows).toEqual([{ worker_id: null, retry_count: 0 }]);
    expect(await handle.result({ timeoutMs: 20_000 })).toBe("Done.");
    const events = await cases.lab.events(handle.id);
    const [first, second] = events.filter((event) => event.type === "model.requested");
    expect(Date.parse(second?.at ?? "") - Date.parse(first?.at ?? "")).toBeGreaterThan(2_900);
    await cases.lab.intact(handle.id);
  });

  it("an overloaded vendor (529) is asked again", async () => {
    const { run, failed } = await failures(overloaded);
    expect(run.status.state).toBe("completed");
    expect(failed).toMatchObject([{ error: { code: "PROVIDER_OVERLOADED" }, retryable: true }]);
  });

  it.each(cut)("streams that break off over $protocol: nothing of the half answer is kept", async ({ agent: own }) => {
    const { run, failed } = await failures(own);
    expect(run.status).toMatchObject({ state: "completed", output: "Done." });
    expect(failed).toHaveLength(2);
    for (const { error, counts } of failed) expect([error.code, counts]).toEqual(["PROVIDER_STREAM_CUT", true]);
    expect(typesOf(run.events).filter((type) => type === "model.responded")).toHaveLength(1);
  });

  it.each(midway)("an error inside the stream over $protocol", async ({ agent: own }) => {
    const { run, failed } = await failures(own);
    expect(run.status).toMatchObject({ state: "completed", output: "Done." });
    expect(failed).toHaveLength(1);
    expect(failed[0].retryable).toBe(true);
  });

  it("a gateway that answers in HTML", async () => {
    const { run, failed } = await failures(html);
    expect(run.status.state).toBe("completed");
    expect(failed).toMatchObject([{ error: { code: "PROVIDER_UNAVAILABLE", details: { http_status: 502 } } }]);
  });

  it("a fallback is asked when the first model's attempts are spent", async () => {
    const { run, failed } = await failures(fallback);
    expect(run.status).toMatchObject({ state: "completed", output: "Done." });
    expect(failed).toHaveLength(2);
    expect(payloads(run.events, "model.requested").map(({ model }) => model)).toEqual([
      httpModel("openai-chat", "first"),
      httpModel("openai-chat", "first"),
      httpModel("anthropic", "second"),
    ]);
  });
});

describe("what does not pass", () => {
  it.each(down)("500 over $protocol until the attempts are spent: the run fails with the failure's code", async ({ agent: own }) => {
    const { run, failed } = await failures(own);
    expect(run.status).toMatchObject({ state: "failed", error: { code: "PROVIDER_UNAVAILABLE", message: expect.stringContaining("2 failed tries") } });
    expect(failed).toHaveLength(2);
  });

  it.each(noKey)("a refused key over $protocol: failed at once, and it says so", async ({ agent: own }) => {
    const { run, failed } = await failures(own);
    expect(run.status).toMatchObject({ state: "failed", error: { code: "PROVIDER_AUTH" } });
    expect(failed).toHaveLength(1);
  });

  it("a bad request: failed at once with the vendor's words", async () => {
    const { run } = await failures(badRequest);
    expect(run.status.error).toMatchObject({ code: "PROVIDER_BAD_REQUEST", message: expect.stringContaining("temperature") });
  });

  it.each(overflow)("an overfull context over $protocol parks the run for its owner", async ({ agent: own }) => {
    const { run, failed } = await failures(own);
    expect(run.status).toMatchObject({ state: "waiting", wait_reason: "context_exhausted" });
    expect(failed).toMatchObject([{ error: { code: "CONTEXT_OVERFLOW" } }]);
    expect(payloads(run.events, "run.parked")).toMatchObject([{ reason: "context_exhausted" }]);
  });

  it.each(slow)("a model that does not answer over $protocol: MODEL_TIMEOUT, and the connections are let go", async ({ agent: own, protocol }) => {
    const { run, failed } = await failures(own);
    expect(run.status).toMatchObject({ state: "failed", error: { code: "MODEL_TIMEOUT" } });
    expect(failed).toHaveLength(2);
    const asked = cases.server.requests.filter((request) => String(request.body["model"]).endsWith(`slow-${protocol}`));
    expect(await Promise.all(asked.map((request) => request.closed))).toEqual(["aborted", "aborted"]);
  });

  it("a model that nobody knows parks the run, and names the providers that are known", async () => {
    const run = await cases.outcome(keyless);
    expect(run.status).toMatchObject({ state: "waiting", wait_reason: "agent_missing" });
    expect(payloads(run.events, "run.parked")[0].detail).toMatchObject({ code: "MODEL_UNKNOWN", missing: expect.stringContaining("anthropic") });
  });
});
