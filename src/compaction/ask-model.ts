/** One question to a summarizer's model, through the ring like every call. */
import type { CanonicalCall } from "../domain/call.ts";
import { SUMMARIZER_INPUT_ORIGIN } from "../domain/taint-origins.ts";
import type { Message } from "../domain/transcript/message.ts";
import type { Usage } from "../domain/usage.ts";
import type { Model, ModelOutcome } from "../engine/model-port.ts";
import { isMessages, performed, withinTime } from "./ask.ts";
import type { AskRequest } from "./open-summarizer.ts";
import { judgeOutcome, type Reply } from "./reply.ts";
import type { SummarizeDeps, SummarizeInput, SummaryCallReport } from "./summarize.ts";
import { echoesOf, summaryCall } from "./summary-call.ts";
import { summarizerText } from "./summarizer-text.ts";

export interface ModelQuestion {
  readonly model: Model;
  readonly instruction: string;
  readonly lowEffort: boolean;
  readonly needs: readonly string[];
  readonly request: AskRequest;
}

export async function askModel(question: ModelQuestion, input: SummarizeInput, deps: SummarizeDeps, calls: SummaryCallReport[]): Promise<Reply> {
  const reply = await askOnce(question, input, deps, calls);
  const isRefusedForEffort = question.lowEffort && reply.kind === "rejected" && reply.code === "PROVIDER_BAD_REQUEST";
  if (!isRefusedForEffort) return reply;
  // The setting was only a wish; some servers refuse what they do not know.
  return await askOnce({ ...question, lowEffort: false }, input, deps, calls);
}

async function askOnce({ model, instruction, lowEffort, needs, request }: ModelQuestion, input: SummarizeInput, deps: SummarizeDeps, calls: SummaryCallReport[]): Promise<Reply> {
  const { messages, ...rest } = request;
  const { limitTokens } = rest;
  const wanted = { ...rest, model: model.name, instruction, lowEffort, record: summarizerText(messages) };
  const call = summaryCall(wanted);
  const usageMost: Usage = { input: Math.ceil(callBytes(call) / 3), output: limitTokens, scale: "estimate" };
  const echoes = echoesOf(wanted);
  return await performed(
    {
      effect: {
        kind: "summary",
        name: model.name,
        needs,
        request: call,
        system: instruction,
        taint: [...new Set([SUMMARIZER_INPUT_ORIGIN, ...input.taint])],
        estimate: { inputTokens: usageMost.input, maxOutputTokens: limitTokens, costUsdMicros: deps.models.costUsdMicros(model.name, usageMost) ?? 0 },
      },
      model: model.name,
      execute: async (given) => {
        const guarded = asRewritten(call, given);
        const outcome = await withinTime<ModelOutcome>(input, async (signal) => await model.call(guarded, { signal, tenant: input.tenant, runId: input.runId, turn: input.turn }));
        if (outcome.kind === "late") return outcome.reply;
        return judgeOutcome(outcome.value, echoes);
      },
    },
    input,
    deps,
    calls,
  );
}

/** A guard may change what is summarized. It cannot change who is asked, the system prompt, or give tools. */
function asRewritten(call: CanonicalCall, given: unknown): CanonicalCall {
  if (given === call) return call;
  const messages: unknown = typeof given === "object" && given !== null && "messages" in given ? given.messages : undefined;
  return { ...call, messages: isMessages(messages) ? messages : refuseRewrite() };
}

export class RewriteInvalidError extends Error {
  override readonly name = "RewriteInvalidError";
  readonly code = "GUARD_FAILED";
}

export function refuseRewrite(): readonly Message[] {
  throw new RewriteInvalidError(
    'the guard rewrote a summarizer\'s input into something without messages, so the call was not made: return { kind: "rewrite", request: { ...request, messages } }',
  );
}

function callBytes(call: CanonicalCall): number {
  const part = call.messages[0]?.content[0];
  return Buffer.byteLength(call.system) + (part?.type === "text" ? Buffer.byteLength(part.text) : 0);
}
