/** One line per event, for people who follow a run. Pure. */
import type { RunEvent } from "../client/handle.ts";
import type { CapstanEvent, EventPayload } from "../domain/event.ts";
import { canonicalJson, type JsonValue } from "../domain/json.ts";
import { answerText, toolOutputText } from "../domain/transcript/message.ts";
import { inputParts } from "../domain/transcript/derive.ts";
import { toEvent } from "../domain/upcast.ts";
import { compactionText } from "./compaction-text.ts";
import { bytes, duration, short } from "./format.ts";
import { brief } from "./output.ts";

export type Tone = "plain" | "good" | "bad" | "dim" | "notice";

export interface EventText {
  readonly tone: Tone;
  readonly text: string;
}

const CHARS = 120;

/** Events of a newer version, or damaged ones, are shown as they are: looking must never fail. */
export function eventText(raw: RunEvent): EventText {
  let event: CapstanEvent;
  try {
    event = toEvent({ ...raw, epoch: 0 });
  } catch {
    return { tone: "notice", text: `${raw.type} v${raw.version} ${brief(canonicalJson(raw.payload), CHARS)}` };
  }
  return describe(event);
}

function describe(event: CapstanEvent): EventText {
  switch (event.type) {
    case "run.created":
      return plain(`run of agent ${event.payload.agent} created: ${partsText(event.payload.input)}`);
    case "run.pinned":
      return dim(`pinned to ${event.payload.definition_sha.slice(0, 19)}`);
    case "model.requested": {
      const { model, size_bytes, again } = event.payload;
      return dim(`ask ${model} (${bytes(size_bytes)})${again === undefined ? "" : `, again: the last call was ${again}`}${event.attempt > 1 ? `, attempt ${event.attempt}` : ""}`);
    }
    case "model.responded": {
      const { content, usage, duration_ms, finish } = event.payload;
      const calls = content.flatMap((part) => (part.type === "tool_call" ? [`${part.name}(${brief(part.arguments ?? canonicalJson(part.input ?? {}), 60)})`] : []));
      const said = brief(answerText(content), CHARS);
      const cut = finish.reason === "length" ? " [cut off]" : "";
      const counts = `${short(usage.input)} in, ${short(usage.output)} out, ${duration(duration_ms)}`;
      return plain(`${[said, ...calls.map((call) => `→ ${call}`)].filter((line) => line !== "").join("  ")}${cut}  [${counts}]`);
    }
    case "model.failed": {
      const { error, retryable, retry_in_ms } = event.payload;
      return bad(`model failed: ${error.code}: ${brief(error.message, CHARS)}${retryable ? `, again in ${duration(retry_in_ms ?? 0)}` : ""}`);
    }
    case "model.corrected":
      return { tone: "notice", text: `corrected (${event.payload.reason})` };
    case "tool.started":
      return dim(`${event.payload.name} starts`);
    case "tool.completed":
      return { tone: "good", text: `✓ ${event.payload.name} ${duration(event.payload.duration_ms)}: ${brief(toolOutputText(event.payload.output), CHARS)}` };
    case "tool.failed":
      return bad(`✗ ${event.payload.name} ${duration(event.payload.duration_ms)}: ${event.payload.error.code}: ${brief(event.payload.error.message, CHARS)}`);
    case "tool.interrupted":
      return bad(`✗ ${event.payload.name}: outcome unknown (${event.payload.reason}); not repeated`);
    case "call.waiting":
      return { tone: "notice", text: waitText(event.payload) };
    case "approval.decided": {
      const { decision, expired, reason, input } = event.payload;
      const by = expired === true ? "nobody decided in time" : (event.actor ?? "decided");
      const said = reason === undefined ? "" : `: ${brief(reason, CHARS)}`;
      return {
        tone: decision === "approve" ? "good" : "bad",
        text: `${decision === "approve" ? "approved" : "denied"} (${by})${input === undefined ? "" : ", arguments edited"}${said}`,
      };
    }
    case "turn.stopped":
      return { tone: "notice", text: `the turn was stopped${event.payload.reason === undefined ? "" : `: ${brief(event.payload.reason, CHARS)}`}` };
    case "input.applied":
      return { tone: "notice", text: `input${event.payload.steering === true ? " (steering)" : ""}: ${partsText(event.payload.content as JsonValue)}` };
    case "compaction.requested": {
      const { trigger, cut, before, prefetch } = event.payload;
      return dim(`compaction requested (${trigger}${prefetch === true ? ", early" : ""}): events ${cut.from_seq} to ${cut.to_seq} of ${short(before.tokens)} tokens`);
    }
    case "compaction.prepared":
      return dim("the summary is ready, and waits until it is needed");
    case "compaction.skipped":
      return {
        tone: "notice",
        text: `not compacted (${event.payload.trigger}), ${event.payload.reason}: ${brief(compactionText(event.payload.reason, event.payload.detail), 2 * CHARS)}`,
      };
    case "compaction.failed":
      return {
        tone: "notice",
        text: `compaction failed, the view is unchanged, ${event.payload.reason}: ${brief(compactionText(event.payload.reason, event.payload.detail), 2 * CHARS)}`,
      };
    case "context.compacted": {
      const { trigger, cut, before, after, summarizer } = event.payload;
      return {
        tone: "notice",
        text: `compacted (${trigger}, ${summarizer}): events ${cut.from_seq} to ${cut.to_seq} are now a summary; ${bytes(before.bytes)} → ${bytes(after.bytes)}`,
      };
    }
    case "context.pruned":
      return { tone: "notice", text: `shortened ${event.payload.excerpts.length} old results: ${bytes(event.payload.before.bytes)} → ${bytes(event.payload.after.bytes)}` };
    case "budget.reached": {
      const { level, limit, used, of, next, text } = event.payload;
      const would = next === undefined ? "" : `, the next call may take ${short(next)} more`;
      return {
        tone: level === "soft" ? "notice" : "bad",
        text: `${level} budget reached: ${limit} ${short(used)} of ${short(of)}${would}${text === undefined ? "" : "; one more turn to answer"}`,
      };
    }
    case "run.parked":
      return { tone: "notice", text: `waits: ${event.payload.reason}${event.payload.detail === undefined ? "" : ` ${brief(canonicalJson(event.payload.detail), CHARS)}`}` };
    case "run.resumed":
      return dim(`goes on after ${event.payload.from}`);
    case "run.completed":
      return { tone: "good", text: `completed: ${brief(toolOutputText(event.payload.output), CHARS)}` };
    case "run.failed":
      return bad(`failed: ${event.payload.error.code}: ${brief(event.payload.error.message, 400)}`);
    case "run.cancelled":
      return bad(`cancelled${event.payload.reason === undefined ? "" : `: ${brief(event.payload.reason, CHARS)}`}`);
    default:
      return event satisfies never;
  }
}

function waitText({ name, wait, wait_id: id }: EventPayload<"call.waiting">): string {
  switch (wait.kind) {
    case "approval":
      return `${name} waits for approval (${id}): ${brief(canonicalJson(wait.input), CHARS)}`;
    case "question":
      return `asks (${id}): ${brief(wait.question, CHARS)}`;
    case "signal":
      return `${name} waits for the signal ${wait.signal}${wait.expires_at === undefined ? "" : ` until ${wait.expires_at}`}`;
    case "timer":
      return `${name} waits until ${wait.wake_at}`;
    case "children":
      return `${name} waits for ${wait.children.length} ${wait.children.length === 1 ? "child" : "children"}: ${wait.children.map(({ agent, run_id: run }) => `${agent} ${run}`).join(", ")}`;
    case "completion":
      return `${name} is completed from outside (${id})`;
  }
}

const plain = (text: string): EventText => ({ tone: "plain", text });
const dim = (text: string): EventText => ({ tone: "dim", text });
const bad = (text: string): EventText => ({ tone: "bad", text });

function partsText(input: JsonValue): string {
  const parts = inputParts(input).map((part) => (part.type === "text" ? part.text : `[${part.media_type}, ${bytes(part.size_bytes)}]`));
  return brief(parts.join(" "), CHARS);
}
