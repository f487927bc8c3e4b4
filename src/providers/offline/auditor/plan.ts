/** What to do next, from the audit so far: list, measure, search, read, look references up, save, answer. */
import type { JsonObject } from "../../../domain/json.ts";
import { searchKey, type Audit } from "./audit.ts";
import { isCode, kindOf } from "./paths.ts";
import { stateOfReference } from "./references.ts";
import { writeReport } from "./report.ts";
import type { AuditToolName } from "./results.ts";
import { searches } from "./rules.ts";

export interface PlannedCall {
  readonly name: AuditToolName;
  readonly input: JsonObject;
}

export type Step = { readonly kind: "call"; readonly text: string; readonly calls: readonly PlannedCall[] } | { readonly kind: "answer"; readonly text: string };

const GAUGE_EVERY_TURNS = 6;
const FACTS_BATCH = 25;
const SEARCH_BATCH = 40;
const LOOKUP_BATCH = 100;
const MAX_LOOKUPS = 400;
const HITS_PER_SEARCH = 200;
/** As in the tools: larger files are not read by them. */
const READABLE_BYTES = 8 * 1024 * 1024;

export function nextStep(audit: Audit): Step {
  return context(audit) ?? list(audit) ?? measure(audit) ?? search(audit) ?? read(audit) ?? lookUp(audit) ?? save(audit) ?? answer(audit);
}

/** An agent that may look at its gauge looks every few turns, and asks for a summary as the tool's guidance says. */
function context(audit: Audit): Step | undefined {
  if (!audit.tools.has("context")) return undefined;
  const { gauge, turns } = audit;
  if (gauge?.isHigh === true && gauge.turn === turns)
    return { kind: "call", text: "My context is filling up. I ask for it to be compacted.", calls: [{ name: "context", input: { op: "compact" } }] };
  if (turns - (gauge?.turn ?? 0) < GAUGE_EVERY_TURNS) return undefined;
  return { kind: "call", text: "Looking at how full my context is.", calls: [{ name: "context", input: { op: "self" } }] };
}

function list(audit: Audit): Step | undefined {
  // Beyond the limit, folders are not even listed: a huge tree must end too.
  if (!audit.tools.has("list_folder") || audit.openLists.length === 0 || audit.filesLeftOut > 0) return undefined;
  const lists = audit.openLists.slice(0, audit.settings.calls_per_turn);
  return { kind: "call", text: `Listing ${lists.map(({ path }) => path).join(", ")}.`, calls: lists.map(({ path, offset }) => ({ name: "list_folder", input: { path, offset } })) };
}

function measure(audit: Audit): Step | undefined {
  if (!audit.tools.has("file_facts")) return undefined;
  const open = [...audit.files.keys()].filter((path) => !audit.facts.has(path));
  const batches = batchesOf(open, FACTS_BATCH).slice(0, audit.settings.calls_per_turn);
  if (batches.length === 0) return undefined;
  return {
    kind: "call",
    text: `Counting lines and bytes; ${open.length} of ${audit.files.size} files to go.`,
    calls: batches.map((paths) => ({ name: "file_facts", input: { paths } })),
  };
}

function search(audit: Audit): Step | undefined {
  if (!audit.tools.has("search_text")) return undefined;
  const calls = batchesOf(textFiles(audit), SEARCH_BATCH).flatMap((paths) =>
    searches.map(({ anyOf, wholeWord }): PlannedCall => ({ name: "search_text", input: { any_of: [...anyOf], paths, whole_word: wholeWord, max_hits: HITS_PER_SEARCH } })),
  );
  const open = calls.filter(({ input }) => !audit.searched.has(searchKey(input)));
  if (open.length === 0) return undefined;
  return { kind: "call", text: `Searching for work left over, secrets and conflict markers; ${open.length} searches to go.`, calls: open.slice(0, audit.settings.calls_per_turn) };
}

function read(audit: Audit): Step | undefined {
  const budget = audit.settings.max_reads - audit.reads;
  if (!audit.tools.has("read_file") || budget <= 0) return undefined;
  const calls: PlannedCall[] = [];
  const reading: string[] = [];
  for (const path of textFiles(audit).toSorted(byInterest)) {
    if (calls.length >= Math.min(budget, audit.settings.calls_per_turn)) break;
    const before = audit.readings.get(path);
    const from = before === undefined ? 1 : before.nextLine;
    if (from === undefined) continue;
    calls.push({ name: "read_file", input: { path, from_line: from, max_lines: audit.settings.lines_per_read } });
    reading.push(`${path} from line ${from}`);
  }
  if (calls.length === 0) return undefined;
  return { kind: "call", text: `Reading ${reading.join(", ")}.`, calls };
}

function lookUp(audit: Audit): Step | undefined {
  if (!audit.tools.has("file_facts")) return undefined;
  const open = new Set(
    audit.references.flatMap((reference) => {
      const state = stateOfReference(audit, reference);
      return state.kind === "unknown" ? state.paths : [];
    }),
  );
  const lookedUp = [...audit.facts.keys()].filter((path) => !audit.files.has(path)).length;
  const paths = [...open].slice(0, Math.max(0, MAX_LOOKUPS - lookedUp));
  const batches = batchesOf(paths, LOOKUP_BATCH).slice(0, audit.settings.calls_per_turn);
  if (batches.length === 0) return undefined;
  return { kind: "call", text: `Looking up ${paths.length} paths that are referred to.`, calls: batches.map((batch) => ({ name: "file_facts", input: { paths: batch } })) };
}

/** A save whose outcome is unknown is checked first and repeated once: the tool itself is never repeated for us. */
function save(audit: Audit): Step | undefined {
  if (audit.savedAs !== undefined || !audit.tools.has("save_report") || audit.saves >= 2) return undefined;
  if (audit.saves === 1 && audit.checks === 0 && audit.tools.has("check_report")) {
    return { kind: "call", text: "It is not known whether the report was saved. Looking before I save it again.", calls: [{ name: "check_report", input: {} }] };
  }
  return { kind: "call", text: "Saving the report.", calls: [{ name: "save_report", input: { markdown: writeReport(audit) } }] };
}

function answer(audit: Audit): Step {
  const report = writeReport(audit);
  const where = audit.savedAs === undefined ? "The report was not saved as a file." : `Saved as ${audit.savedAs}.`;
  return { kind: "answer", text: `${report}\n${where}\n` };
}

function textFiles(audit: Audit): string[] {
  return [...audit.files.keys()].filter((path) => {
    const facts = audit.facts.get(path);
    const size = facts?.size_bytes ?? 0;
    return facts?.kind === "text" && size > 0 && size <= READABLE_BYTES;
  });
}

/** Documents first, then code: they are what refers to other files. The sort is stable, so the list's order decides the rest. */
function byInterest(a: string, b: string): number {
  return interest(a) - interest(b);
}

function interest(path: string): number {
  if (kindOf(path) === "Markdown") return 0;
  return isCode(path) ? 1 : 2;
}

function batchesOf(paths: readonly string[], size: number): string[][] {
  return Array.from({ length: Math.ceil(paths.length / size) }, (_, i) => paths.slice(i * size, (i + 1) * size));
}
