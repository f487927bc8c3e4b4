/** What the demo's runs are to do: parts of the folder large enough for dozens of turns, and the whole of it at length. */
import { readdir, stat } from "node:fs/promises";
import { join } from "node:path";
import type { AuditSettings } from "../../agents/auditor.ts";
import { COMPACTED, SELF_COMPACTED, WARNED, type DemoAgentName } from "./agents.ts";
import { DEFAULT_SKIPPED_FOLDERS } from "../../tools/folder-tools.ts";

export interface PlannedAudit {
  readonly agent: DemoAgentName;
  readonly tenant: string;
  readonly input: AuditSettings;
  /** Roughly: for deciding when a good part is done. */
  readonly expectedTurns: number;
}

/** A huge folder is sampled: the plan needs a rough idea only. */
const MAX_ENTRIES = 20_000;
const MAX_DEPTH = 4;
const FACTS_BATCH = 25;
const SEARCH_CALLS = 3 / 40;
/** Reads in an ordinary run: about this many, so that it takes dozens of turns and its transcript stays small. */
const WANTED_READS = 56;
/** Reads in the long run: whole files, until the transcript is well above the growth warning. */
const LONG_READS = 96;
const BYTES_PER_LINE = 40;

interface Part {
  files: number;
  folders: number;
  bytes: number;
}

export async function planAudits(root: string, runs: number): Promise<PlannedAudit[]> {
  const parts = await measureParts(root);
  const whole = parts.get(".") ?? { files: 0, folders: 1, bytes: 0 };
  const ranked = [...parts].filter(([path, part]) => path !== "." && part.files >= 8).toSorted(([, a], [, b]) => b.bytes - a.bytes);
  // The same long work three times: with nothing but the warning, compacted in the background, and compacted when the agent says so.
  const agents: DemoAgentName[] = [WARNED, ...(runs > 2 ? [COMPACTED] : []), ...(runs > 3 ? [SELF_COMPACTED] : [])];
  const long = agents.map((agent) => (agent === WARNED ? longAudit(whole) : compactedAudit(whole)));
  const rest: (readonly [string, Part])[] = ranked.slice(0, runs - long.length);
  while (rest.length < runs - long.length) rest.push([".", whole]);
  const audits = [...long, ...rest.map(([path, part], i) => shortAudit(path, part, i))];
  return audits.map((audit, i) => ({ ...audit, agent: agents[i] ?? WARNED, tenant: i % 2 === 0 ? "acme" : "globex" }));
}

function longAudit(whole: Part): Omit<PlannedAudit, "tenant" | "agent"> {
  const input = { folder: ".", max_files: 300, max_reads: LONG_READS, lines_per_read: 2_000, calls_per_turn: 3 };
  return { input, expectedTurns: estimate(whole, Math.min(whole.files, LONG_READS), input) };
}

/** Fewer files: all that their auditor must know stands in each of its summaries. */
function compactedAudit(whole: Part): Omit<PlannedAudit, "tenant" | "agent"> {
  const input = { folder: ".", max_files: 120, max_reads: LONG_READS, lines_per_read: 120, calls_per_turn: 3 };
  return { input, expectedTurns: estimate(whole, Math.min(whole.files, LONG_READS), input) };
}

function shortAudit(folder: string, part: Part, nth: number): Omit<PlannedAudit, "tenant" | "agent"> {
  const lines = part.bytes / BYTES_PER_LINE;
  const linesPerRead = Math.round(Math.min(50, Math.max(8, lines / WANTED_READS)));
  const input = { folder, max_files: 120, max_reads: WANTED_READS + nth, lines_per_read: linesPerRead, calls_per_turn: 2 };
  return { input, expectedTurns: estimate(part, Math.min(Math.max(part.files, lines / linesPerRead), input.max_reads), input) };
}

function estimate({ folders, files }: Part, reads: number, { max_files, calls_per_turn }: AuditSettings): number {
  const looked = Math.min(files, max_files);
  return Math.ceil((folders + looked / FACTS_BATCH + looked * SEARCH_CALLS + reads) / calls_per_turn) + 2;
}

/** Files, folders and bytes below each folder, itself included; not exact where files come and go. */
async function measureParts(root: string): Promise<Map<string, Part>> {
  const parts = new Map<string, Part>();
  const skipped = new Set(DEFAULT_SKIPPED_FOLDERS);
  const add = (folders: readonly string[], more: Part): void => {
    for (const path of folders) {
      const part = parts.get(path) ?? { files: 0, folders: 0, bytes: 0 };
      parts.set(path, { files: part.files + more.files, folders: part.folders + more.folders, bytes: part.bytes + more.bytes });
    }
  };
  let entries = 0;
  const walk = async (folders: readonly string[]): Promise<void> => {
    const here = folders.at(-1) as string;
    add(folders, { files: 0, folders: 1, bytes: 0 });
    const found = await readdir(join(root, here), { withFileTypes: true }).catch((error: NodeJS.ErrnoException) => {
      // Below the root this is the auditor's to report.
      if (here === ".") throw error;
      return [];
    });
    for (const entry of found) {
      if (++entries > MAX_ENTRIES) return;
      const path = here === "." ? entry.name : `${here}/${entry.name}`;
      if (entry.isDirectory() && !skipped.has(entry.name) && folders.length <= MAX_DEPTH) await walk([...folders, path]);
      if (entry.isFile()) add(folders, { files: 1, folders: 0, bytes: await sizeOf(join(root, path)) });
    }
  };
  await walk(["."]);
  return parts;
}

async function sizeOf(path: string): Promise<number> {
  return await stat(path).then(
    (facts) => facts.size,
    () => 0,
  );
}
