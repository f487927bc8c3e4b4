/** One question to a registered function: users' code, which may throw, hang, or return anything. */
import { SUMMARIZER_INPUT_ORIGIN } from "../domain/taint-origins.ts";
import { usageSchema, type Usage } from "../domain/usage.ts";
import { isMessages, performed, withinTime } from "./ask.ts";
import { refuseRewrite } from "./ask-model.ts";
import { previousSummaryMessage, type SummarizerFunction, type SummarizerInput } from "./effect.ts";
import { textBytes } from "./ladder.ts";
import type { AskRequest } from "./open-summarizer.ts";
import { judgeText, rejected, type Reply } from "./reply.ts";
import type { SummarizeDeps, SummarizeInput, SummaryCallReport } from "./summarize.ts";

export interface FunctionQuestion {
  readonly effect: SummarizerFunction;
  readonly name: string;
  readonly needs: readonly string[];
  readonly request: AskRequest;
}

export async function askFunction({ effect, name, needs, request }: FunctionQuestion, input: SummarizeInput, deps: SummarizeDeps, calls: SummaryCallReport[]): Promise<Reply> {
  const { messages, previousSummary, limitTokens, targetTokens } = request;
  const asked = {
    messages: previousSummary === undefined ? messages : [previousSummaryMessage(previousSummary), ...messages],
    target_tokens: targetTokens,
    ...(input.task === undefined ? {} : { task: input.task }),
  };
  return await performed(
    {
      effect: {
        kind: "summary",
        name,
        needs,
        request: asked,
        taint: [...new Set([SUMMARIZER_INPUT_ORIGIN, ...input.taint])],
        estimate: { inputTokens: Math.ceil(textBytes(asked.messages) / 3), maxOutputTokens: limitTokens, costUsdMicros: 0 },
      },
      model: undefined,
      execute: async (given) => {
        const guarded = given === asked ? asked : { target_tokens: targetTokens, ...rewritten(given) };
        // A copy: the messages are those of the view, and users' code may change what it is given.
        const outcome = await withinTime<unknown>(input, async (signal) => await effect({ ...structuredClone(guarded), signal } satisfies SummarizerInput));
        return outcome.kind === "late" ? outcome.reply : judgeOutput(outcome.value);
      },
    },
    input,
    deps,
    calls,
  );
}

/** A task that the guard left out is left out: it may be what had to be redacted. */
function rewritten(given: unknown): Pick<SummarizerInput, "messages" | "task"> {
  const { messages, task } = (typeof given === "object" && given !== null ? given : {}) as { readonly messages?: unknown; readonly task?: unknown };
  const tasks = [task];
  return { messages: isMessages(messages) ? messages : refuseRewrite(), ...(isMessages(tasks) && tasks[0] !== undefined ? { task: tasks[0] } : {}) };
}

/** Reads what is there once: a getter of the user's own may throw, which is a failure like any other. */
function judgeOutput(output: unknown): Reply {
  if (typeof output !== "object" || output === null || !("summary" in output)) return rejected("provider", "the registered summarizer returned no { summary }", false);
  const { summary } = output;
  const given = "usage" in output ? usageSchema.safeParse(output.usage) : undefined;
  const usage: { usage?: Usage } = given?.success === true ? { usage: given.data } : {};
  if (typeof summary !== "string")
    return { ...rejected("provider", `the registered summarizer returned a summary that is no text but ${summary === null ? "null" : typeof summary}`, false), ...usage };
  return { ...judgeText(summary, [], summary === "" ? "no text" : "only white space"), ...usage };
}
