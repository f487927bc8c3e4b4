/**
 * `audit-state`: the summarizer of auditors that compact. A program of rules can go on from a summary only if the summary
 * says all that its rules need; so this one replays the audit over the messages and writes down where it stands.
 */
import type { SummarizerFunction } from "../../../compaction/effect.ts";
import { Audit } from "./audit.ts";
import { earlierState, summaryOf } from "./state.ts";

export const AUDIT_SUMMARIZER = "audit-state";

export const auditSummarizer: SummarizerFunction = async ({ messages, task }) => ({
  summary: summaryOf(new Audit({ messages: task === undefined || earlierState(messages) !== undefined ? messages : [task, ...messages], tools: [] })),
});
