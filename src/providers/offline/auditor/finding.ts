export type FindingRule =
  | "secret"
  | "conflict_marker"
  | "broken_reference"
  | "focused_test"
  | "debugger"
  | "todo"
  | "duplicate"
  | "large_file"
  | "long_line"
  | "empty_file"
  | "unreadable";

/** In the order of the report: what needs somebody today comes first. */
export const RULES: readonly { readonly rule: FindingRule; readonly title: string; readonly looked: string }[] = [
  { rule: "secret", title: "Looks like a secret", looked: "searched for forms of well-known keys; only the first characters are shown" },
  { rule: "conflict_marker", title: "Merge conflict left behind", looked: "searched for conflict markers at the start of a line" },
  { rule: "broken_reference", title: "Relative reference to a file that is not there", looked: "Markdown links and JavaScript or TypeScript imports in the lines that were read" },
  { rule: "focused_test", title: "Only this test runs", looked: "`.only(` in the lines that were read" },
  { rule: "debugger", title: "Debugger statement", looked: "in the lines that were read" },
  // The words are searched for in the audited folder; nothing of ours is left to do here.
  { rule: "todo", title: "Left to do", looked: "searched for TODO, FIXME, XXX and HACK" },
  { rule: "duplicate", title: "Same content as another file", looked: "digests of all measured files" },
  { rule: "large_file", title: "Large file", looked: "over 1 MiB" },
  { rule: "long_line", title: "Very long line", looked: "over 300 bytes, in code" },
  { rule: "empty_file", title: "Empty file", looked: "0 bytes" },
  { rule: "unreadable", title: "Could not be looked at", looked: "calls that failed" },
];

export interface Finding {
  readonly rule: FindingRule;
  readonly path: string;
  /** Absent when it is about the file as a whole. */
  readonly line?: number;
  readonly text: string;
  /** Number of the assistant message whose calls brought it to light. */
  readonly turn: number;
}

export function findingLine({ path, line, text }: Finding): string {
  const shown = text.replace(/\s+/g, " ").trim();
  const short = shown.length <= 160 ? shown : `${shown.slice(0, 160).toWellFormed()}…`;
  return `${line === undefined ? path : `${path}:${line}`}: ${short}`;
}
