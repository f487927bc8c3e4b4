import { existsSync } from "node:fs";
import { dirname, join, normalize } from "node:path";
import { describe, expect, it } from "vitest";
import { buildProgram } from "../../src/cli/program.ts";
import { exitCodes } from "../../src/cli/exit.ts";
import { readConfig } from "../../src/config.ts";
import { eventSchemas, waitReasons } from "../../src/domain/event.ts";
import { outcomeText } from "../../src/compaction/outcomes.ts";
import { compactionPolicy, resolvePolicy } from "../../src/domain/compaction/policy.ts";
import { compactionReasons } from "../../src/domain/compaction/types.ts";
import { compactionFailpoints, lifeFailpoints, turnFailpoints, webhookFailpoints } from "../../src/engine/failpoints.ts";
import { genAi } from "../../src/telemetry/names.ts";
import { VERSION } from "../../src/version.ts";
import type { Command } from "commander";
import { filesIn, readRoot, root, sourceFiles } from "./sources.ts";

const pages = [
  "README.md",
  "CONTRIBUTING.md",
  "CHANGELOG.md",
  "SECURITY.md",
  ...["docs", "ops", "examples"].flatMap((folder) => filesIn(join(root, folder), ".md").map((name) => `${folder}/${name}`)),
];
const manifest = JSON.parse(readRoot("package.json")) as { readonly version: string; readonly scripts: Readonly<Record<string, string>> };

/** Look like variables and are none. */
const notVariables = new Set(["CAPSTAN_STATE_GROWTH", "CAPSTAN_COMPACTION_POLICY", "CAPSTAN_TOOL"]);

/** First column of the tables of one section (or of the whole page), without its code marks. */
function firstColumn(page: string, heading?: string): string[] {
  const text = readRoot(page);
  const section = heading === undefined ? text : (text.split(`\n## ${heading}\n`)[1]?.split("\n## ")[0] ?? "");
  return [...section.matchAll(/^\| `([^|]+)` \|/gm)].flatMap(([, cell = ""]) => cell.split("`, `"));
}

/** The fragment that a forge makes of a heading. */
function fragment(heading: string): string {
  return heading
    .toLowerCase()
    .replaceAll(/[^\p{L}\p{N} _-]/gu, "")
    .replaceAll(" ", "-");
}

const withoutCode = (text: string): string => text.replaceAll(/```[\s\S]*?```/g, "");

describe("README", () => {
  it("gives the two commands in these words", () => {
    const lines = readRoot("README.md")
      .split("\n")
      .map((line) => line.trim());
    expect(lines).toContain("npm ci && npm run demo");
    expect(lines).toContain("npm ci && npm test");
  });

  it("shows the code that examples/quickstart.ts runs", () => {
    const [, code] = /```ts\n(import [\s\S]*?)\n```/.exec(readRoot("README.md")) ?? [];
    const example = readRoot("examples/quickstart.ts").replace(/"\.\.\/src\/index\.ts";.*/, '"capstan";');
    expect(code).toBe(example.trimEnd());
  });
});

describe("links and names", () => {
  it.each(pages)("%s leads only to what exists", (page) => {
    const missing: string[] = [];
    for (const [, target = ""] of withoutCode(readRoot(page)).matchAll(/\]\(([^)\s]+)\)/g)) {
      if (/^https?:/.test(target)) continue;
      const [file = "", anchor] = target.split("#");
      const path = file === "" ? page : normalize(join(dirname(page), file));
      if (!existsSync(join(root, path))) missing.push(target);
      else if (anchor !== undefined) {
        const anchors = [...readRoot(path).matchAll(/^#+ (.+)$/gm)].map(([, heading = ""]) => fragment(heading));
        if (!anchors.includes(anchor)) missing.push(target);
      }
    }
    expect(missing).toEqual([]);
  });

  it.each(pages)("%s names only files and scripts that exist", (page) => {
    const text = readRoot(page);
    const files = [...text.matchAll(/`((?:src|test|docs|ops|examples|bench|migrations|\.ci)\/[\w./-]+\.?\w*)`/g)].map(([, name = ""]) => name);
    expect(files.filter((name) => !existsSync(join(root, name)))).toEqual([]);
    const scripts = [...text.matchAll(/npm run ([\w:-]+)/g)].map(([, name = ""]) => name);
    expect(scripts.filter((name) => !Object.hasOwn(manifest.scripts, name))).toEqual([]);
  });
});

describe("what documents list", () => {
  it("is one version in package.json, src/version.ts and the changelog", () => {
    expect(VERSION).toBe(manifest.version);
    expect(readRoot("CHANGELOG.md")).toMatch(new RegExp(`^## ${VERSION.replaceAll(".", "\\.")}( |$)`, "m"));
  });

  it("has every event type", () => {
    expect(firstColumn("docs/architecture.md", "Event types").toSorted()).toEqual(Object.keys(eventSchemas).toSorted());
  });

  it("has every wait reason", () => {
    expect(firstColumn("docs/state-machine.md", "Wait reasons").toSorted()).toEqual(waitReasons.toSorted());
  });

  it("has every failpoint", () => {
    expect(firstColumn("docs/failure-modes.md", "Failpoints").toSorted()).toEqual([...turnFailpoints, ...compactionFailpoints, ...lifeFailpoints, ...webhookFailpoints].toSorted());
  });

  it("has every reason why a compaction changes nothing, with its severity and the policy's field that helps", () => {
    const rows = [...readRoot("docs/compaction.md").matchAll(/^\| `(\w+)` \| (info|warning|error) \| ([^|]+) \| ([^|]+) \|$/gm)].map(
      ([, reason = "", severity = "", , advice = ""]) => ({ reason, severity, advice }),
    );
    expect(rows.map(({ reason }) => reason)).toEqual([...compactionReasons]);
    for (const reason of compactionReasons) {
      const row = rows.find((each) => each.reason === reason);
      const { severity, setting } = outcomeText(reason);
      expect(row?.severity, reason).toBe(severity);
      const field = setting?.startsWith("compaction.") === true ? setting.slice("compaction.".length) : undefined;
      if (field !== undefined) expect(row?.advice, reason).toContain(`\`${field}\``);
    }
  });

  it("has every field of a compaction policy with its default", () => {
    const rows = [...(readRoot("docs/compaction.md").split("\n## Settings\n")[1]?.split("\n## ")[0] ?? "").matchAll(/^\| `(\w+)` \| ([^|]*) \|/gm)].map(
      ([, field = "", fallback = ""]) => [field, fallback] as const,
    );
    expect(rows.map(([field]) => field).toSorted()).toEqual(Object.keys(compactionPolicy.shape).toSorted());
    for (const [field, value] of Object.entries(resolvePolicy(undefined))) expect(rows).toContainEqual([field, String(value)]);
  });

  it("has every environment variable with its default", () => {
    const known = [...readRoot("src/config.ts").matchAll(/^ {2}([A-Z][A-Z_]+): /gm)].map(([, name = ""]) => name);
    const listed = [...readRoot("docs/configuration.md").matchAll(/^\| `([A-Z][A-Z_]+)` \|([^|]*)\|/gm)].map(
      ([, name = "", fallback = ""]) => [name, fallback.replaceAll("`", "").trim()] as const,
    );
    expect(listed.map(([name]) => name).toSorted()).toEqual(known.toSorted());
    const { worker, summarizeSlots, names, dir, logLevel } = readConfig({});
    const defaults: Readonly<Record<string, number | string>> = {
      CAPSTAN_SCHEMA: names.schema,
      CAPSTAN_WORKER_SCHEMA: names.workerSchema,
      CAPSTAN_DIR: dir,
      CAPSTAN_SLOTS: worker.slots,
      CAPSTAN_SUMMARIZE_SLOTS: summarizeSlots,
      CAPSTAN_LEASE_MS: worker.leaseMs,
      CAPSTAN_HEARTBEAT_MS: worker.heartbeatMs,
      CAPSTAN_SWEEP_MS: worker.sweepMs,
      CAPSTAN_LOST_JOB_MS: worker.lostJobMs,
      CAPSTAN_GRACE_MS: worker.graceMs,
      CAPSTAN_STICKY_TURNS: worker.stickyTurns?.turns ?? 0,
      CAPSTAN_POOL_MAX: worker.poolMax,
      CAPSTAN_LOG_LEVEL: logLevel,
    };
    for (const [name, value] of Object.entries(defaults)) expect(listed).toContainEqual([name, value.toLocaleString("en")]);
  });

  it("has every variable that any file reads", () => {
    const page = readRoot("docs/configuration.md");
    const read = new Set(sourceFiles().flatMap((file) => readRoot(`src/${file}`).match(/\b(CAPSTAN|OTEL)_[A-Z_]*[A-Z]\b/g) ?? []));
    expect([...read].filter((name) => !notVariables.has(name) && !page.includes(name))).toEqual([]);
  });

  it("has log sentences that the code says, and the span attributes that it sets", () => {
    const code = sourceFiles()
      .map((file) => readRoot(`src/${file}`))
      .join("\n");
    const page = readRoot("docs/telemetry.md");
    const sentences = [...page.matchAll(/^\| (?:debug|info|warn|error) \| ([^|]*) \|/gm)].flatMap(([, cell = ""]) => cell.slice(1, -1).split("`, `"));
    expect(sentences.length).toBeGreaterThan(10);
    expect(sentences.filter((sentence) => !code.includes(sentence))).toEqual([]);
    const { operation: _, ...attributes } = genAi;
    expect(Object.values(attributes).filter((name) => !page.includes(`\`${name}\``))).toEqual([]);
    expect([...page.matchAll(/`(gen_ai\.[\w.]+|capstan\.(?!runs|wishes|workers)\w+)`/g)].map(([, name = ""]) => name).filter((name) => !code.includes(`"${name}"`))).toEqual([]);
  });

  it("has every SQLSTATE that the functions raise, and the client a name for each", () => {
    const states = (text: string) => [...new Set(text.match(/\bKC\d{3}\b/g))].toSorted();
    const raised = states(
      filesIn(join(root, "migrations"), ".sql")
        .map((name) => readRoot(`migrations/${name}`))
        .join("\n"),
    );
    expect(states(readRoot("docs/sql.md"))).toEqual(raised);
    expect(states(readRoot("src/client/errors.ts"))).toEqual(raised);
  });

  it("has every argument of enqueue_run", () => {
    const [, list = ""] = /CREATE FUNCTION capstan\.enqueue_run\(([\s\S]*?)\n\) RETURNS/.exec(readRoot("migrations/0001_functions.sql")) ?? [];
    const args = [...list.matchAll(/^\s+(\w+) /gm)].map(([, name = ""]) => name);
    expect(firstColumn("docs/sql.md", "capstan.enqueue_run → uuid").toSorted()).toEqual(args.toSorted());
  });

  it("has every command with its options", () => {
    const listed = [...readRoot("docs/cli.md").matchAll(/^\| `([^`]+)` \| ([^|]*) \| (.*) \|$/gm)].map(([, usage, summary, options]) =>
      `${usage}: ${summary} ${options}`.trimEnd(),
    );
    expect(listed).toEqual(commandsOf(buildProgram(), []));
  });

  it("has every exit code", () => {
    const listed = [...readRoot("docs/cli.md").matchAll(/^\| (\d[\d, ]*) \|/gm)].flatMap(([, codes = ""]) => codes.split(", ").map(Number));
    expect(listed.toSorted((a, b) => a - b)).toEqual([...Object.values(exitCodes), 130, 143]);
  });

  it("has every failure code of a model", () => {
    const [, union = ""] = /export type ModelFailureCode =([\s\S]*?);/.exec(readRoot("src/engine/model-port.ts")) ?? [];
    const codes = [...union.matchAll(/"(\w+)"/g)].map(([, code = ""]) => code);
    const listed = firstColumn("docs/providers.md", "Failures");
    expect(codes.filter((code) => !listed.includes(code))).toEqual([]);
  });
});

/** One line per command that does something, as docs/cli.md has it. */
function commandsOf(command: Command, above: readonly string[]): string[] {
  return command.commands.flatMap((child) => {
    const path = [...above, child.name()];
    if (child.commands.length > 0) return commandsOf(child, path);
    const args = child.registeredArguments.map((argument) => {
      const name = `${argument.name()}${argument.variadic ? "..." : ""}`;
      return argument.required ? `<${name}>` : `[${name}]`;
    });
    const options = child.options.filter(({ flags }) => !flags.includes("--json")).map(({ flags }) => `\`${flags}\``);
    return [`${[...path, ...args].join(" ")}: ${child.summary()} ${options.join(", ")}`.trimEnd()];
  });
}
