/** Tools that the engine itself carries out. An agent has them only if its definition lists them. */
import { agentInput, askHumanInput, contextInput, readBlobInput, waitInput } from "../engine/engine-tool-inputs.ts";
import { AGENT_TOOL } from "../domain/definition.ts";
import { CapstanError } from "../domain/error.ts";
import type { ToolCode } from "../engine/code.ts";
import { tool, type Tool } from "./tool.ts";

/** When an agent is to look at its context, and when to act. Stands in the `context` tool's description; for prompts of one's own. */
export const CONTEXT_TOOL_GUIDANCE = `Your context window is limited, and everything you read fills it. Look with op=self before long work and after large results: it answers {context: {used_tokens, max_tokens, used_pct, scale, reducible}, compaction}. When context.used_pct >= compaction.autocompact_at_pct, call op=compact: at the next boundary, once this call and those beside it are answered, earlier messages are replaced by a summary, and you go on from there. Without max_tokens and used_pct the window is not known: then judge by used_tokens. When reducible is small, compacting gains nothing.`;

const DESCRIPTION = `Looks after your own context.

${CONTEXT_TOOL_GUIDANCE}

op=pin keeps a text word for word through every compaction: use it for what must not be lost (identifiers, numbers, decisions, constraints). Pins are few and cannot be taken back; op=pins lists them.
op=ledger lists the side effects done before the last compaction that the summary's own list had no room for, a page at a time.`;

export function contextTool(): Tool {
  return carriedOut("context", tool({ name: "context", description: DESCRIPTION, input: contextInput, effect: "read", execute: notHere }));
}

export function readBlobTool(): Tool {
  return carriedOut(
    "read_blob",
    tool({
      name: "read_blob",
      description:
        "Reads a page of text of a result or file that is kept outside your context, by the sha256 that you were shown in its place. Answers with what the page is, the text below it, and where to read on. Read only what you need: pages fill your context.",
      input: readBlobInput,
      effect: "read",
      execute: notHere,
    }),
  );
}

/** By `agent({ spawn })`. */
export function agentTool(): Tool {
  return carriedOut(
    "agent",
    tool({
      name: AGENT_TOOL,
      description:
        "Starts runs of other agents and waits for their results. They see nothing of your conversation: put all that they need into the input. The answer is {results: [{index, agent, run_id, ok, output | error}]}, in the order of the children; one that failed does not make the others fail.",
      input: agentInput,
      // Nothing is started before the journal says so, and then exactly once.
      effect: "idempotent",
      execute: notHere,
    }),
  );
}

/** The agent asks a person and waits for the answer. */
export function askHumanTool({ timeoutMs }: { readonly timeoutMs?: number } = {}): Tool {
  return carriedOut(
    "ask_human",
    tool({
      name: "ask_human",
      description: "Asks a person, and waits for the answer, which may take long. Ask only what you cannot find out yourself, and all of it at once.",
      input: askHumanInput,
      effect: "idempotent",
      execute: notHere,
      ...(timeoutMs === undefined ? {} : { timeoutMs }),
    }),
  );
}

/** The agent waits for a time or a signal, holding no worker. */
export function waitTool(): Tool {
  return carriedOut(
    "wait",
    tool({
      name: "wait",
      description: "Waits: for some seconds, until a time, or for a signal from outside, whose content is the answer. Give `seconds`, `until` or `signal`.",
      input: waitInput,
      effect: "idempotent",
      execute: notHere,
    }),
  );
}

/** The symbol by which agent() knows a tool is copied too. */
function carriedOut(engine: NonNullable<ToolCode["engine"]>, made: Tool): Tool {
  return { ...made, engine };
}

class EngineToolError extends CapstanError {
  override readonly name = "EngineToolError";
  readonly code = "ENGINE_TOOL";
}

function notHere(): never {
  throw new EngineToolError("this tool asks of a run and is carried out by the engine; its execute() cannot be called. To test an agent that has it, run the agent");
}
