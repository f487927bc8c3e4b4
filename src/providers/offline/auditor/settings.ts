/** What an audit is asked for: the input of the `auditor` agent, as it stands in the run's first message. */
import { z } from "zod";
import type { Message } from "../../../domain/transcript/message.ts";

export const auditInput = z.object({
  /** Relative to the folder that the tools are confined to. */
  folder: z.string().min(1).max(1_000).default("."),
  /** Files that are looked at; further ones are counted and named as left out. */
  max_files: z.int().min(1).max(5_000).default(300),
  /** Calls of read_file in all. */
  max_reads: z.int().min(0).max(2_000).default(60),
  lines_per_read: z.int().min(1).max(2_000).default(200),
  /** Tool calls made side by side in one turn. */
  calls_per_turn: z.int().min(1).max(8).default(3),
});
export type AuditInput = z.input<typeof auditInput>;
export type AuditSettings = z.output<typeof auditInput>;

/** Settings of a conversation. Prose is not understood, and `note` says so instead of pretending. */
export function readSettings(messages: readonly Message[]): { readonly settings: AuditSettings; readonly note?: string } {
  const first = messages.find((message) => message.role === "user");
  const text = (first?.content ?? []).flatMap((part) => (part.type === "text" ? [part.text] : [])).join("\n");
  const json = jsonObjectOf(text);
  if (json !== undefined) {
    const parsed = auditInput.safeParse(json);
    if (parsed.success) return { settings: parsed.data };
    return {
      settings: auditInput.parse({}),
      note: `The input did not fit (${parsed.error.issues.map((issue) => `${issue.path.join(".")}: ${issue.message}`).join("; ")}), so I audit the whole folder with my defaults.`,
    };
  }
  return {
    settings: auditInput.parse({}),
    ...(text.trim() === "" ? {} : { note: "I cannot read instructions in prose, so I audit the whole folder with my defaults." }),
  };
}

function jsonObjectOf(text: string): object | undefined {
  try {
    const value = JSON.parse(text) as unknown;
    return typeof value === "object" && value !== null && !Array.isArray(value) ? value : undefined;
  } catch {
    return undefined;
  }
}
