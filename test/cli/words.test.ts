import { resolve } from "node:path";
import { execFileSync } from "node:child_process";
import { describe, expect, it } from "vitest";
import { loadAgents } from "../../src/cli/agents-module.ts";
import { completionScript } from "../../src/cli/completion.ts";
import { failureOf } from "../../src/cli/errors.ts";
import { eventText } from "../../src/cli/event-text.ts";
import { bytes, duration, gauge, parseDuration, parseRunId, parseWhen, short } from "../../src/cli/format.ts";
import { readInput } from "../../src/cli/input.ts";
import { brief, printable } from "../../src/cli/output.ts";
import { buildProgram } from "../../src/cli/program.ts";
import { stateFilter } from "../../src/cli/runs-list.ts";
import { tableLines } from "../../src/cli/table.ts";
import { fixtureAgents } from "./support.ts";

describe("words for people", () => {
  it("are short and say their unit", () => {
    expect([240, 7_400, 180_000, 7_200_000, 200_000_000].map(duration)).toEqual(["240ms", "7s", "3m", "2h", "2d"]);
    expect([0, 950, 1_234, 178_000, 1_300_000].map(short)).toEqual(["0", "950", "1.2k", "178k", "1.3M"]);
    expect([10, 2_048, 3 * 1_024 * 1_024].map(bytes)).toEqual(["10 B", "2.0 KB", "3.0 MB"]);
    expect([gauge(178_000, 200_000), gauge(178_000, null), gauge(null, 200_000)]).toEqual(["ctx 178k / 200k (89%)", "ctx 178k", ""]);
  });

  it("are aligned by what is seen, not by colour codes", () => {
    const columns = [
      { title: "A", value: (row: string) => row },
      { title: "N", align: "right" as const, value: () => "1" },
    ];
    const lines = tableLines(columns, ["\u001B[31mred\u001B[39m", "longer"]);
    expect(lines).toEqual(["A       N", "\u001B[31mred\u001B[39m     1", "longer  1"]);
  });

  it("cannot steer a terminal", () => {
    expect(printable("a\u001B[2Jb\u001B]0;title\u0007c\u0000d\re\u202Ef\n\tg")).toBe("abc\ufffdd\ufffde\ufffdf\n\tg");
    expect(brief(`${"😀".repeat(10)}x`, 4)).toMatch(/^.{1,4}…$/u);
  });

  it("show an event that this build does not know as it is", () => {
    const event = { seq: 1, type: "run.teleported", version: 9, turn: 0, attempt: 0, at: "", payload: { to: "\u001B[31mMars" } };
    expect(eventText(event).text).toBe('run.teleported v9 {"to":"\\u001b[31mMars"}');
  });
});

describe("what users write", () => {
  it("is JSON when it looks and parses like it, else text", async () => {
    const read = (text: string | undefined, form = {}) => readInput(text, form);
    expect(await Promise.all(['{"a": 1}', "a [draft]", "42", '"quoted"', '"Yes," he said', undefined].map((text) => read(text)))).toEqual([
      { a: 1 },
      "a [draft]",
      "42",
      "quoted",
      '"Yes," he said',
      null,
    ]);
    expect(await read('{"a": 1}', { text: true })).toBe('{"a": 1}');
    expect(await read("42", { asJson: true })).toBe(42);
    expect(await read("[draft] a letter", { text: true })).toBe("[draft] a letter");
    for (const broken of ["{bad json", "[draft] a letter"])
      await expect(read(broken)).rejects.toMatchObject({ code: "USAGE", exitCode: 2, message: expect.stringContaining("--text") });
    await expect(read("{", { asJson: true })).rejects.toMatchObject({ code: "USAGE", exitCode: 2 });
    await expect(read("@/nowhere/at/all")).rejects.toMatchObject({ code: "USAGE" });
  });

  it("as a time needs a zone or is a distance from now", () => {
    expect(parseWhen("--run-at", "2026-12-01T08:00:00+01:00").toISOString()).toBe("2026-12-01T07:00:00.000Z");
    expect(Math.abs(parseWhen("--run-at", "+10m").getTime() - Date.now() - 600_000)).toBeLessThan(1_000);
    for (const bad of ["2026-12-01T08:00:00", "soon", "+5", "2026-13-01T00:00:00Z"]) expect(() => parseWhen("--run-at", bad)).toThrow(/zone/);
    expect(parseDuration("--timeout", "1.5h")).toBe(5_400_000);
    expect(() => parseRunId("0190")).toThrow(/not a run id/);
  });

  it("as a state may be a reason to wait", () => {
    expect(stateFilter("awaiting_input")).toEqual({ states: ["waiting"], waitReason: "input" });
    expect(stateFilter("failed,cancelled")).toEqual({ states: ["failed", "cancelled"] });
    expect(() => stateFilter("awaiting_godot")).toThrow(/awaiting_input/);
  });

  it("as an agents module gives all that it exports, and its models", async () => {
    const { agents, models } = await loadAgents([fixtureAgents]);
    expect(agents.map(({ name }) => name).toSorted()).toEqual(["helper", "talker"]);
    expect(Object.keys(models)).toEqual(["fixture:model"]);
    await expect(loadAgents(["./nowhere.ts"])).rejects.toMatchObject({ code: "AGENTS_UNREADABLE" });
    await expect(loadAgents([resolve(import.meta.dirname, "support.ts")])).rejects.toMatchObject({ code: "AGENTS_MISSING" });
  });
});

describe("errors", () => {
  const pgError = (code: string) => Object.assign(new Error("told by the server"), { code });
  it.each([
    [pgError("42P01"), "NOT_MIGRATED", 3],
    [pgError("42501"), "DATABASE_ERROR", 1],
    [pgError("57P03"), "DATABASE_UNREACHABLE", 1],
    [Object.assign(new AggregateError([Object.assign(new Error("connect refused"), { code: "ECONNREFUSED" })]), { code: "ECONNREFUSED" }), "DATABASE_UNREACHABLE", 1],
    [Object.assign(new Error("no room"), { code: "EMBEDDED_INIT_FAILED" }), "EMBEDDED_INIT_FAILED", 1],
    [new TypeError("x is not a function"), "UNEXPECTED", 1],
    ["thrown text", "UNEXPECTED", 1],
  ])("%s is %s", (error, code, exitCode) => {
    expect(failureOf(error)).toMatchObject({ code, exitCode });
    expect(failureOf(error).message).not.toBe("");
  });
});

describe("the commands", () => {
  const program = buildProgram();
  const all = program.commands.flatMap((command) => (command.commands.length > 0 ? command.commands : [command]));

  it("all take --json, have a summary and examples", () => {
    for (const command of all) {
      expect(
        command.options.map(({ long }) => long),
        command.name(),
      ).toContain("--json");
      expect(command.summary(), command.name()).not.toBe("");
      let help = "";
      command.configureOutput({ writeOut: (text) => (help += text) }).outputHelp();
      expect(help, command.name()).toMatch(/Examples:\n {2}\$ capstan /);
      // Each line can be typed: `capstan` stands where a command of ours is, and before nothing else.
      for (const [, word] of help.matchAll(/^ {2}\$ .*?\bcapstan (\S+)/gm)) expect(program.commands.map((each) => each.name())).toContain(word);
      expect(help.match(/^ {2}\$ (?!.*\bcapstan ).*/gm)).toBeNull();
      expect(help, command.name()).toContain("Exit codes:");
    }
  });

  it("complete in bash", () => {
    const script = `${completionScript(program, "bash")}
      COMP_WORDS=(capstan runs li); COMP_CWORD=2; _capstan; echo "\${COMPREPLY[@]}"
      COMP_WORDS=(capstan runs list --ten); COMP_CWORD=3; _capstan; echo "\${COMPREPLY[@]}"
      COMP_WORDS=(capstan doc); COMP_CWORD=1; _capstan; echo "\${COMPREPLY[@]}"`;
    expect(execFileSync("bash", ["-c", script], { encoding: "utf8" })).toBe("list\n--tenant\ndoctor\n");
  });
});
