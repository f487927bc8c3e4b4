/** Why a compaction changed nothing, in words and with the setting that would help. */
import { outcomeText, type OutcomeNumbers } from "../compaction/outcomes.ts";
import type { CompactionReason } from "../domain/compaction/types.ts";

type Detail = { readonly [key: string]: unknown };

const numbers: Readonly<Record<string, keyof OutcomeNumbers>> = {
  units: "units",
  keep_last_n: "keepLastN",
  view_tokens: "tokens",
  freed_tokens: "freedTokens",
  max_tokens: "windowTokens",
  attempts: "attempts",
  before_bytes: "replacedBytes",
  after_bytes: "summaryBytes",
};

export function compactionText(reason: CompactionReason, detail: Detail = {}): string {
  const known = Object.fromEntries(Object.entries(numbers).flatMap(([key, name]) => (typeof detail[key] === "number" ? [[name, detail[key]]] : [])));
  const said = typeof detail["message"] === "string" ? { message: detail["message"] } : {};
  return outcomeText(reason, { ...known, ...said }).text;
}
