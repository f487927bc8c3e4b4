/** What startWorker does about agents whose model or definition is not what their author thinks. */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { fileURLToPath } from "node:url";
import { afterEach, describe, expect, it, onTestFinished, vi } from "vitest";
import { agent, type AnyAgent } from "../../src/agents/agent.ts";
import type { Model } from "../../src/engine/model-port.ts";
import { createCapstan, type Capstan, type CapstanOptions } from "../../src/main.ts";
import { problemLog } from "../../src/telemetry/log.ts";
import { scriptedModel } from "../../src/testing/scripted-model.ts";
import { createTestDatabase } from "../support/database.ts";

const database = await createTestDatabase();
const opened: Capstan[] = [];
afterEach(async () => {
  for (const capstan of opened.splice(0)) await capstan.close();
});

interface Line {
  readonly message: string;
  readonly fields: object;
}

/** A Capstan whose log's warnings about agents are kept. Nothing of the machine's environment is read. */
function open(agents: readonly AnyAgent[], models: NonNullable<CapstanOptions["models"]>): { readonly capstan: Capstan; readonly warned: readonly Line[] } {
  const warned: Line[] = [];
  const warn = (fields: object, message: string): void => {
    if ("agent" in fields) warned.push({ message, fields });
  };
  const log = { debug() {}, info() {}, error() {}, warn };
  const capstan = createCapstan({ connectionString: database.url, agents, models, env: {}, observability: { log } });
  opened.push(capstan);
  return { capstan, warned };
}

/** The process's own warnings of the models, from here to the end of the test. */
function processWarnings(): string[] {
  const seen: string[] = [];
  const listen = (warning: Error & { code?: string }): void => {
    if (warning.code === "CAPSTAN_MODEL_UNAVAILABLE") seen.push(warning.message);
  };
  process.on("warning", listen);
  onTestFinished(() => void process.off("warning", listen));
  return seen;
}

const tick = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

describe("a model that cannot be used here", () => {
  const keyed = agent({ name: "keyed", model: "anthropic:claude-sonnet-5", fallbacks: ["offline:auditor"], instructions: "Answer." });

  it("is said by the process and the log when a worker starts, once for all its pools", async () => {
    const seen = processWarnings();
    const { capstan, warned } = open([keyed], {});
    await capstan.startWorker();
    await capstan.startWorker({ pool: "another" });
    await tick();
    expect(seen).toEqual([expect.stringMatching(/^agent keyed cannot use its model anthropic:claude-sonnet-5 here.*agent_missing: .*set ANTHROPIC_API_KEY/) as string]);
    expect(warned).toEqual([
      {
        message: "an agent's model cannot be used here: its runs will wait as agent_missing",
        fields: { agent: "keyed", model: "anthropic:claude-sonnet-5", problem: expect.stringContaining("no API key") as string },
      },
    ]);
  });

  it("is none if a tenant has a key, and is told also of a fallback", async () => {
    const seen = processWarnings();
    const other = agent({ name: "other", model: "offline:auditor", fallbacks: ["nowhere:x"], instructions: "Answer." });
    const { capstan } = open([keyed, other], { keysByTenant: { acme: { anthropic: "for-the-test" } } });
    await capstan.startWorker();
    await tick();
    expect(seen).toEqual([expect.stringContaining("agent other cannot use its model nowhere:x") as string]);
  });

  it("is on standard error of a program that sets up neither log nor key, and so is the run that waits for it", { timeout: 180_000 }, async () => {
    const env = { PATH: process.env["PATH"], HOME: process.env["HOME"], DATABASE_URL: database.url };
    const child = spawn(process.execPath, [fileURLToPath(new URL("../../examples/quickstart.ts", import.meta.url))], { env, stdio: ["ignore", "ignore", "pipe"] });
    const closed = once(child, "close");
    let stderr = "";
    for await (const chunk of child.stderr.setEncoding("utf8") as AsyncIterable<string>) {
      stderr += chunk;
      if (stderr.includes("run parked")) child.kill("SIGKILL");
    }
    await closed;
    expect(stderr).toMatch(/\[CAPSTAN_MODEL_UNAVAILABLE\] CapstanWarning: agent clerk .*set ANTHROPIC_API_KEY/);
    expect(stderr).toMatch(/^capstan warn: run parked \{.*"reason":"agent_missing".*\}$/m);
  });
});

describe("a definition that is not the promoted one", () => {
  const model: Model = scriptedModel(["Yes."], { name: "scripted:changed", by: "turn" });
  const first = agent({ name: "changed", model: model.name, instructions: "Answer." });
  const second = agent({ name: "changed", model: model.name, instructions: "Answer briefly." });
  const models = { models: { [model.name]: model } };

  it("is said when a worker starts, until it is promoted", async () => {
    const before = open([first], models);
    await before.capstan.startWorker();
    const sha = (await before.capstan.register()).get("changed");
    expect(before.warned).toEqual([]);

    const changed = open([second], models);
    await changed.capstan.startWorker();
    expect(changed.warned).toEqual([
      {
        message: expect.stringContaining("is not the promoted one") as string,
        fields: { agent: "changed", promotedSha: sha, sha: expect.not.stringContaining(sha ?? "") as string },
      },
    ]);

    const promoting = open([second], models);
    await promoting.capstan.startWorker({ promote: true });
    expect(promoting.warned).toEqual([]);
    const { rows } = await promoting.capstan.db.query<{ sha: string }>("select promoted_sha as sha from capstan.agents where name = 'changed'");
    expect(changed.warned).toMatchObject([{ fields: { sha: rows[0]?.sha } }]);
  });
});

describe("the log of an application that gives none", () => {
  function written(level: string): string {
    const stream = vi.spyOn(process.stderr, "write").mockReturnValue(true);
    try {
      const log = problemLog(level);
      log.info({}, "of no interest");
      log.warn({ runId: "r" }, "run parked");
      log.error({ err: new Error("two\nlines \u001B[2J"), apiKey: { apiKey: "secret" } }, "it broke");
      return stream.mock.calls.map(([text]) => String(text)).join("");
    } finally {
      stream.mockRestore();
    }
  }

  it("is a line for each problem, which can neither be broken nor steer a terminal", () => {
    expect(written("debug")).toBe('capstan warn: run parked {"runId":"r"}\ncapstan error: it broke {"apiKey":{"apiKey":"[redacted]"},"error":"two\\nlines \\u001b[2J"}\n');
  });

  it("is as quiet as CAPSTAN_LOG_LEVEL asks for", () => {
    expect(written("error")).toMatch(/^capstan error: it broke .*\n$/);
    expect(written("silent")).toBe("");
  });
});
