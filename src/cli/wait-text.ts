/** What a call waits for, in words for people. Pure. */
import type { WaitView } from "../client/waits.ts";
import { canonicalJson } from "../domain/json.ts";
import { duration } from "./format.ts";
import { brief } from "./output.ts";

/** What is asked, on one line. */
export function askedText({ kind, detail, pending }: Pick<WaitView, "kind" | "detail" | "pending">, maxChars: number): string {
  switch (kind) {
    case "approval":
      return brief(canonicalJson(detail["input"] ?? {}), maxChars);
    case "question": {
      const options = detail["options"] as readonly string[] | undefined;
      return brief(`${detail["question"] as string}${options === undefined ? "" : ` (${options.join(" | ")})`}`, maxChars);
    }
    case "children":
      return `${pending ?? 0} still at work`;
    case "timer":
      return `until ${detail["wake_at"] as string}`;
    case "signal":
      return brief(`signal ${detail["signal"] as string}`, maxChars);
    case "completion":
      return "the result from outside";
  }
}

/** `in 3h`, `expired`; empty for what waits as long as it takes. */
export function expiryText({ kind, expires_at: at }: Pick<WaitView, "kind" | "expires_at">, now: number = Date.now()): string {
  if (at === undefined) return "";
  const left = Date.parse(at) - now;
  if (left > 0) return `in ${duration(left)}`;
  return kind === "timer" ? "due" : "expired";
}

/** The command by which somebody ends the wait; undefined for what ends by itself. A completion takes the tool's token. */
export function commandFor({ id, kind, run_id: runId, name }: Pick<WaitView, "id" | "kind" | "run_id" | "name">): string | undefined {
  switch (kind) {
    case "approval":
      return `capstan approvals approve ${id}, or deny`;
    case "question":
      return `capstan approvals answer ${id} <answer>, or decline`;
    case "signal":
      return `capstan runs signal ${runId} ${/^[\w.:-]+$/.test(name) ? name : `'${name.replaceAll("'", "'\\''")}'`}`;
    case "completion":
      return `capstan runs complete ${runId}.${id} <result>`;
    case "timer":
    case "children":
      return undefined;
  }
}
