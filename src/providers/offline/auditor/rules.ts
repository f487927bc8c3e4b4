/** Rules that look at lines. Expressions here are ours and linear in a line that the tools have clipped. */
import type { Facts, Hit } from "./results.ts";
import type { Finding } from "./finding.ts";
import { extensionOf, isCode, kindOf } from "./paths.ts";

export const LARGE_FILE_BYTES = 1024 * 1024;
const LONG_LINE_BYTES = 300;

/** What is searched for in all text files, and how a hit is judged. */
export const searches: readonly { readonly anyOf: readonly string[]; readonly wholeWord: boolean; judge(hit: Hit): Omit<Finding, "turn"> | undefined }[] = [
  {
    // What others have left over in the folder that is audited.
    anyOf: ["TODO", "FIXME", "XXX", "HACK"],
    wholeWord: true,
    judge: ({ path, line, text }) => ({ rule: "todo", path, line, text }),
  },
  {
    anyOf: ["AKIA", "ghp_", "gho_", "ghs_", "xoxb-", "xoxp-", "AIza", "sk-ant-", "sk-proj-", "PRIVATE KEY-----"],
    wholeWord: false,
    judge({ path, line, text }) {
      const found = secretForms.exec(text)?.[0];
      return found === undefined ? undefined : { rule: "secret", path, line, text: `${found.slice(0, 6)}… (${found.length} characters)` };
    },
  },
  {
    anyOf: ["<<<<<<< ", ">>>>>>> "],
    wholeWord: false,
    judge: ({ path, line, text, found }) => (text.startsWith(found) ? { rule: "conflict_marker", path, line, text } : undefined),
  },
];

const secretForms =
  /AKIA[0-9A-Z]{16}|gh[pos]_[A-Za-z0-9]{36}|xox[bp]-[A-Za-z0-9-]{20,}|AIza[0-9A-Za-z_-]{35}|sk-(?:ant|proj)-[A-Za-z0-9_-]{20,}|-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----/;

export function judgeFacts(facts: Facts): Omit<Finding, "turn">[] {
  const { path, kind, size_bytes: size = 0, longest_line: longest } = facts;
  if (kind === "folder") return [];
  const found: Omit<Finding, "turn">[] = [];
  if (size === 0) found.push({ rule: "empty_file", path, text: "0 bytes" });
  if (size > LARGE_FILE_BYTES) found.push({ rule: "large_file", path, text: `${(size / 1024 / 1024).toFixed(1)} MiB` });
  if (longest !== undefined && longest.bytes > LONG_LINE_BYTES && isCode(path)) found.push({ rule: "long_line", path, line: longest.line, text: `${longest.bytes} bytes` });
  return found;
}

/** A reference found in a line, still to be looked up. */
export interface Reference {
  readonly path: string;
  readonly line: number;
  readonly target: string;
  readonly kind: "link" | "import";
  readonly turn: number;
}

export interface ReadLines {
  readonly path: string;
  readonly fromLine: number;
  readonly text: string;
  readonly turn: number;
  /** Whether the line before the first was inside a fenced block of a Markdown file. */
  readonly inFence: boolean;
}

export interface LineFindings {
  readonly findings: readonly Finding[];
  readonly references: readonly Reference[];
  readonly inFence: boolean;
}

export function judgeLines({ path, fromLine, text, turn, inFence }: ReadLines): LineFindings {
  const findings: Finding[] = [];
  const references: Reference[] = [];
  const isMarkdown = kindOf(path) === "Markdown";
  const isScript = ["TypeScript", "JavaScript"].includes(kindOf(path));
  const isTest = /(?:^|[./_-])(?:test|spec)s?[./_-]/.test(path);
  let fenced = inFence;
  for (const [i, line] of text.split("\n").entries()) {
    const at = { path, line: fromLine + i, turn };
    if (isMarkdown) {
      if (/^\s*(?:```|~~~)/.test(line)) fenced = !fenced;
      else if (!fenced) for (const target of linksIn(line)) references.push({ ...at, target, kind: "link" });
    }
    if (!isScript) continue;
    const imported = /^\s*(?:import|export|\})[^"'`]*["'](\.{1,2}\/[^"'`?]+)["']/.exec(line)?.[1];
    if (imported !== undefined) references.push({ ...at, target: imported, kind: "import" });
    if (isTest && /^\s*(?:it|test|describe)\.only\(/.test(line)) findings.push({ ...at, rule: "focused_test", text: line });
    if (/^\s*debugger;/.test(line)) findings.push({ ...at, rule: "debugger", text: line });
  }
  return { findings, references, inFence: fenced };
}

/** Relative targets of a Markdown line, without fragment and query; code spans are left out. */
function linksIn(line: string): string[] {
  const prose = line.replace(/`[^`]*`/g, "");
  return [...prose.matchAll(/\]\(<?([^()<>\s]+)>?(?:\s+"[^"]*")?\)/g)].flatMap(([, written = ""]) => {
    const target = written.split(/[#?]/, 1)[0] ?? "";
    if (target === "" || target.startsWith("/") || /^[A-Za-z][A-Za-z0-9+.-]*:/.test(target)) return [];
    return [decoded(target)];
  });
}

function decoded(target: string): string {
  try {
    return decodeURIComponent(target);
  } catch {
    return target;
  }
}

/** Paths any of which would make an import good, most likely first. */
export function importCandidates(path: string): string[] {
  const extension = extensionOf(path);
  const stem = extension === "" ? path : path.slice(0, -extension.length - 1);
  const compiled = ["js", "jsx", "mjs", "cjs"].includes(extension) ? [`${stem}.ts`, `${stem}.tsx`, `${stem}.mts`, `${stem}.d.ts`] : [];
  return [path, ...compiled, ...["ts", "tsx", "js", "mjs", "json", "d.ts"].map((end) => `${path}.${end}`), `${path}/index.ts`, `${path}/index.js`];
}
