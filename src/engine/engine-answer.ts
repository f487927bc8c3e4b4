import type { EventPayload } from "../domain/event.ts";

/** What a tool of the engine's own gives: an output, and what the recorded event asks of the engine besides. */
export class EngineAnswer {
  readonly output: unknown;
  readonly asks: EventPayload<"tool.completed">["context"];
  constructor(output: unknown, asks?: EventPayload<"tool.completed">["context"]) {
    this.output = output;
    this.asks = asks;
  }
}
