/**
 * The boundary that redaction stands at: the ports by which a worker meets the outside. What comes in through them has
 * been redacted, so the engine, the journal, models and summarizers know nothing else. Without redaction none of this is
 * there.
 */
import { toJsonValue } from "../domain/json.ts";
import type { RedactContext } from "../domain/redact/options.ts";
import type { Redactor } from "../domain/redact/redactor.ts";
import type { AgentCode, ToolCode, ToolContext } from "../engine/code.ts";
import { Deferred } from "../engine/deferred.ts";
import { EngineAnswer } from "../engine/engine-answer.ts";
import type { BlobStore, CompactionTasks, JournalStore } from "../engine/ports.ts";

/** Longer results are refused unseen (engine/tool-result.ts). */
const MAX_RESULT_CHARS = 64 * 1024 * 1024;

/** What is sent to a run, by whichever way; ids in it match no rule. */
export function redactedStore(store: JournalStore, redactor: Redactor): JournalStore {
  return {
    load: (runId) => store.load(runId),
    eventsBelow: (runId, below) => store.eventsBelow(runId, below),
    async pendingInbox(runId, limit) {
      const items = await store.pendingInbox(runId, limit);
      return await Promise.all(items.map(async (item) => ({ ...item, payload: await redactor.value(item.payload, { place: "input", runId }) })));
    },
    append: (request) => store.append(request),
    giveBack: (runId, token, wishAt) => store.giveBack(runId, token, wishAt),
    called: (held) => store.called(held),
    childOutcomes: (runId, call) => store.childOutcomes(runId, call),
    childSpending: (...args) => store.childSpending(...args),
  };
}

/** Files that are text. Into images and documents nobody looks. */
export function redactedBlobs(blobs: BlobStore, redactor: Redactor): BlobStore {
  return {
    async put(tenant, runId, content, mediaType) {
      return await blobs.put(tenant, runId, await redactor.file(content, mediaType, { place: "file", tenant, runId }), mediaType);
    },
    get: (tenant, sha256) => blobs.get(tenant, sha256),
    page: (blob, from, limit) => blobs.page(blob, from, limit),
  };
}

/** Summaries, also of functions that no catalogue knows. */
export function redactedTasks(tasks: CompactionTasks, redactor: Redactor): CompactionTasks {
  return {
    result: (taskId) => tasks.result(taskId),
    claim: (taskId) => tasks.claim(taskId),
    again: (task, inMs, waitReason) => tasks.again(task, inMs, waitReason),
    lost: (held) => tasks.lost(held),
    async finish(task, result) {
      if (result.kind === "failed") return await tasks.finish(task, { ...result, detail: redactor.json(result.detail) as typeof result.detail });
      const { head } = result.summarized;
      const summary = (await redactor.value(head.summary, { place: "summary", tenant: task.tenant, runId: task.runId, agent: task.agent })) as string;
      return await tasks.finish(task, { ...result, summarized: { ...result.summarized, head: { ...head, summary } } });
    },
  };
}

/** Secrets that are handed to tools are known from then on. */
export function knownSecrets(secret: (name: string, tenant: string) => string | undefined, redactor: Redactor): typeof secret {
  return (name, tenant) => {
    const value = secret(name, tenant);
    if (value !== undefined) redactor.knows(value);
    return value;
  };
}

/** Results and errors of tools, also of those of MCP servers. */
export function redactedAgent(code: AgentCode, redactor: Redactor): AgentCode {
  const { remote } = code;
  return {
    name: code.name,
    tools: new Map([...code.tools].map(([name, tool]) => [name, redactedTool(tool, code.name, redactor)])),
    onWarn: code.onWarn,
    ...(code.mcp === undefined ? {} : { mcp: code.mcp }),
    ...(remote === undefined
      ? {}
      : {
          remote: {
            missing: () => remote.missing(),
            toolOf(tool) {
              const found = remote.toolOf(tool);
              return found && redactedTool(found, code.name, redactor);
            },
          },
        }),
  };
}

function redactedTool(tool: ToolCode, agent: string, redactor: Redactor): ToolCode {
  return {
    definition: tool.definition,
    ...(tool.engine === undefined ? {} : { engine: tool.engine }),
    ...(tool.needsApproval === undefined ? {} : { needsApproval: tool.needsApproval.bind(tool) }),
    check: (input) => tool.check(input),
    async execute(input: unknown, context: ToolContext) {
      const where = { place: "tool", tenant: context.tenant, runId: context.runId, agent } as const;
      let result: unknown;
      try {
        result = await tool.execute(input, context);
      } catch (error) {
        throw await redactedError(error, redactor, where);
      }
      return await redactedResult(result, redactor, where);
    },
  };
}

/** What cannot be stored is told of by the engine, and not kept. */
async function redactedResult(result: unknown, redactor: Redactor, where: RedactContext): Promise<unknown> {
  if (result instanceof Deferred || result instanceof EngineAnswer || (typeof result === "string" && result.length > MAX_RESULT_CHARS)) return result;
  const json = toJsonValue(result);
  if (!json.ok) return result;
  const redacted = await redactor.value(json.value, where);
  return redacted === json.value ? result : redacted;
}

/** The same kind of error in other words: its class decides what becomes of it, its words are what is recorded. */
async function redactedError(error: unknown, redactor: Redactor, where: RedactContext): Promise<unknown> {
  if (!(error instanceof Error)) {
    const json = toJsonValue(error);
    return json.ok ? await redactor.value(json.value, where) : error;
  }
  const words = async (text: unknown): Promise<string> => (await redactor.value(String(text), where)) as string;
  const made = redactor.error(error);
  Object.defineProperty(made, "message", { value: await words(made.message), configurable: true, writable: true, enumerable: false });
  return made;
}
