/**
 * `offline:replay:<id>` and `offline:replay:<file>#<id>`: gives the answers of a recorded conversation again. Which one
 * is due is told by how many answers the conversation holds, so a run goes on at the right place on another worker.
 * Tools that serve the recorded results are made by replayTools (src/tools/replay-tools.ts).
 */
import { parseJson } from "../../domain/json.ts";
import type { CanonicalCall } from "../../domain/call.ts";
import type { AssistantPart } from "../../domain/transcript/message.ts";
import type { Model } from "../../engine/model-port.ts";
import { ModelConfigError } from "../model-config-error.ts";
import { offlineModel } from "./offline-model.ts";
import { readRecordings, recordedTurns, replayCallId, type RecordedTurn, type Recording } from "./recording.ts";

export const REPLAY_PREFIX = "offline:replay:";
/** Said when the model is asked once more than was recorded. */
const END_OF_RECORDING = "The recorded conversation ends here.";

export interface OfflineReplayOptions {
  /** Found by their ids; a name with a file in it needs none. */
  readonly conversations?: readonly Recording[];
  readonly thinkMs?: number;
}

/** Throws MODEL_UNKNOWN for an id that is not recorded, MODEL_CONFIG_INVALID for a file that cannot be used. */
export function offlineReplay({ conversations = [], thinkMs = 0 }: OfflineReplayOptions = {}): (name: string) => Model {
  // A model is looked up for every turn; a file of recordings is read once.
  const files = new Map<string, readonly Recording[]>();
  const recordingsOf = (file: string): readonly Recording[] => {
    const known = files.get(file) ?? readRecordings(file);
    files.set(file, known);
    return known;
  };
  return (name) => {
    const what = name.slice(REPLAY_PREFIX.length);
    const hash = what.lastIndexOf("#");
    const id = what.slice(hash + 1);
    const known = hash < 0 ? conversations : recordingsOf(what.slice(0, hash));
    const found = known.find((conversation) => conversation.id === id);
    if (found === undefined) {
      const ids = known.slice(0, 20).map((conversation) => conversation.id);
      const listed = ids.length === 0 ? "none is" : `known are: ${ids.join(", ")}${known.length > ids.length ? ", …" : ""}`;
      throw new ModelConfigError("MODEL_UNKNOWN", `no conversation "${id}" is recorded for model "${name}"; ${listed}. Write offline:replay:<id>, or offline:replay:<file>#<id>`, {
        model: name,
        conversations: ids,
      });
    }
    const turns = recordedTurns(found);
    return offlineModel({ name, thinkMs, respond: (call) => replayAnswer(turns, call) });
  };
}

export function replayAnswer(turns: readonly RecordedTurn[], call: Pick<CanonicalCall, "messages">): AssistantPart[] {
  const turnIndex = call.messages.filter((message) => message.role === "assistant").length;
  const turn = turns[turnIndex];
  if (turn === undefined) return [{ type: "text", text: END_OF_RECORDING }];
  return [
    ...(turn.text === "" ? [] : [{ type: "text", text: turn.text } as const]),
    ...turn.calls.map((recorded, callIndex): AssistantPart => {
      const base = { type: "tool_call", call_id: replayCallId(turnIndex, callIndex), name: recorded.name } as const;
      const parsed = parseJson(recorded.arguments === "" ? "{}" : recorded.arguments);
      return parsed.ok ? { ...base, input: parsed.value } : { ...base, arguments: recorded.arguments, invalid: parsed.problem.problem };
    }),
  ];
}
