/** Tools that the engine itself carries out. An agent has them only if its definition lists them. */
import { contextInput, readBlobInput } from "../engine/engine-tool-inputs.ts";
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
