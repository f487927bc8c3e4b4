/**
 * An audit so far, folded from the conversation alone: the same messages give the same audit on any worker, after any
 * crash. A call counts as done once it is in the conversation, however it ended, so that every turn goes forward.
 */
import type { CanonicalCall } from "../../../domain/call.ts";
import type { Message } from "../../../domain/transcript/message.ts";
import type { Finding } from "./finding.ts";
import { joinPath } from "./paths.ts";
import { answeredCalls, type AnsweredCall, type AuditResult, type Facts } from "./results.ts";
import { judgeFacts, judgeLines, searches, type Reference } from "./rules.ts";
import { readSettings, type AuditSettings } from "./settings.ts";
import { earlierState, restore } from "./state.ts";

/** More references than this are not collected: what is broken shows long before. */
const MAX_REFERENCES = 5_000;

export interface Reading {
  readonly toLine: number;
  readonly totalLines: number;
  /** Undefined at the end of the file, and when a read failed. */
  readonly nextLine: number | undefined;
  readonly inFence: boolean;
}

export class Audit {
  readonly settings: AuditSettings;
  readonly note: string | undefined;
  readonly tools: ReadonlySet<string>;
  /** Assistant messages so far. */
  readonly turns: number;
  /** User messages after the first, none of which a program of rules can follow. */
  readonly otherMessages: number;
  /** The last answer made no calls: the audit has been given. */
  readonly isAnswered: boolean;

  readonly openLists: { path: string; offset: number }[];
  readonly files = new Map<string, { readonly sizeBytes: number | undefined }>();
  readonly folders = new Set<string>();
  readonly skippedFolders: string[] = [];
  filesLeftOut = 0;
  /** By path, of files in the list and of paths that were only looked up; null when there is none. */
  readonly facts = new Map<string, Facts | null>();
  readonly searched = new Set<string>();
  truncatedSearches = 0;
  readonly readings = new Map<string, Reading>();
  reads = 0;
  linesRead = 0;
  readonly references: Reference[] = [];
  readonly findings: Finding[] = [];
  saves = 0;
  checks = 0;
  savedAs: string | undefined;
  /** What the gauge said when it was last looked at, and in which turn. */
  gauge: { readonly turn: number; readonly isHigh: boolean } | undefined;

  constructor(call: Pick<CanonicalCall, "messages" | "tools">) {
    const { messages } = call;
    const earlier = earlierState(messages);
    const { settings, note } = earlier === undefined ? readSettings(messages) : { settings: earlier.settings, note: undefined };
    this.settings = settings;
    this.note = note;
    this.tools = new Set(call.tools.map((tool) => tool.name));
    const turnsBefore = earlier?.turns ?? 0;
    this.turns = turnsBefore + messages.filter((message) => message.role === "assistant").length;
    this.otherMessages = Math.max(0, messages.filter((message) => message.role === "user").length - 1);
    this.isAnswered = lastAnswerIsFinal(messages);
    this.openLists = [{ path: settings.folder, offset: 0 }];
    if (earlier !== undefined) restore(this, earlier);
    for (const answered of answeredCalls(messages)) this.#add({ ...answered, turn: turnsBefore + answered.turn });
  }

  #add(call: AnsweredCall): void {
    switch (call.name) {
      case "list_folder":
        return this.#addList(call.result, Number(call.input["offset"] ?? 0), textOf(call.input["path"]) ?? ".");
      case "file_facts":
        return this.#addFacts(call.result, call.turn);
      case "search_text":
        return this.#addSearch(call);
      case "read_file":
        return this.#addRead(call.result, call.turn);
      case "save_report":
        this.saves++;
        this.savedAs = call.result.file;
        return;
      case "check_report":
        this.checks++;
        if (call.result.exists && (call.result.size_bytes ?? 0) > 0) this.savedAs = call.result.file;
        return;
      case "context":
        this.gauge = { turn: call.turn, isHigh: isHigh(call.result) };
        return;
      case "failed":
        return this.#addFailure(call);
    }
  }

  #closeList(path: string, offset: number): void {
    const at = this.openLists.findIndex((list) => list.path === path && list.offset === offset);
    if (at >= 0) this.openLists.splice(at, 1);
  }

  #addList(result: AuditResult<"list_folder">, offset: number, asked: string): void {
    this.#closeList(asked, offset);
    this.folders.add(result.path);
    for (const entry of result.entries) {
      const path = joinPath(result.path, entry.name);
      if (entry.kind === "folder") {
        this.folders.add(path);
        if (entry.skipped === true) this.skippedFolders.push(path);
        else if (!this.openLists.some((list) => list.path === path)) this.openLists.push({ path, offset: 0 });
      } else if (entry.kind === "file" && !this.files.has(path)) {
        if (this.files.size < this.settings.max_files) this.files.set(path, { sizeBytes: entry.size_bytes });
        else this.filesLeftOut++;
      }
    }
    if (result.next_offset !== undefined) this.openLists.unshift({ path: asked, offset: result.next_offset });
  }

  #addFacts(result: AuditResult<"file_facts">, turn: number): void {
    for (const facts of result.files) {
      this.facts.set(facts.path, facts);
      if (this.files.has(facts.path)) this.findings.push(...judgeFacts(facts).map((finding) => ({ ...finding, turn })));
    }
    for (const { path, code, message } of result.problems) {
      this.facts.set(path, null);
      if (this.files.has(path)) this.findings.push({ rule: "unreadable", path, text: `${code}: ${message}`, turn });
    }
  }

  #addSearch({ input, result, turn }: Extract<AnsweredCall, { name: "search_text" }>): void {
    this.searched.add(searchKey(input));
    if (result.truncated === true) this.truncatedSearches++;
    const search = searches.find(({ anyOf }) => anyOf[0] === firstOf(input["any_of"]));
    for (const hit of result.hits) {
      const finding = search?.judge(hit);
      if (finding !== undefined) this.findings.push({ ...finding, turn });
    }
  }

  #addRead(result: AuditResult<"read_file">, turn: number): void {
    const before = this.readings.get(result.path);
    const judged = judgeLines({ path: result.path, fromLine: result.from_line, text: result.text, turn, inFence: before?.inFence ?? false });
    this.reads++;
    this.linesRead += Math.max(0, result.to_line - result.from_line + 1);
    this.findings.push(...judged.findings);
    for (const reference of judged.references) if (this.references.length < MAX_REFERENCES) this.references.push(reference);
    this.readings.set(result.path, { toLine: result.to_line, totalLines: result.total_lines, nextLine: result.next_line, inFence: judged.inFence });
  }

  #addFailure({ tool, input, turn, error }: Extract<AnsweredCall, { name: "failed" }>): void {
    const path = textOf(input["path"]) ?? firstOf(input["paths"]) ?? this.settings.folder;
    switch (tool) {
      case "list_folder":
        this.#closeList(path, Number(input["offset"] ?? 0));
        break;
      case "file_facts":
        for (const each of Array.isArray(input["paths"]) ? input["paths"] : []) this.facts.set(String(each), null);
        break;
      case "search_text":
        this.searched.add(searchKey(input));
        break;
      case "read_file": {
        const before = this.readings.get(path);
        this.reads++;
        this.readings.set(path, { toLine: before?.toLine ?? 0, totalLines: before?.totalLines ?? 0, nextLine: undefined, inFence: false });
        break;
      }
      case "save_report":
        this.saves++;
        return;
      case "check_report":
        this.checks++;
        return;
    }
    this.findings.push({ rule: "unreadable", path, text: `${tool}: ${error}`, turn });
  }
}

/** As the guidance of the tool has it. */
function isHigh({ context, compaction }: AuditResult<"context">): boolean {
  const at = typeof compaction === "object" ? compaction.autocompact_at_pct : undefined;
  return context?.used_pct !== undefined && at !== undefined && context.used_pct >= at;
}

/** Names a search by what and where, from the arguments of its call. */
export function searchKey(input: { readonly [key: string]: unknown }): string {
  return `${firstOf(input["any_of"])} in ${firstOf(input["paths"])}`;
}

function firstOf(value: unknown): string | undefined {
  return Array.isArray(value) ? textOf(value[0]) : undefined;
}

/** Arguments come out of a journal: another than a text is none. */
function textOf(value: unknown): string | undefined {
  return typeof value === "string" ? value : undefined;
}

function lastAnswerIsFinal(messages: readonly Message[]): boolean {
  const last = messages.findLast((message) => message.role === "assistant");
  return last !== undefined && !last.content.some((part) => part.type === "tool_call");
}
