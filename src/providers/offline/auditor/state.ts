/**
 * An audit as one line of JSON: what `audit-state`, the auditor's own summarizer, writes in place of the conversation,
 * and what the auditor goes on from when it finds that line at the top of a compacted one.
 */
import { z } from "zod";
import { canonicalJson, type JsonObject, type JsonValue } from "../../../domain/json.ts";
import type { Message } from "../../../domain/transcript/message.ts";
import type { Audit } from "./audit.ts";
import { RULES, type FindingRule } from "./finding.ts";
import { stateOfReference } from "./references.ts";
import { resultSchemas } from "./results.ts";
import { auditInput } from "./settings.ts";

const LABEL = "audit-state: ";

const pairs = <T extends z.ZodType>(value: T) => z.array(z.tuple([z.string(), value]));
const rule = z.enum(RULES.map((each) => each.rule) as [FindingRule, ...FindingRule[]]);
const facts = resultSchemas.file_facts.shape.files.element;

const stateSchema = z.object({
  settings: auditInput,
  turns: z.int().nonnegative(),
  open_lists: z.array(z.object({ path: z.string(), offset: z.number() })),
  files: pairs(z.number().nullable()),
  folders: z.array(z.string()),
  skipped_folders: z.array(z.string()),
  files_left_out: z.number(),
  facts: pairs(facts.nullable()),
  searched: z.array(z.string()),
  truncated_searches: z.number(),
  readings: pairs(z.object({ to: z.number(), of: z.number(), next: z.number().optional(), fence: z.boolean() })),
  reads: z.number(),
  lines_read: z.number(),
  references: z.array(z.object({ path: z.string(), line: z.number(), target: z.string(), kind: z.enum(["link", "import"]), turn: z.number() })),
  findings: z.array(z.object({ rule, path: z.string(), line: z.number().optional(), text: z.string(), turn: z.number() })),
  saves: z.number(),
  checks: z.number(),
  saved_as: z.string().optional(),
});
export type AuditState = z.output<typeof stateSchema>;

/** One line for the machine, and above it what a person wants to know. */
export function summaryOf(audit: Audit): string {
  const open = audit.openLists.length;
  return [
    `DONE: ${audit.turns} turns; ${audit.folders.size} folders listed, ${audit.facts.size} files measured, ${audit.searched.size} searches, ${audit.reads} reads of ${audit.linesRead} lines; ${audit.findings.length} findings.`,
    `OPEN: ${open === 0 ? "no folders" : `${open} folders`} to list, ${audit.files.size - audit.facts.size > 0 ? `${audit.files.size - audit.facts.size} files to measure` : "no files to measure"}; ${audit.savedAs === undefined ? "the report is not saved yet" : `the report is saved as ${audit.savedAs}`}.`,
    `${LABEL}${canonicalJson(stateOf(audit))}`,
  ].join("\n");
}

function stateOf(audit: Audit): JsonObject {
  return {
    settings: { ...audit.settings },
    turns: audit.turns,
    open_lists: audit.openLists.map((list) => ({ ...list })),
    files: [...audit.files].map(([path, { sizeBytes }]): JsonValue => [path, sizeBytes ?? null]),
    folders: [...audit.folders],
    skipped_folders: [...audit.skippedFolders],
    files_left_out: audit.filesLeftOut,
    facts: [...audit.facts].map(([path, each]): JsonValue => [path, each === null ? null : (onlySet(each) as JsonValue)]),
    searched: [...audit.searched],
    truncated_searches: audit.truncatedSearches,
    readings: [...audit.readings].map(([path, { toLine, totalLines, nextLine, inFence }]): JsonValue => [
      path,
      onlySet({ to: toLine, of: totalLines, next: nextLine, fence: inFence }) as JsonValue,
    ]),
    reads: audit.reads,
    lines_read: audit.linesRead,
    // Those that lead to files that exist have nothing more to tell.
    references: audit.references.filter((reference) => stateOfReference(audit, reference).kind !== "good").map((reference): JsonValue => ({ ...reference })),
    findings: audit.findings.map((finding): JsonValue => onlySet(finding) as JsonValue),
    saves: audit.saves,
    checks: audit.checks,
    ...(audit.savedAs === undefined ? {} : { saved_as: audit.savedAs }),
  };
}

function onlySet(object: object): object {
  return Object.fromEntries(Object.entries(object).filter(([, value]) => value !== undefined));
}

/** Undefined when the conversation begins with its task, as it does before the first compaction. */
export function earlierState(messages: readonly Message[]): AuditState | undefined {
  const first = messages[0];
  if (first?.role !== "user") return undefined;
  for (const part of first.content) {
    if (part.type !== "text") continue;
    const at = part.text.lastIndexOf(LABEL);
    if (at < 0) continue;
    const line = part.text.slice(at + LABEL.length).split("\n", 1)[0] ?? "";
    const parsed = stateSchema.safeParse(jsonOf(line));
    if (parsed.success) return parsed.data;
  }
  return undefined;
}

function jsonOf(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

export function restore(audit: Audit, state: AuditState): void {
  audit.openLists.splice(0, audit.openLists.length, ...state.open_lists);
  for (const [path, size] of state.files) audit.files.set(path, { sizeBytes: size ?? undefined });
  for (const path of state.folders) audit.folders.add(path);
  audit.skippedFolders.push(...state.skipped_folders);
  audit.filesLeftOut = state.files_left_out;
  for (const [path, each] of state.facts) audit.facts.set(path, each);
  for (const key of state.searched) audit.searched.add(key);
  audit.truncatedSearches = state.truncated_searches;
  for (const [path, { to, of, next, fence }] of state.readings) audit.readings.set(path, { toLine: to, totalLines: of, nextLine: next, inFence: fence });
  audit.reads = state.reads;
  audit.linesRead = state.lines_read;
  audit.references.push(...state.references);
  audit.findings.push(...state.findings.map(({ line, ...finding }) => ({ ...finding, ...(line === undefined ? {} : { line }) })));
  audit.saves = state.saves;
  audit.checks = state.checks;
  audit.savedAs = state.saved_as;
  audit.gauge = { turn: state.turns, isHigh: false };
}
