/** `capstan agents …` on a real database, and what it is put together from. */
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import fc from "fast-check";
import pc from "picocolors";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { agent } from "../../src/agents/agent.ts";
import { readOverlay } from "../../src/cli/agents-overlay.ts";
import { changeLines } from "../../src/cli/definition-text.ts";
import { diffLines, hunks } from "../../src/cli/line-diff.ts";
import { PostgresDefinitionStore } from "../../src/store/definitions.ts";
import { createPool } from "../../src/store/pool.ts";
import { doing } from "../bad-input/cases.ts";
import { createTestDatabase } from "../support/database.ts";
import { capstan, type CliOptions } from "./support.ts";

const database = await createTestDatabase();
const folder = await mkdtemp(join(tmpdir(), "capstan-agents-"));
const db = createPool({ connectionString: database.url, max: 1, applicationName: "test" });
afterAll(async () => {
  await db.end();
  await rm(folder, { recursive: true, force: true });
});
const run = (args: readonly string[], options: CliOptions = {}) => capstan(["agents", ...args], { ...options, env: { DATABASE_URL: database.url } });
const json = <T>(text: string): T => JSON.parse(text) as T;

let base: string;
beforeAll(async () => {
  const { definition } = agent({
    name: "clerk",
    model: "offline:a",
    instructions: "Look first.\nThen answer.\nBe brief.",
    tools: [doing("search", () => ""), doing("write", () => "")],
    compaction: { enabled: true, summarizer: "mine", max_tokens: 2000 },
  });
  base = await new PostgresDefinitionStore(db, (text) => text).register(definition);
});

describe("agents", () => {
  it("fork, diff, promote, history and show tell one story", async () => {
    const file = join(folder, "overlay.json");
    await writeFile(file, JSON.stringify({ instructions: "Look first.\nThen think.\nBe brief.", compaction: { keep_last_n: 9 } }));
    const forked = await run([
      "fork",
      "clerk",
      "--overlay",
      file,
      "--set",
      "compaction.autocompact_at_pct=70",
      "--set",
      'tools=["search"]',
      "--unset",
      "compaction.max_tokens",
      "--json",
    ]);
    expect(forked).toMatchObject({ code: 0, stderr: "" });
    const fork = json<{ sha: string; changes: { path: string }[] }>(forked.stdout);
    expect(fork).toMatchObject({
      name: "clerk",
      created: true,
      promoted: false,
      forked_from: base,
      definition: { compaction: { enabled: true, summarizer: "mine", keep_last_n: 9, autocompact_at_pct: 70 } },
    });
    expect(fork.changes.map(({ path }) => path)).toEqual(["compaction.autocompact_at_pct", "compaction.keep_last_n", "compaction.max_tokens", "instructions", "tools.write"]);

    const short = fork.sha.slice(7, 17);
    expect(json<object>((await run(["show", "clerk", "--at", short, "--json"])).stdout)).toMatchObject({ sha: fork.sha, promoted: false });
    const compared = await run(["diff", "clerk", base.slice(0, 17), short]);
    expect(compared.stdout).toMatch(
      /^compaction\.keep_last_n: \(unset\) → 9\ncompaction\.max_tokens: 2000 → \(unset\)\ninstructions\n {4}Look first\.\n {2}- Then answer\.\n {2}\+ Then think\.\n {4}Be brief\.$/m,
    );
    expect(await run(["diff", "clerk"])).toMatchObject({ code: 1, stderr: expect.stringMatching(/^DEFINITION_UNKNOWN: agent clerk has had no other promoted definition/) });

    expect(await run(["promote", "clerk", short])).toEqual({ code: 0, stdout: `clerk is ${fork.sha} now\n`, stderr: "" });
    expect(json<object>((await run(["diff", "clerk", "--json"])).stdout)).toMatchObject({ before: base, after: fork.sha });
    const history = json<{ history: { what: string; sha: string; actor: string }[] }>((await run(["history", "clerk", "--json"])).stdout).history;
    expect(history.map(({ what, sha, actor }) => [what, sha, actor])).toEqual([
      ["promoted", fork.sha, "cli"],
      ["defined", fork.sha, null],
      ["promoted", base, null],
      ["defined", base, null],
    ]);
    expect((await run(["history", "clerk", "--limit", "1"])).stdout).toMatch(/^AT +WHAT +SHA +BY\n\S+ +promoted +sha256:\w{12} +cli\n$/);
  });

  it("show says which settings have no effect", async () => {
    const { stdout } = await run(["show", "clerk", "--at", base]);
    expect(stdout).toContain('compaction.max_tokens has no effect: it is for the built-in summarizer and compaction.summarizer is "mine"');
  });

  it("fork with --promote moves new runs at once; nothing different is said to be so", async () => {
    const { stdout, stderr } = await run(["fork", "clerk", "--at", base, "--set", "limits.max_turns=7", "--promote"]);
    expect(stdout).toMatch(/^sha256:[0-9a-f]{64}\n$/);
    expect(stderr).toContain('limits: (unset) → {"max_turns":7}');
    expect((await db.query("select promoted_sha from capstan.agents where name = 'clerk'")).rows).toEqual([{ promoted_sha: stdout.trim() }]);
    const same = await run(["fork", "clerk", "--set", "limits.max_turns=7"]);
    expect(same).toMatchObject({ code: 0, stdout, stderr: expect.stringContaining("nothing is different") });
  });

  it("retire refuses runs by name until unretire", async () => {
    expect((await run(["retire", "clerk"])).stdout).toBe("clerk is retired now\n");
    expect(await capstan(["enqueue", "clerk", "x"], { env: { DATABASE_URL: database.url } })).toMatchObject({
      code: 2,
      stderr: expect.stringMatching(/^ARGUMENT_INVALID: agent clerk is retired/),
    });
    expect((await run(["list"])).stdout).toMatch(/^clerk \(retired\) /m);
    expect(json<object>((await run(["unretire", "clerk", "--json"])).stdout)).toEqual({ name: "clerk", retired: false, changed: true });
  });

  it("verify exits 4 when a definition was changed past us", async () => {
    expect(await run(["verify"])).toMatchObject({ code: 0, stdout: "" });
    await db.query("update capstan.agent_definitions set definition = definition || '{\"interactive\": true}' where sha = $1", [base]);
    const bad = await run(["verify", "clerk"]);
    expect(bad.code).toBe(4);
    expect(bad.stdout).toMatch(new RegExp(`^clerk  ${base}  its content has sha256:[0-9a-f]{64}\n$`));
  });

  it.each([
    [
      ["fork", "clerk", "--set", "compaction.keep_last_n=-1"],
      1,
      /^DEFINITION_INVALID: agent clerk cannot be forked so: compaction\.keep_last_n must be a whole number of at least 0, not -1\n$/,
    ],
    [["fork", "clerk"], 2, /^USAGE: nothing to change/],
    [["fork", "stranger", "--unset", "limits"], 1, /^AGENT_UNKNOWN: no agent "stranger"; the database knows clerk\n$/],
    [["promote", "clerk", "00000000"], 1, /^DEFINITION_UNKNOWN: no definition 00000000 of agent clerk/],
    [["promote", "clerk", "latest"], 2, /^ARGUMENT_INVALID: "latest" is no sha/],
  ])("say what is wrong in one line: %j", async (args, code, message) => {
    expect(await run(args)).toEqual({ code, stdout: "", stderr: expect.stringMatching(message) });
  });
});

describe("an overlay on the command line", () => {
  it("is JSON where it is some, else text", async () => {
    const set = ["model=offline:b", "interactive=true", "limits.max_turns=7", 'instructions="7"', 'compaction={"model":"x"}', "settings.stop_sequences=[]", "input_schema=a=b"];
    expect(await readOverlay({ set, unset: ["grants", "limits.deadline_ms"] })).toEqual({
      model: "offline:b",
      interactive: true,
      limits: { max_turns: 7, deadline_ms: null },
      instructions: "7",
      compaction: { model: "x" },
      settings: { stop_sequences: [] },
      input_schema: "a=b",
      grants: null,
    });
  });

  it("wins over the file field by field", async () => {
    const file = join(folder, "over.json");
    await writeFile(file, '{"limits": {"max_turns": 1, "deadline_ms": 2}, "compaction": null}');
    expect(await readOverlay({ set: ["limits.max_turns=3", "compaction.enabled=true"], unset: [], overlay: file })).toEqual({
      limits: { max_turns: 3, deadline_ms: 2 },
      compaction: { enabled: true },
    });
    await writeFile(file, "[1]");
    await expect(readOverlay({ set: [], unset: [], overlay: file })).rejects.toThrow("must be an object of fields");
    await expect(readOverlay({ set: [], unset: [], overlay: join(folder, "none.json") })).rejects.toThrow(/cannot read .*none\.json/);
  });

  it.each([
    [["model"], [], "give a field and its value"],
    [["settings.provider_options.a=1"], [], "what is deeper is given as JSON"],
    [["model=a", "model=b"], [], "given twice"],
    [["model=a"], ["model"], "given twice"],
    [["limits.max_turns=1"], ["limits"], "contradicts limits.max_turns"],
    [["limits={}", "limits.max_turns=1"], [], "contradicts limits"],
  ])("cannot mean two things: %j %j", async (set, unset, message) => {
    await expect(readOverlay({ set, unset })).rejects.toMatchObject({ code: "USAGE", message: expect.stringContaining(message) });
  });
});

describe("differences for people", () => {
  it("give both texts again, whatever they are", () => {
    const text = fc.array(fc.constantFrom("a", "b", "c", ""), { maxLength: 12 }).map((lines) => lines.join("\n"));
    fc.assert(
      fc.property(text, text, (before, after) => {
        const lines = diffLines(before, after);
        const without = (mark: string): string =>
          lines
            .filter((line) => line.mark !== mark)
            .map((line) => line.text)
            .join("\n");
        expect([without("+"), without("-")]).toEqual([before, after]);
        if (before === after) expect(hunks(lines).every((line) => line === "  …")).toBe(true);
      }),
    );
  });

  it("leave out what is far from a change, and do not hang on long texts", () => {
    const old = Array.from({ length: 30 }, (_, n) => `line ${n}`);
    const now = old.with(10, "new");
    expect(hunks(diffLines(old.join("\n"), now.join("\n")))).toEqual(["  …", "  line 8", "  line 9", "- line 10", "+ new", "  line 11", "  line 12", "  …"]);
    const long = (word: string): string => Array.from({ length: 20_000 }, (_, n) => `${word} ${n}`).join("\n");
    expect(diffLines(`same\n${long("a")}`, `same\n${long("b")}`)).toHaveLength(40_001);
  });

  it("are safe to show", () => {
    const lines = changeLines([{ path: "instructions", before: "a\u001B[2Jb\nc", after: "d\u0007\ne" }], pc.createColors(false));
    expect(lines.join("\n")).not.toMatch(/(?!\n)\p{Cc}/u);
  });
});
