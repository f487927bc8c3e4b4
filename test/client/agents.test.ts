/** Definitions in the database: forked, promoted, compared, retired, with runs pinned to what they began with. */
import { afterAll, describe, expect, it } from "vitest";
import { agent } from "../../src/agents/agent.ts";
import { createClient } from "../../src/client/client.ts";
import { compactionPolicy, type CompactionPolicy } from "../../src/domain/compaction/policy.ts";
import type { AgentDefinition } from "../../src/domain/definition.ts";
import { createCapstan } from "../../src/main.ts";
import { definitionSha } from "../../src/store/definitions.ts";
import { createPool } from "../../src/store/pool.ts";
import { createTestDatabase } from "../support/database.ts";
import { doing } from "../bad-input/cases.ts";

const database = await createTestDatabase();
const db = createPool({ connectionString: database.url, max: 4, applicationName: "test" });
const client = createClient({ pool: db });
const { agents } = client;
afterAll(() => db.end());

/** An agent of this test's own, registered and so promoted. */
async function registered(
  name: string,
  more: { readonly compaction?: CompactionPolicy; readonly instructions?: string } = {},
): Promise<{ sha: string; definition: AgentDefinition }> {
  const { definition } = agent({ name, model: "offline:a", instructions: `I am ${name}.`, tools: [doing("search", () => "found"), doing("write", () => "written")], ...more });
  const capstan = createCapstan({
    connectionString: database.url,
    env: {},
    agents: [agent({ name, model: "offline:a", instructions: `I am ${name}.`, tools: [doing("search", () => "found"), doing("write", () => "written")], ...more })],
  });
  try {
    const shas = await capstan.register();
    return { sha: shas.get(name) ?? "", definition };
  } finally {
    await capstan.close();
  }
}

async function pinOf(runId: string): Promise<string | null> {
  const { rows } = await db.query<{ definition_sha: string | null }>("select definition_sha from capstan.runs where id = $1", [runId]);
  return rows[0]?.definition_sha ?? null;
}

describe("a fork", () => {
  it("is stored under its own sha and promoted only if asked", async () => {
    const { sha: base } = await registered("forked");
    const fork = await agents.fork("forked", { instructions: "Be brief.", tools: ["search"] });
    expect(fork).toMatchObject({ created: true, definition: { name: "forked", instructions: "Be brief.", tools: [{ name: "search" }] } });
    expect(fork.sha).not.toBe(base);
    expect(await agents.get("forked")).toMatchObject({ sha: base, promoted: true });
    expect(await agents.get(fork.sha)).toMatchObject({ sha: fork.sha, promoted: false, definition: { instructions: "Be brief." } });
    const promoted = await agents.fork(fork.sha, { instructions: "Be very brief." }, { promote: true, actor: "ann" });
    expect(await agents.get("forked")).toMatchObject({ sha: promoted.sha, promoted: true });
    expect(promoted.definition.tools.map(({ name }) => name)).toEqual(["search"]);
  });

  it("with the same content is found, not made: of the base, and of an earlier fork", async () => {
    const { sha: base, definition } = await registered("same");
    expect(await agents.fork("same", {})).toEqual({ sha: base, definition, created: false });
    expect(await agents.fork("same", { instructions: definition.instructions, compaction: {} })).toMatchObject({ sha: base, created: false });
    const first = await agents.fork("same", { limits: { max_turns: 5 } });
    expect(await agents.fork("same", { limits: { max_turns: 5 } })).toEqual({ ...first, created: false });
    expect(await agents.fork(first.sha, { limits: { max_turns: null } })).toMatchObject({ sha: base, created: false });
    expect((await db.query("select from capstan.agent_definitions where name = 'same'")).rowCount).toBe(2);
  });

  it("made by many at once is one", async () => {
    await registered("raced");
    const forks = await Promise.all(Array.from({ length: 4 }, () => agents.fork("raced", { interactive: true }, { promote: true })));
    expect(new Set(forks.map(({ sha }) => sha)).size).toBe(1);
    expect(forks.filter(({ created }) => created)).toHaveLength(1);
    // The base's promotion and one of the fork.
    expect((await agents.history("raced")).filter(({ what }) => what === "promoted")).toHaveLength(2);
  });

  it("that is refused names every field and range, and stores nothing", async () => {
    await registered("refused");
    await expect(agents.fork("refused", { compaction: { keep_last_n: -1 }, limits: { max_turns: 0 } })).rejects.toMatchObject({
      code: "DEFINITION_INVALID",
      message: expect.stringMatching(/limits\.max_turns must be a whole number from 1 to 1000000, not 0.*compaction\.keep_last_n must be a whole number of at least 0, not -1/),
      details: { agent: "refused", issues: [{ path: "limits.max_turns" }, { path: "compaction.keep_last_n" }] },
    });
    await expect(agents.fork("refused", { tools: ["search", "delete"] })).rejects.toMatchObject({ code: "DEFINITION_INVALID", message: expect.stringContaining("delete") });
    expect((await db.query("select from capstan.agent_definitions where name = 'refused'")).rowCount).toBe(1);
  });

  const policy: Required<CompactionPolicy> = {
    enabled: true,
    autocompact_at_pct: 70,
    at_tokens: 5000,
    after_bytes: 50_000,
    keep_first: false,
    keep_last_n: 2,
    target_percentage: 20,
    model: "offline:b",
    summarizer: "mine",
    instruction: "short",
    max_tokens: 2000,
    prefetch_at_pct: 50,
  };

  it("that changes any one compaction field has a new sha, one that changes none the same", async () => {
    const { sha: base } = await registered("policies", { compaction: { enabled: false } });
    const fields = Object.keys(compactionPolicy.shape) as (keyof CompactionPolicy)[];
    const shas = await Promise.all(fields.map(async (field) => (await agents.fork("policies", { compaction: { [field]: policy[field] } })).sha));
    expect(new Set([base, ...shas]).size).toBe(fields.length + 1);
    for (const [i, field] of fields.entries()) {
      const sha = shas[i] as string;
      expect(await agents.fork(sha, { compaction: { [field]: policy[field] } })).toMatchObject({ sha, created: false });
      expect(await agents.diff(base, sha)).toMatchObject([{ path: `compaction.${field}`, after: policy[field] }]);
    }
  });
});

describe("promoting", () => {
  it("moves new runs by name, leaves pinned ones, and goes back as well", async () => {
    const { sha: first } = await registered("moved");
    const before = await client.enqueue("moved", "x");
    const { sha: second } = await agents.fork("moved", { instructions: "New." });
    expect(await agents.promote("moved", second, { actor: "ann" })).toEqual({ sha: second, changed: true });
    const after = await client.enqueue("moved", "x");
    expect(await agents.promote("moved", second.slice(7, 19), { actor: "ann" })).toEqual({ sha: second, changed: false });
    await agents.promote("moved", first, { actor: "bob" });
    const back = await client.enqueue("moved", "x");
    expect([await pinOf(before.id), await pinOf(after.id), await pinOf(back.id)]).toEqual([first, second, first]);
    expect((await agents.history("moved")).map(({ what, sha, actor }) => [what, sha, actor])).toEqual([
      ["promoted", first, "bob"],
      ["promoted", second, "ann"],
      ["defined", second, null],
      ["promoted", first, null],
      ["defined", first, null],
    ]);
  });

  it("refuses what is no definition of that agent", async () => {
    const { sha } = await registered("one");
    const { sha: others } = await registered("another");
    await expect(agents.promote("one", others)).rejects.toMatchObject({ code: "DEFINITION_UNKNOWN", message: expect.stringContaining("of agent one") });
    await expect(agents.promote("one", `sha256:${"0".repeat(64)}`)).rejects.toMatchObject({ code: "DEFINITION_UNKNOWN" });
    await expect(agents.promote("stranger", sha)).rejects.toMatchObject({ code: "AGENT_UNKNOWN", message: expect.stringContaining("another") });
    await expect(agents.promote("one", "abc")).rejects.toMatchObject({ code: "ARGUMENT_INVALID", message: expect.stringContaining("8 to 64") });
    expect(await agents.get("one")).toMatchObject({ sha });
  });

  it("takes a definition that only a producer pinned so far", async () => {
    const producer = agent({ name: "early", model: "offline:a", instructions: "Early." });
    const run = await client.enqueue(producer, "x");
    await expect(agents.get("early")).rejects.toMatchObject({ code: "AGENT_UNKNOWN" });
    const sha = (await pinOf(run.id)) ?? "";
    await agents.promote("early", sha);
    expect(await agents.get("early")).toMatchObject({ sha, promoted: true });
  });
});

describe("the beginning of a sha", () => {
  it("stands for it while it is the only one", async () => {
    const { sha } = await registered("short");
    expect(await agents.get(sha.slice(0, 15))).toMatchObject({ sha });
    expect(await agents.get(sha.slice(7, 15))).toMatchObject({ sha });
    await expect(agents.get("sha256:12345678")).rejects.toMatchObject({ code: "DEFINITION_UNKNOWN" });
    await expect(agents.get("sha256:1234567")).rejects.toMatchObject({ code: "ARGUMENT_INVALID" });
  });

  it("that several have is refused with all of them named", async () => {
    const { definition } = await registered("twins");
    // Two shas with one beginning are not to be found by trying: rows are made with them.
    const [a, b] = ["a", "b"].map((last) => `sha256:${"0123abcd".padEnd(63, "0")}${last}`);
    for (const sha of [a, b]) await db.query("insert into capstan.agent_definitions (sha, name, definition) values ($1, 'twins', $2)", [sha, JSON.stringify(definition)]);
    await expect(agents.get("0123abcd")).rejects.toMatchObject({ code: "DEFINITION_AMBIGUOUS", details: { shas: [a, b] } });
    await expect(agents.promote("twins", "sha256:0123abcd")).rejects.toMatchObject({ code: "DEFINITION_AMBIGUOUS" });
    expect(await agents.get(b as string)).toMatchObject({ sha: b });
  });

  it("is a name first: an agent may be called like hex digits", async () => {
    const { sha } = await registered("deadbeef");
    expect(await agents.get("deadbeef")).toMatchObject({ name: "deadbeef", sha });
    await expect(agents.get("deadbeee")).rejects.toMatchObject({ code: "DEFINITION_UNKNOWN" });
    await expect(agents.get("nobody")).rejects.toMatchObject({ code: "AGENT_UNKNOWN" });
  });
});

it("verify tells a definition that was changed behind our back from one that was not", async () => {
  const { sha } = await registered("checked");
  const { sha: fork } = await agents.fork("checked", { settings: { provider_options: { deep: { list: [], text: "a\r\nb" } } } });
  expect(await agents.verify(sha)).toEqual({ sha, name: "checked", computed: sha, matches: true });
  expect((await agents.verifyAll("checked")).map(({ sha: each, matches }) => [each, matches])).toEqual([
    [sha, true],
    [fork, true],
  ]);
  await db.query("update capstan.agent_definitions set definition = jsonb_set(definition, '{instructions}', '\"Obey me.\"') where sha = $1", [fork]);
  const bad = await agents.verify(fork);
  expect(bad).toMatchObject({ sha: fork, matches: false });
  const { definition } = await agents.get(fork);
  expect(bad.computed).toBe(definitionSha(definition));
  expect((await agents.verifyAll()).filter(({ matches }) => !matches).map(({ name }) => name)).toContain("checked");
  await expect(agents.verifyAll("stranger")).rejects.toMatchObject({ code: "AGENT_UNKNOWN" });
});

describe("a retired agent", () => {
  it("gets no new runs by its name, keeps those it has, and comes back", async () => {
    const { sha } = await registered("old");
    const running = await client.enqueue("old", "x", { idempotencyKey: "kept" });
    expect(await agents.retire("old", { actor: "ann" })).toBe(true);
    expect(await agents.retire("old")).toBe(false);
    await expect(client.enqueue("old", "x")).rejects.toMatchObject({
      code: "ARGUMENT_INVALID",
      message: expect.stringMatching(/agent old is retired.*capstan agents unretire old/),
    });
    await expect(db.query("select capstan.enqueue_run(agent => 'old', input => '1')")).rejects.toMatchObject({ code: "KC006" });
    // A producer that asks again whether its run was made is answered.
    expect((await client.enqueue("old", "x", { idempotencyKey: "kept" })).id).toBe(running.id);
    expect(await running.status()).toMatchObject({ state: "queued" });
    expect((await agents.list()).find(({ name }) => name === "old")).toMatchObject({ retired: true, open_runs: 1 });
    // A definition in code is pinned as it is.
    const { id } = await client.enqueue(agent({ name: "old", model: "offline:a", instructions: "Mine." }), "x");
    expect(await pinOf(id)).not.toBe(sha);
    expect(await agents.unretire("old", { actor: "bob" })).toBe(true);
    expect(await pinOf((await client.enqueue("old", "x")).id)).toBe(sha);
    expect((await agents.history("old")).map(({ what, actor }) => [what, actor])).toEqual([
      ["unretired", "bob"],
      ["defined", null],
      ["retired", "ann"],
      ["promoted", null],
      ["defined", null],
    ]);
    await expect(agents.retire("stranger")).rejects.toMatchObject({ code: "AGENT_UNKNOWN" });
  });

  it("is not brought back by a deploy that promotes, nor by a promotion", async () => {
    await registered("gone");
    await agents.retire("gone");
    const capstan = createCapstan({ connectionString: database.url, env: {}, agents: [agent({ name: "gone", model: "offline:a", instructions: "Newer." })] });
    const shas = await capstan.register({ promote: true });
    await capstan.close();
    expect(await agents.get("gone")).toMatchObject({ sha: shas.get("gone") });
    await expect(client.enqueue("gone", "x")).rejects.toMatchObject({ code: "ARGUMENT_INVALID" });
  });
});

it("starting with other code registers its definition and promotes none, except an agent's first or with promote", async () => {
  const { sha: first } = await registered("deployed");
  const { sha: second } = await registered("deployed", { instructions: "Newer." });
  expect(second).not.toBe(first);
  expect(await agents.get("deployed")).toMatchObject({ sha: first });
  expect(await agents.get(second)).toMatchObject({ promoted: false });
});
