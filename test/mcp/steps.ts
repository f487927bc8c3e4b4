import type { ScriptedModelReply, ScriptedStep } from "../../src/testing/scripted-model.ts";

/** The model makes these calls side by side, and then gives the results as its answer. */
export function callsThenTell(...calls: readonly (readonly [tool: string, input?: Record<string, string>])[]): ScriptedStep[] {
  return [
    { toolCalls: calls.map(([name, input = {}], i) => ({ id: `c${i}`, name, input })) },
    ({ messages }): ScriptedModelReply => {
      const last = messages.findLast((message) => message.role === "tool");
      return { text: JSON.stringify((last?.content ?? []).map(({ output, is_error }) => (is_error === true ? { error: output } : output))) };
    },
  ];
}
