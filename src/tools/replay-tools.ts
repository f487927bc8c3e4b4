/** Tools that give the results of a recorded conversation, for runs of the model `offline:replay`. */
import { z } from "zod";
import { tool, type Tool } from "../agents/tool.ts";
import { CapstanError } from "../domain/error.ts";
import { toolNamePattern } from "../domain/definition.ts";
import { placeOfCall, recordedTurns, type Recording } from "../providers/offline/recording.ts";

export class ReplayError extends CapstanError {
  override readonly name = "ReplayError";
  readonly code = "RECORDING_HAS_NO_RESULT";
}

/** One tool for each name that the recording calls. Names that no vendor would take are left out: calls to them are answered as unknown tools. */
export function replayTools(recording: Pick<Recording, "messages">): Tool[] {
  const turns = recordedTurns(recording);
  const names = [...new Set(turns.flatMap((turn) => turn.calls.map((call) => call.name)))].filter((name) => toolNamePattern.test(name)).toSorted();
  return names.map((name) =>
    tool({
      name,
      description: `Gives again what "${name}" gave in the recorded conversation. Nothing is executed.`,
      input: z.looseObject({}),
      effect: "read",
      execute(_, { callId }) {
        const place = placeOfCall(callId);
        const call = place === undefined ? undefined : turns[place.turnIndex]?.calls[place.callIndex];
        if (call?.name !== name || call.result === undefined) throw new ReplayError(`the recording has no result of "${name}" for call ${callId}`);
        return call.result;
      },
    }),
  );
}
