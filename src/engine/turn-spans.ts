/** One trace per turn: a root span linked to the run's creator, with the model call and the tools inside. */
import { compaction, genAi } from "../telemetry/names.ts";
import type { EngineSpan, RunRow, Tracing } from "./ports.ts";

export class TurnSpans {
  readonly #tracing: Tracing;
  readonly #row: RunRow;
  #turn: EngineSpan | undefined;
  #number = -1;

  constructor(tracing: Tracing, row: RunRow) {
    this.#tracing = tracing;
    this.#row = row;
  }

  get traceparent(): string | undefined {
    return this.#turn?.traceparent;
  }

  /** The span of this turn; a new one when the turn's number has changed (sticky turns each have their own). */
  turn(number: number): EngineSpan {
    if (this.#turn !== undefined && this.#number === number) return this.#turn;
    this.end();
    this.#number = number;
    const { id, agent, tenant, traceparent } = this.#row;
    this.#turn = this.#tracing.start(`${genAi.operation.invokeAgent} ${agent}`, {
      kind: "consumer",
      links: traceparent === undefined ? [] : [traceparent],
      attributes: { [genAi.operationName]: genAi.operation.invokeAgent, [genAi.agentName]: agent, [genAi.conversationId]: id, "capstan.turn": number, "capstan.tenant": tenant },
    });
    return this.#turn;
  }

  model(model: string): EngineSpan {
    const [provider, name] = splitOnce(model, ":");
    return this.#tracing.start(`${genAi.operation.chat} ${name}`, {
      kind: "client",
      ...(this.#turn === undefined ? {} : { parent: this.#turn }),
      attributes: { [genAi.operationName]: genAi.operation.chat, [genAi.providerName]: provider, [genAi.requestModel]: name, [genAi.conversationId]: this.#row.id },
    });
  }

  tool(name: string, callId: string): EngineSpan {
    return this.#tracing.start(`${genAi.operation.executeTool} ${name}`, {
      kind: "internal",
      ...(this.#turn === undefined ? {} : { parent: this.#turn }),
      attributes: { [genAi.operationName]: genAi.operation.executeTool, [genAi.toolName]: name, [genAi.toolCallId]: callId },
    });
  }

  /** An event of the turn's span: before and after, and what set it off. */
  compacted(
    number: number,
    { trigger, beforeTokens, afterTokens, rung }: { readonly trigger: string; readonly beforeTokens: number; readonly afterTokens: number; readonly rung: number },
  ): void {
    this.turn(number).event(compaction.event, { [compaction.trigger]: trigger, [compaction.before]: beforeTokens, [compaction.after]: afterTokens, [compaction.rung]: rung });
  }

  end(): void {
    this.#turn?.end();
    this.#turn = undefined;
  }
}

function splitOnce(text: string, separator: string): [string, string] {
  const at = text.indexOf(separator);
  return at < 0 ? ["", text] : [text.slice(0, at), text.slice(at + 1)];
}
