/**
 * `offline:auditor`: works through a real folder with real tools, by rules, for as many turns as the folder needs. For the
 * demo, for tests and for trials without a network. It is no language model and says so wherever it speaks.
 *
 * It keeps nothing between calls: everything comes from the conversation, so it goes on wherever another worker left off.
 */
import type { CanonicalCall } from "../../domain/call.ts";
import type { AssistantPart } from "../../domain/transcript/message.ts";
import type { Model } from "../../engine/model-port.ts";
import { Audit } from "./auditor/audit.ts";
import { findingLine } from "./auditor/finding.ts";
import { nextStep } from "./auditor/plan.ts";
import { offlineModel } from "./offline-model.ts";

export const AUDITOR_MODEL = "offline:auditor";

const INTRODUCTION = "I am offline:auditor, a program that follows fixed rules. I am not a language model. I look through a folder with the tools I am given and write a report.";
/** News told in one turn; the report has the rest. */
const TOLD_PER_TURN = 5;

export function offlineAuditor({ thinkMs = 0 }: { readonly thinkMs?: number } = {}): Model {
  return offlineModel({ name: AUDITOR_MODEL, thinkMs, respond: auditorAnswer });
}

/** Pure: the same call, the same answer. */
export function auditorAnswer(call: Pick<CanonicalCall, "messages" | "tools">): AssistantPart[] {
  const audit = new Audit(call);
  if (audit.isAnswered) return [text("My report is above. I follow rules and cannot answer questions about it; enqueue another run to audit again.")];
  if (!audit.tools.has("list_folder")) {
    return [text(`${INTRODUCTION} This agent has no list_folder tool, so there is nothing that I can do. Give it the tools of folderTools({ root }).`)];
  }
  const step = nextStep(audit);
  if (step.kind === "answer") return [text(step.text)];
  const turn = audit.turns + 1;
  const opening = turn === 1 ? [INTRODUCTION, ...(audit.note === undefined ? [] : [audit.note])] : news(audit);
  return [
    text([...opening, step.text].join("\n")),
    ...step.calls.map(({ name, input }, i): AssistantPart => ({ type: "tool_call", call_id: `audit_${turn}_${i + 1}`, name, input })),
  ];
}

/** What the last turn's calls brought to light: said at once, so that it stands in the conversation as text. */
function news(audit: Audit): string[] {
  const found = audit.findings.filter(({ turn }) => turn === audit.turns);
  const more = found.length > TOLD_PER_TURN ? [`and ${found.length - TOLD_PER_TURN} more`] : [];
  return [...found.slice(0, TOLD_PER_TURN).map((finding) => `Found: ${finding.rule} in ${findingLine(finding)}`), ...more];
}

function text(content: string): AssistantPart {
  return { type: "text", text: content };
}
