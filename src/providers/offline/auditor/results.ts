/**
 * Tool results as the auditor reads them. They come out of a journal, perhaps from another version of the tools, cut to
 * an excerpt or replaced by a digest: each is checked, and one that does not fit counts as a failed call.
 */
import { z } from "zod";
import type { JsonObject } from "../../../domain/json.ts";
import { toolOutputText, type Message, type ToolCallPart, type ToolResultPart } from "../../../domain/transcript/message.ts";

const problems = z.array(z.object({ path: z.string(), code: z.string(), message: z.string() }));

export const resultSchemas = {
  list_folder: z.object({
    path: z.string(),
    entries: z.array(z.object({ name: z.string(), kind: z.enum(["file", "folder", "link", "other"]), size_bytes: z.number().optional(), skipped: z.boolean().optional() })),
    total: z.number(),
    next_offset: z.number().optional(),
  }),
  file_facts: z.object({
    files: z.array(
      z.object({
        path: z.string(),
        kind: z.enum(["text", "binary", "folder", "unmeasured"]),
        size_bytes: z.number().optional(),
        lines: z.number().optional(),
        longest_line: z.object({ line: z.number(), bytes: z.number() }).optional(),
        digest: z.string().optional(),
      }),
    ),
    problems,
  }),
  search_text: z.object({
    hits: z.array(z.object({ path: z.string(), line: z.number(), found: z.string(), text: z.string() })),
    truncated: z.boolean().optional(),
    problems: problems.optional(),
  }),
  read_file: z.object({ path: z.string(), from_line: z.number(), to_line: z.number(), total_lines: z.number(), text: z.string(), next_line: z.number().optional() }),
  save_report: z.object({ file: z.string(), size_bytes: z.number() }),
  context: z.object({
    context: z.object({ used_pct: z.number().optional() }).optional(),
    /** "scheduled" after op=compact; the effective policy after op=self. */
    compaction: z.union([z.string(), z.object({ autocompact_at_pct: z.number().optional() })]).optional(),
  }),
  check_report: z.object({ exists: z.boolean(), file: z.string().optional(), size_bytes: z.number().optional() }),
};
export type AuditToolName = keyof typeof resultSchemas;
export type AuditResult<Name extends AuditToolName> = z.output<(typeof resultSchemas)[Name]>;
export type Facts = AuditResult<"file_facts">["files"][number];
export type Hit = AuditResult<"search_text">["hits"][number];

/** A call together with what came of it. */
export type AnsweredCall =
  | { [Name in AuditToolName]: { readonly name: Name; readonly input: JsonObject; readonly turn: number; readonly result: AuditResult<Name> } }[AuditToolName]
  | { readonly name: "failed"; readonly tool: string; readonly input: JsonObject; readonly turn: number; readonly error: string };

/** Calls in the order they were made; `turn` is the number of the assistant message, from 1. */
export function answeredCalls(messages: readonly Message[]): AnsweredCall[] {
  const answered: AnsweredCall[] = [];
  let turn = 0;
  messages.forEach((message, at) => {
    if (message.role !== "assistant") return;
    turn++;
    const results = resultsAfter(messages, at);
    for (const part of message.content) {
      if (part.type === "tool_call") answered.push(pair(part, takeResult(results, part.call_id), turn));
    }
  });
  return answered;
}

/** Tool messages that follow an answer: an id may come again later in a conversation, but not among these. */
function resultsAfter(messages: readonly Message[], at: number): ToolResultPart[] {
  const results: ToolResultPart[] = [];
  for (let next = messages[at + 1], i = at + 1; next?.role === "tool"; next = messages[++i]) results.push(...next.content);
  return results;
}

function takeResult(results: ToolResultPart[], callId: string): ToolResultPart | undefined {
  const at = results.findIndex((result) => result.call_id === callId);
  return at < 0 ? undefined : results.splice(at, 1)[0];
}

function pair(call: ToolCallPart, result: ToolResultPart | undefined, turn: number): AnsweredCall {
  const input = (call.input ?? {}) as JsonObject;
  const failed = (error: string): AnsweredCall => ({ name: "failed", tool: call.name, input, turn, error });
  if (result === undefined) return failed("its result is not in the conversation");
  if (result.is_error === true) return failed(firstLine(toolOutputText(result.output)));
  if (!Object.hasOwn(resultSchemas, call.name)) return failed("not a tool of mine");
  const parsed = resultSchemas[call.name as AuditToolName].safeParse(result.output);
  if (!parsed.success) return failed(typeof result.output === "string" ? "its result was cut and cannot be read" : "its result has another form than expected");
  return { name: call.name, input, turn, result: parsed.data } as AnsweredCall;
}

function firstLine(text: string): string {
  const line = text.split("\n", 1)[0] ?? "";
  return line.length <= 300 ? line : `${line.slice(0, 300).toWellFormed()}…`;
}
