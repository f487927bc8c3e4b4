/** Input without secrets, before anything of it leaves the process: JSON by hook and rules, files that are text by their text. */
import { toJsonValue, type JsonValue } from "../domain/json.ts";
import type { RedactContext } from "../domain/redact/options.ts";
import type { Redactor } from "../domain/redact/redactor.ts";
import { isFileInput, type FileInput } from "./offload.ts";

/** The same value when there was nothing to hide, or when it is no JSON, which is refused by who stores it. Throws RedactionFailedError. */
export async function redactInput(input: unknown, redactor: Redactor, context: RedactContext): Promise<unknown> {
  if (!Array.isArray(input) || !input.some(isFileInput)) {
    const json = toJsonValue(input);
    if (!json.ok) return input;
    const redacted = await redactor.value(json.value, context);
    return redacted === json.value ? input : redacted;
  }
  return await Promise.all(input.map((part: unknown) => (isFileInput(part) ? redactedFile(part, redactor, context) : redactInput(part, redactor, context))));
}

async function redactedFile(file: FileInput, redactor: Redactor, context: RedactContext): Promise<FileInput> {
  const filename = file.filename === undefined ? {} : { filename: (await redactor.value(file.filename, context)) as string };
  return { ...file, ...filename, data: await redactor.file(file.data, file.media_type, { ...context, place: "file" }) };
}

/** For what is not enqueued: messages, answers, signals. */
export async function redactedJsonInput(value: JsonValue, redactor: Redactor | undefined, context: RedactContext): Promise<JsonValue> {
  return redactor === undefined ? value : await redactor.value(value, context);
}
