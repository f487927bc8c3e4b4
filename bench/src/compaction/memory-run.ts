/** A run's journal in memory: the real events through the real fold, without a database. */
import { newEvent, type CapstanEvent, type EventPayload, type EventType } from "../../../src/domain/event.ts";
import { evolve, initialState, type RunState } from "../../../src/domain/fold.ts";
import type { AssistantPart } from "../../../src/domain/transcript/message.ts";
import type { Step, Story, StoryCall } from "./story.ts";

const usage = { input: 1, output: 1, scale: "estimate" } as const;

export class MemoryRun {
  readonly events: CapstanEvent[] = [];
  readonly state: RunState = initialState();
  #turn = 0;

  constructor({ task, interactive }: Pick<Story, "task" | "interactive">) {
    this.append("run.created", { origin: "api", agent: "bench", definition_sha: "sha256:bench", input: task, interactive });
  }

  append<T extends EventType>(type: T, payload: EventPayload<T>): void {
    const event = { ...newEvent(type, payload, { turn: this.#turn, attempt: 1, epoch: this.state.epoch }), seq: this.events.length + 1 } as CapstanEvent;
    this.events.push(event);
    evolve(this.state, event);
  }

  /** Gives the seq of the last event of the step: from there on all of it is there. */
  take(step: Step): number {
    if (step.kind === "user") this.append("input.applied", { content: [{ type: "text", text: step.text }] });
    else this.#respond(step.text, step.kind === "turn" ? step.calls : []);
    return this.events.length;
  }

  #respond(text: string, calls: readonly StoryCall[]): void {
    this.#turn++;
    this.append("model.requested", { model: "bench:story", to_seq: this.state.viewSeq, render: 1, breakpoints: [], size_bytes: 0, hash: "" });
    const content: AssistantPart[] = [
      ...(text === "" && calls.length > 0 ? [] : [{ type: "text", text } as const]),
      ...calls.map(({ name, input }, index) => ({ type: "tool_call", call_id: `c${this.#turn}_${index}`, name, input }) as const),
    ];
    this.append("model.responded", { content, finish: { reason: calls.length === 0 ? "stop" : "tool_calls" }, usage, duration_ms: 0 });
    for (const [index, { name, outcome, result, pin }] of calls.entries()) {
      const call = { call_id: `c${this.#turn}_${index}`, index, name };
      if (outcome === "unknown") this.append("tool.interrupted", { ...call, reason: "worker_lost" });
      else if (outcome === "failed") this.append("tool.failed", { ...call, error: { code: "TOOL_FAILED", message: result }, duration_ms: 0 });
      else this.append("tool.completed", { ...call, output: result, ...(pin === undefined ? {} : { context: { op: "pin", text: pin } as const }), duration_ms: 0 });
    }
  }
}
