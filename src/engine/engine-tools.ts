/** Tools that ask of the run itself: carried out here instead of by a tool's code, through the same ring and recorded the same way. */
import type { OpenCall } from "../domain/fold.ts";
import type { ToolCode } from "./code.ts";
import { lookAfterContext } from "./context-tool.ts";
import { EngineAnswer } from "./engine-answer.ts";
import { Deferred } from "./deferred.ts";
import type { AgentInput, AskHumanInput, ContextInput, ReadBlobInput, WaitInput } from "./engine-tool-inputs.ts";
import { readBlob } from "./read-blob.ts";
import { spawnChildren } from "./spawn.ts";
import type { Turn } from "./turn.ts";
import { waitFor } from "./wait-tool.ts";

/** `input` has passed the tool's own check. */
export async function answerByEngine(turn: Turn, call: OpenCall, tool: NonNullable<ToolCode["engine"]>, input: unknown): Promise<EngineAnswer | Deferred> {
  switch (tool) {
    case "context": {
      const { definition } = turn.session.memory;
      if (definition === undefined) throw new Error("a tool is executed only once its run's definition is known");
      return await lookAfterContext(turn, definition, call, input as ContextInput);
    }
    case "read_blob":
      return new EngineAnswer(await readBlob(turn, input as ReadBlobInput));
    case "agent":
      return await spawnChildren(turn, input as AgentInput);
    case "ask_human": {
      const { question, options } = input as AskHumanInput;
      const timeoutMs = turn.session.memory.definition?.tools.find(({ name }) => name === call.call.name)?.timeout_ms;
      return new Deferred({ kind: "question", question, ...(options === undefined ? {} : { options }), ...(timeoutMs === undefined ? {} : { timeoutMs }) });
    }
    case "wait":
      return waitFor(turn, input as WaitInput);
  }
}
