/** What vendors say of a call that failed, without the key that it was made with: some quote it, whole or with its middle masked. */
import type { Model, ModelOutcome } from "../engine/model-port.ts";

const REPLACEMENT = "[redacted:provider_key]";
/** So many characters of a key tell which one it is. */
const SHOWN_CHARS = 8;
/** Shorter ones are placeholders of servers that ask for none (`none`, `ollama`), and words. */
const MIN_KEY_CHARS = 12;

/** @param keys all that the catalogue has: a gateway may answer with another's. Read at each failure, since that is rare. */
export function withoutKeys(model: Model, keys: () => Iterable<string>): Model {
  return {
    ...model,
    async call(call, context) {
      const outcome = await model.call(call, context);
      return outcome.kind === "failed" ? { ...outcome, message: scrubbed(outcome.message, keys()) } : outcome;
    },
  } satisfies { call: (...args: Parameters<Model["call"]>) => Promise<ModelOutcome> };
}

function scrubbed(message: string, keys: Iterable<string>): string {
  let text = message;
  for (const key of keys) {
    if (key.length < MIN_KEY_CHARS) continue;
    text = text.replaceAll(key, REPLACEMENT);
    const head = key.slice(0, SHOWN_CHARS);
    for (let at = text.indexOf(head); at >= 0; at = text.indexOf(head, at + REPLACEMENT.length)) {
      const [masked = ""] = /^[^\s"'`,;)\]}]*/.exec(text.slice(at)) ?? [];
      text = text.slice(0, at) + REPLACEMENT + text.slice(at + masked.length);
    }
  }
  return text;
}
