/** Redacts JSON values: their strings, their members' names, and numbers long enough to be a card's. What has nothing to hide comes back as it was. */
import { canonicalJson, type JsonObject, type JsonValue } from "../json.ts";
import type { AssistantPart, ToolCallPart } from "../transcript/message.ts";

type Redact = (text: string) => string;

/** Shorter numbers are no card's and no person's; longer ones JavaScript does not count exactly. */
const MIN_NUMBER = 1e8;

export interface JsonOptions {
  /** Numbers too. Left out where numbers are sizes, costs and times. */
  readonly numbers?: boolean;
}

export function redactedJson(value: JsonValue, redact: Redact, options: JsonOptions = {}): JsonValue {
  if (typeof value === "string") return redact(value);
  if (typeof value === "number") return options.numbers === true && Number.isInteger(value) && Math.abs(value) >= MIN_NUMBER ? redactedNumber(value, redact) : value;
  if (value === null || typeof value !== "object") return value;
  if (Array.isArray(value)) {
    const items = (value as readonly JsonValue[]).map((item) => redactedJson(item, redact, options));
    return items.some((item, i) => item !== value[i]) ? items : value;
  }
  if (isFile(value as JsonObject)) return redactedFile(value as JsonObject, redact);
  const entries = Object.entries(value as JsonObject);
  let isChanged = false;
  const names = new Set<string>();
  const members = entries.flatMap(([name, member]): [string, JsonValue][] => {
    if (member === undefined) return [];
    const newMember = redactedJson(member, redact, options);
    const newName = unused(redact(name), names);
    names.add(newName);
    isChanged ||= newName !== name || newMember !== member;
    return [[newName, newMember]];
  });
  return isChanged ? objectOf(members) : value;
}

/** A reference to a blob: what names it must stay as it is, or nobody finds it. */
function isFile({ type, sha256, media_type: mediaType }: JsonObject): boolean {
  return type === "file" && typeof sha256 === "string" && /^[0-9a-f]{64}$/.test(sha256) && typeof mediaType === "string" && /^[\w.+-]{1,60}\/[\w.+-]{1,60}$/.test(mediaType);
}

function redactedFile(file: JsonObject, redact: Redact): JsonObject {
  const { type, sha256, media_type, size_bytes, ...rest } = file;
  const others = redactedJson(rest, redact);
  return others === rest
    ? file
    : { type: type as string, sha256: sha256 as string, media_type: media_type as string, ...(size_bytes === undefined ? {} : { size_bytes }), ...(others as JsonObject) };
}

/** A number that is a secret becomes text: there is no number that says so. */
function redactedNumber(value: number, redact: Redact): JsonValue {
  const text = String(value);
  const redacted = redact(text);
  return redacted === text ? value : redacted;
}

/** Two names may become the same. */
function unused(name: string, taken: ReadonlySet<string>): string {
  let free = name;
  for (let n = 2; taken.has(free); n++) free = `${name} ${n}`;
  return free;
}

function objectOf(members: readonly (readonly [string, JsonValue])[]): JsonObject {
  const out: Record<string, JsonValue> = {};
  // Also `__proto__` is a member like any other.
  for (const [name, value] of members) Object.defineProperty(out, name, { value, enumerable: true, configurable: true, writable: true });
  return out;
}

/**
 * An answer's parts. A vendor's signature stands for its reasoning to the letter: reasoning that was changed goes
 * without. Arguments are redacted in their parsed form, so they stay JSON; as written they are kept only while they say
 * the same.
 */
export function redactedParts(content: readonly AssistantPart[], redact: Redact): readonly AssistantPart[] {
  const parts = content.map((part): AssistantPart => {
    if (part.type === "tool_call") return redactedCall(part, redact);
    const text = redact(part.text);
    return text === part.text ? part : { type: part.type, text };
  });
  return parts.some((part, i) => part !== content[i]) ? parts : content;
}

function redactedCall(part: ToolCallPart, redact: Redact): ToolCallPart {
  const name = redact(part.name);
  const callId = redact(part.call_id);
  const input = part.input === undefined ? undefined : redactedJson(part.input, redact, { numbers: true });
  const written = part.arguments === undefined ? undefined : redact(part.arguments);
  const invalid = part.invalid === undefined ? undefined : redact(part.invalid);
  if (name === part.name && callId === part.call_id && input === part.input && written === part.arguments && invalid === part.invalid) return part;
  const { input: _input, arguments: _written, invalid: _invalid, ...rest } = part;
  if (input === undefined) return { ...rest, name, call_id: callId, ...(written === undefined ? {} : { arguments: written }), ...(invalid === undefined ? {} : { invalid }) };
  // What was written and parsed may differ in what was redacted: only its parsed form is known to be clean JSON.
  const keeps = written !== undefined && written === part.arguments && input === part.input && written !== canonicalJson(input);
  return { ...rest, name, call_id: callId, input, ...(keeps ? { arguments: written } : {}) };
}
