/** The report of an audit: Markdown, without a date or a duration, so that the same folder gives the same report. */
import type { Audit } from "./audit.ts";
import { findingLine, RULES, type Finding } from "./finding.ts";
import { kindOf } from "./paths.ts";
import { stateOfReference } from "./references.ts";

/** Shown of one kind: enough to act on, and a folder full of one fault gives no report of megabytes. */
const SHOWN_PER_RULE = 50;

export function writeReport(audit: Audit): string {
  const findings = allFindings(audit);
  const sections = RULES.flatMap(({ rule, title, looked }) => {
    const found = findings.filter((finding) => finding.rule === rule);
    if (found.length === 0) return [];
    const more = found.length > SHOWN_PER_RULE ? [`- and ${found.length - SHOWN_PER_RULE} more`] : [];
    return [`## ${title} (${found.length})`, "", sentence(looked), "", ...found.slice(0, SHOWN_PER_RULE).map((finding) => `- ${findingLine(finding)}`), ...more, ""];
  });
  const clean = RULES.filter(({ rule }) => rule !== "unreadable" && !findings.some((finding) => finding.rule === rule)).map(({ title }) => title.toLowerCase());
  return [
    `# Audit of ${audit.settings.folder === "." ? "the folder" : audit.settings.folder}`,
    "",
    "Written by offline:auditor, a program that follows fixed rules. It is not a language model, and it understands nothing of what it read.",
    ...(audit.note === undefined ? [] : ["", audit.note]),
    "",
    "## What was looked at",
    "",
    ...scope(audit),
    "",
    ...kindTable(audit),
    "",
    `## Findings: ${findings.length}`,
    "",
    ...(findings.length === 0 ? ["None.", ""] : []),
    ...sections,
    ...(clean.length === 0 ? [] : ["## Looked for and not found", "", sentence(clean.join(", ")), ""]),
  ].join("\n");
}

function allFindings(audit: Audit): Finding[] {
  return [...audit.findings, ...duplicates(audit), ...brokenReferences(audit)].toSorted((a, b) => (a.path === b.path ? (a.line ?? 0) - (b.line ?? 0) : a.path < b.path ? -1 : 1));
}

export function brokenReferences(audit: Audit): Finding[] {
  return audit.references.flatMap((reference): Finding[] => {
    const state = stateOfReference(audit, reference);
    if (state.kind !== "broken") return [];
    return [
      {
        rule: "broken_reference",
        path: reference.path,
        line: reference.line,
        turn: reference.turn,
        text: `${reference.kind} to ${reference.target}, but there is no ${state.path}`,
      },
    ];
  });
}

function duplicates(audit: Audit): Finding[] {
  const first = new Map<string, string>();
  const found: Finding[] = [];
  for (const path of audit.files.keys()) {
    const facts = audit.facts.get(path);
    // Short files (an empty module, a licence line) are alike without anybody having copied them.
    if (facts?.digest === undefined || (facts.size_bytes ?? 0) < 64) continue;
    const same = first.get(facts.digest);
    if (same === undefined) first.set(facts.digest, path);
    else found.push({ rule: "duplicate", path, text: `same ${facts.size_bytes} bytes as ${same}`, turn: 0 });
  }
  return found;
}

function scope(audit: Audit): string[] {
  const { settings, readings } = audit;
  const whole = [...readings.values()].filter(({ toLine, totalLines }) => totalLines > 0 && toLine >= totalLines).length;
  const unlisted = audit.openLists.length;
  const leftOut =
    audit.filesLeftOut === 0
      ? ""
      : ` (the limit of ${settings.max_files}; at least ${audit.filesLeftOut} more were left out${unlisted === 0 ? "" : `, and ${unlisted} folders were not listed`})`;
  return [
    `- ${audit.files.size} files in ${audit.folders.size - audit.skippedFolders.length} folders${leftOut}`,
    ...(audit.skippedFolders.length === 0
      ? []
      : [`- passed over: ${audit.skippedFolders.toSorted().slice(0, 20).join(", ")}${audit.skippedFolders.length > 20 ? " and others" : ""}`]),
    `- ${audit.linesRead} lines read in ${readings.size} files, ${whole} of them to the end (limits: ${settings.max_reads} reads of ${settings.lines_per_read} lines)`,
    `- ${audit.searched.size} searches in all text files${audit.truncatedSearches === 0 ? "" : `, ${audit.truncatedSearches} of which found more than they may return`}`,
    ...(audit.otherMessages === 0 ? [] : [`- ${audit.otherMessages} further messages came in; rules cannot follow them`]),
  ];
}

function kindTable(audit: Audit): string[] {
  const kinds = new Map<string, { files: number; lines: number; bytes: number }>();
  for (const [path, { sizeBytes }] of audit.files) {
    const facts = audit.facts.get(path);
    const row = kinds.get(kindOf(path)) ?? { files: 0, lines: 0, bytes: 0 };
    kinds.set(kindOf(path), { files: row.files + 1, lines: row.lines + (facts?.lines ?? 0), bytes: row.bytes + (facts?.size_bytes ?? sizeBytes ?? 0) });
  }
  const rows = [...kinds].toSorted(([a, x], [b, y]) => y.files - x.files || (a < b ? -1 : 1));
  return ["| kind | files | lines | bytes |", "| --- | ---: | ---: | ---: |", ...rows.map(([kind, row]) => `| ${kind} | ${row.files} | ${row.lines} | ${row.bytes} |`)];
}

function sentence(text: string): string {
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
}
