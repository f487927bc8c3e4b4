/** Recorded conversations: OpenAI chat messages, one conversation a line, as agent logs and public data sets have them. */
import { readFileSync } from "node:fs";
import { z } from "zod";
import { ModelConfigError } from "../model-config-error.ts";

const recordedCall = z.object({ id: z.string(), function: z.object({ name: z.string(), arguments: z.string() }) });
const recordedMessage = z.object({
  role: z.enum(["system", "user", "assistant", "tool"]),
  content: z.string().nullish(),
  tool_calls: z.array(recordedCall).nullish(),
  tool_call_id: z.string().nullish(),
});
const recording = z.object({ id: z.union([z.string(), z.number()]).transform(String), messages: z.array(recordedMessage) });

export type RecordedMessage = z.output<typeof recordedMessage>;
export type Recording = z.output<typeof recording>;

/** One answer of the recorded model, and what its calls gave. */
export interface RecordedTurn {
  readonly text: string;
  readonly calls: readonly { readonly name: string; readonly arguments: string; readonly result: string | undefined }[];
}

/** Throws MODEL_CONFIG_INVALID naming the file and the line. */
export function readRecordings(file: string): Recording[] {
  let lines: string[];
  try {
    lines = readFileSync(file, "utf8").split("\n");
  } catch (error) {
    throw new ModelConfigError("MODEL_CONFIG_INVALID", `recordings ${file} cannot be read: ${(error as Error).message}`, { file }, { cause: error });
  }
  return lines.flatMap((line, i) => (line.trim() === "" ? [] : [parseRecording(line, file, i + 1)]));
}

function parseRecording(line: string, file: string, number: number): Recording {
  const wrong = (problem: string, cause?: unknown) =>
    new ModelConfigError("MODEL_CONFIG_INVALID", `${file}, line ${number} is no recorded conversation ({"id", "messages": [...]}): ${problem}`, { file, line: number }, { cause });
  let json: unknown;
  try {
    json = JSON.parse(line);
  } catch (error) {
    throw wrong((error as Error).message, error);
  }
  const parsed = recording.safeParse(json);
  if (!parsed.success) throw wrong(parsed.error.issues.map((issue) => `${issue.path.join(".")} ${issue.message}`).join("; "));
  return parsed.data;
}

export function recordedTurns({ messages }: Pick<Recording, "messages">): RecordedTurn[] {
  return messages.flatMap((message, at): RecordedTurn[] => {
    if (message.role !== "assistant") return [];
    const following: RecordedMessage[] = [];
    for (let i = at + 1; messages[i]?.role === "tool"; i++) following.push(messages[i] as RecordedMessage);
    const calls = (message.tool_calls ?? []).map((call) => {
      // Ids repeat in real recordings, even within one answer: equal ones are taken in order.
      const found = following.findIndex((result) => result.tool_call_id === call.id);
      const result = found < 0 ? undefined : (following.splice(found, 1)[0]?.content ?? "");
      return { name: call.function.name, arguments: call.function.arguments, result };
    });
    return [{ text: message.content ?? "", calls }];
  });
}

/** Calls are named by their place, because recorded ids repeat: the tool that serves their results finds them by it. */
export function replayCallId(turnIndex: number, callIndex: number): string {
  return `replay_${turnIndex}_${callIndex}`;
}

export function placeOfCall(callId: string): { readonly turnIndex: number; readonly callIndex: number } | undefined {
  const match = /^replay_(\d{1,9})_(\d{1,9})$/.exec(callId);
  return match === null ? undefined : { turnIndex: Number(match[1]), callIndex: Number(match[2]) };
}
