/**
 * What keeps secrets out of everything that is stored, logged, traced or summarized. One is made by createCapstan and one
 * by createClient; texts meet it where they come in (src/capabilities/redact-ports.ts, src/client/enqueue.ts) and once
 * more where events are written.
 */
import { CapstanError } from "../error.ts";
import type { JsonObject, JsonValue } from "../json.ts";
import type { AssistantPart } from "../transcript/message.ts";
import { PatternFailed } from "./bounded-pattern.ts";
import { redactedJson, redactedParts, type JsonOptions } from "./json-text.ts";
import { redactedError, redactedThing } from "./error.ts";
import { readOptions, type RedactContext, type RedactOptions } from "./options.ts";
import { replacementOf, type RedactionRule, type Span, type SqlRule } from "./rules.ts";
import { escaped, textRedactor } from "./text.ts";

/** A hook that threw, hung or gave no text: what it was asked about is not kept. */
export class RedactionFailedError extends CapstanError {
  override readonly name = "RedactionFailedError";
  readonly code = "REDACTION_FAILED";
  override readonly retryable = true;
  override readonly details: JsonObject;
  constructor(place: RedactContext["place"], problem: string, options?: ErrorOptions) {
    super(`the redaction hook failed on ${place}, so nothing of it was kept: ${problem}`, options);
    this.details = { place };
  }
}

/** Shorter values would be found in ordinary words. */
const MIN_SECRET_CHARS = 6;
const SECRET = "secret";
const TEXT_TYPES = /^(?:text\/|application\/(?:json|xml|x-ndjson|yaml|[\w.+-]+\+(?:json|xml))\b)/i;

export class Redactor {
  readonly rules: readonly RedactionRule[];
  readonly hasHook: boolean;
  readonly #hook: RedactOptions["hook"];
  readonly #hookTimeoutMs: number;
  readonly #byRules: (text: string) => string;
  readonly #secrets = new Set<string>();
  #secretPattern: RegExp | undefined;

  /** Throws ConfigError-like issues through `readOptions`. */
  constructor(options: RedactOptions) {
    const { rules, hook, hookTimeoutMs } = readOptions(options);
    this.rules = rules;
    this.#hook = hook;
    this.#hookTimeoutMs = hookTimeoutMs;
    this.hasHook = hook !== undefined;
    const handedOut: RedactionRule = { name: SECRET, find: (text) => this.#findSecrets(text) };
    this.#byRules = textRedactor([handedOut, ...rules]);
  }

  /** By the rules and the secrets that were handed out. Where a pattern fails, nothing of the text is kept. A property: it is handed on as a function. */
  readonly text = (text: string): string => {
    try {
      return this.#byRules(text);
    } catch (error) {
      if (error instanceof PatternFailed) return replacementOf("pattern_failed");
      throw error;
    }
  };

  json(value: JsonValue, options?: JsonOptions): JsonValue {
    return redactedJson(value, this.text, options);
  }

  /** The same class and code in other words. */
  error<E extends Error>(error: E): E {
    return redactedError(error, this.text);
  }

  /** Fields of a log line. */
  fields(fields: object): object {
    return redactedThing(fields, this.text) as object;
  }

  /** By the hook, then by the rules. Throws RedactionFailedError. */
  async value(value: JsonValue, context: RedactContext): Promise<JsonValue> {
    const hooked = await this.#hooked(stringsOf(value), context);
    return redactedJson(value, hooked, { numbers: true });
  }

  /** Bytes of a text file; others are not looked into. */
  async file(content: Uint8Array, mediaType: string, context: RedactContext): Promise<Uint8Array> {
    if (!TEXT_TYPES.test(mediaType)) return content;
    const text = new TextDecoder().decode(content);
    const redacted = (await this.value(text, context)) as string;
    return redacted === text ? content : new TextEncoder().encode(redacted);
  }

  async parts(content: readonly AssistantPart[], context: RedactContext): Promise<readonly AssistantPart[]> {
    return redactedParts(content, await this.#hooked(stringsOf(content as unknown as JsonValue), context));
  }

  /** A secret that a tool was given: its value is a secret from now on wherever it turns up, also in the forms in which services give it back. */
  knows(secret: string): void {
    if (secret.length < MIN_SECRET_CHARS || this.#secrets.has(secret)) return;
    for (const form of [secret, encodeURIComponent(secret.toWellFormed()), base64(secret), JSON.stringify(secret).slice(1, -1)]) this.#secrets.add(form);
    this.#secretPattern = undefined;
  }

  /** What Postgres can do of this itself, for what comes through SQL. */
  sqlRules(): { readonly name: string; readonly rule: SqlRule }[] {
    const rules = this.rules.flatMap(({ name, sql }) => (sql === undefined ? [] : [{ name, rule: sql }]));
    // One after another there: what has a check sum comes before what merely looks for digits, and would leave half of it.
    return [...rules.filter(({ rule }) => rule.kind !== "pattern"), ...rules.filter(({ rule }) => rule.kind === "pattern")];
  }

  #findSecrets(text: string): Span[] {
    if (this.#secrets.size === 0) return [];
    // The longest first: one secret may begin with another.
    this.#secretPattern ??= new RegExp(
      [...this.#secrets]
        .toSorted((a, b) => b.length - a.length)
        .map(escaped)
        .join("|"),
      "g",
    );
    return Array.from(text.matchAll(this.#secretPattern), (match) => ({ start: match.index, end: match.index + match[0].length }));
  }

  async #hooked(texts: ReadonlySet<string>, context: RedactContext): Promise<(text: string) => string> {
    const hook = this.#hook;
    if (hook === undefined) return this.text;
    const made = new Map<string, string>();
    const timeout = AbortSignal.timeout(this.#hookTimeoutMs);
    const late = new Promise<never>((_, reject) => {
      timeout.addEventListener("abort", () => reject(new Error(`it gave no answer within ${this.#hookTimeoutMs} ms`)), { once: true });
    });
    try {
      await Promise.race([
        late,
        (async () => {
          for (const text of texts) {
            if (timeout.aborted) return;
            const given: unknown = await hook(text, context);
            if (typeof given !== "string") throw new Error(`it gave a ${typeof given}, not a text`);
            made.set(text, given);
          }
        })(),
      ]);
    } catch (error) {
      // Not its message: the hook has seen the secret and may quote it.
      throw new RedactionFailedError(context.place, error instanceof Error ? this.text(error.message) : "it threw");
    }
    return (text) => this.text(made.get(text) ?? text);
  }
}

/** UTF-8, as services encode it; the domain has no Buffer. */
function base64(text: string): string {
  return btoa(String.fromCharCode(...new TextEncoder().encode(text.slice(0, 10_000))));
}

function stringsOf(value: JsonValue, found = new Set<string>()): ReadonlySet<string> {
  if (typeof value === "string") {
    if (value !== "") found.add(value);
  } else if (Array.isArray(value)) {
    for (const item of value as readonly JsonValue[]) stringsOf(item, found);
  } else if (typeof value === "object" && value !== null) {
    for (const [name, member] of Object.entries(value as JsonObject)) {
      found.add(name);
      if (member !== undefined) stringsOf(member, found);
    }
  }
  return found;
}
