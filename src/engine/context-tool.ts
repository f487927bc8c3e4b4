/** `context`: an agent asks how full its context is, and asks for what keeps it workable. */
import { checkPin, MAX_PINS, MAX_PINS_BYTES, PinRefusedError, pinsBytes } from "../domain/compaction/pins.ts";
import { resolvePolicy } from "../domain/compaction/policy.ts";
import type { AgentDefinition } from "../domain/definition.ts";
import type { OpenCall } from "../domain/fold.ts";
import { gaugeOf } from "./context-gauge.ts";
import { EngineAnswer } from "./engine-answer.ts";
import type { ContextInput } from "./engine-tool-inputs.ts";
import { ledgerPage } from "./ledger-page.ts";
import type { Turn } from "./turn.ts";

export async function lookAfterContext(turn: Turn, definition: AgentDefinition, call: OpenCall, { op, text, tool, offset }: ContextInput): Promise<EngineAnswer> {
  switch (op) {
    case "self":
      return new EngineAnswer(ownContext(turn, definition));
    case "compact":
      return new EngineAnswer({ compaction: "scheduled", applies_at: "the next boundary" }, { op: "compact" });
    case "pin":
      return pin(turn, call, text ?? "");
    case "pins":
      return new EngineAnswer({ pins: pinsOf(turn), ...pinRoom(pinsOf(turn)) });
    case "ledger":
      return new EngineAnswer(await ledgerPage(turn, definition, { tool, offset }));
  }
}

/** Max and share are absent while the window is unknown: a made-up one would be acted on. */
function ownContext(turn: Turn, definition: AgentDefinition) {
  const model = turn.deps.models.resolve(definition.model, turn.session.memory.row.tenant);
  const { usedTokens, maxTokens, overheadTokens, scale } = gaugeOf(turn, definition, model);
  const window = maxTokens === undefined ? {} : { max_tokens: maxTokens, used_pct: Math.round((usedTokens / maxTokens) * 1_000) / 10 };
  return {
    context: { used_tokens: usedTokens, ...window, scale, reducible: Math.max(0, usedTokens - overheadTokens) },
    compaction: resolvePolicy(definition.compaction),
  };
}

function pin(turn: Turn, call: OpenCall, text: string): EngineAnswer {
  const pins = pinsOf(turn);
  // Calls of one response run side by side: those before this one have their room, whichever is recorded first.
  for (const earlier of earlierPins(turn, call)) if (isNew(earlier, pins)) pins.push(earlier);
  if (checkPin(text, pins) === "known") return new EngineAnswer({ pinned: "already", ...pinRoom(pins) });
  return new EngineAnswer({ pinned: true, ...pinRoom([...pins, text]) }, { op: "pin", text });
}

function pinsOf(turn: Turn): string[] {
  return turn.session.state.compaction.pins.map((fact) => fact.text);
}

function pinRoom(pins: readonly string[]) {
  return { pins_left: MAX_PINS - pins.length, bytes_left: MAX_PINS_BYTES - pinsBytes(pins) };
}

/** Texts that open calls before this one ask to pin. */
function earlierPins(turn: Turn, call: OpenCall): string[] {
  const { phase } = turn.session.state;
  if (phase.kind !== "calling") return [];
  return phase.calls.flatMap(({ index, result, call: { name, input } }) => {
    if (index >= call.index || result !== undefined || name !== call.call.name) return [];
    const { op, text } = (input ?? {}) as Partial<ContextInput>;
    return op === "pin" && typeof text === "string" ? [text] : [];
  });
}

function isNew(text: string, pins: readonly string[]): boolean {
  try {
    return checkPin(text, pins) === "new";
  } catch (error) {
    if (error instanceof PinRefusedError) return false;
    throw error;
  }
}
