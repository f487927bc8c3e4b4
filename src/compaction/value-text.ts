/** Any JavaScript value as bounded text. Reading it may throw, recur for ever or never end: none of that gets out. */
import { wellFormedText } from "../domain/json.ts";
import { isTainted } from "../domain/taint.ts";
import type { BoundedText } from "./bounded-text.ts";

export const REASONING_LEFT_OUT = "[reasoning left out]";
/** Values nested deeper are told in words; tools that nest this deep mean structure, not content. */
const MAX_DEPTH = 64;
/** A string longer than this is read in part: the patterns below pass over it more than once. */
const MAX_STRING_CHARS = 64 * 1024 * 1024;

/** Text at the top stays text, anything else is JSON-like. */
export function writeValue(out: BoundedText, value: unknown): void {
  write(out, value, 0, new Set());
}

function write(out: BoundedText, value: unknown, depth: number, path: Set<object>): void {
  if (out.isCut) return;
  if (typeof value === "string") {
    const text = cleanText(value);
    out.write(depth === 0 ? text : JSON.stringify(text.length > out.leftBytes + 1 ? text.slice(0, out.leftBytes + 1) : text));
  } else if (typeof value !== "object" || value === null) {
    out.write(typeof value === "function" || typeof value === "symbol" ? `[${typeof value}]` : `${(value ?? null) as null | boolean | number | bigint}`);
  } else if (path.has(value)) {
    out.write("[circular]");
  } else if (depth >= MAX_DEPTH) {
    out.write("[nested too deep]");
  } else {
    path.add(value);
    try {
      writeObject(out, value, depth, path);
    } catch {
      // A getter, toJSON or Proxy of the value's own threw.
      out.write("[unreadable]");
    } finally {
      path.delete(value);
    }
  }
}

function writeObject(out: BoundedText, value: object, depth: number, path: Set<object>): void {
  const left = isTainted(value) ? undefined : placeholderOf(value);
  if (left !== undefined) out.write(left);
  else if (isTainted(value)) write(out, value.value, depth, path);
  else if (Array.isArray(value) || value instanceof Set) writeList(out, value as Iterable<unknown>, depth, path);
  else if (value instanceof Map) writeMembers(out, value, depth, path);
  else if (value instanceof Error) write(out, `${value.name}: ${value.message}`, depth, path);
  else {
    const toJson = memberOf(value, "toJSON");
    if (typeof toJson === "function") write(out, toJson.call(value) as unknown, depth + 1, path);
    else {
      writeMembers(
        out,
        Object.keys(value).map((key) => [key, memberOf(value, key)] as const),
        depth,
        path,
      );
    }
  }
}

function writeList(out: BoundedText, items: Iterable<unknown>, depth: number, path: Set<object>): void {
  let separator = "";
  out.write("[");
  for (const item of items) {
    if (out.isCut) return;
    out.write(separator);
    write(out, item, depth + 1, path);
    separator = ",";
  }
  out.write("]");
}

function writeMembers(out: BoundedText, members: Iterable<readonly [unknown, unknown]>, depth: number, path: Set<object>): void {
  let separator = "";
  out.write("{");
  for (const [key, member] of members) {
    if (out.isCut) return;
    if (member === undefined) continue;
    out.write(separator);
    write(out, typeof key === "string" ? key : "[key]", depth + 1, path);
    out.write(":");
    write(out, member, depth + 1, path);
    separator = ",";
  }
  out.write("}");
}

/** What is not for a summarizer: bytes, media, a model's thinking. */
function placeholderOf(value: object): string | undefined {
  if (ArrayBuffer.isView(value) || value instanceof ArrayBuffer) return `[${value.byteLength} bytes of binary data left out]`;
  return isReasoning(value) ? REASONING_LEFT_OUT : mediaPlaceholder(value);
}

export function isReasoning(value: object): boolean {
  const type = memberOf(value, "type");
  return type === "reasoning" || type === "thinking" || type === "redacted_thinking";
}

const MEDIA_TYPES = new Set(["file", "image", "input_image", "audio", "input_audio", "video", "document", "media"]);
const MIME_KEYS = ["media_type", "mediaType", "mimeType", "mime_type"];
const BYTES_KEYS = ["data", "blob", "bytes", "base64", "sha256", "image_url"];

/**
 * For our file parts, for those of vendors and of MCP; undefined for what is no media. Text that a tool gives with its
 * type is content, and so is an address: data URLs in either are dealt with as text.
 */
export function mediaPlaceholder(value: object): string | undefined {
  const type = memberOf(value, "type");
  const mime = MIME_KEYS.map((key) => memberOf(value, key)).find((found) => typeof found === "string");
  const isTyped = typeof type === "string" && MEDIA_TYPES.has(type);
  const isBinary = typeof mime === "string" && (isTyped || !/^text\/|json|xml|yaml|csv/i.test(mime));
  if (!(isTyped || isBinary) || BYTES_KEYS.every((key) => memberOf(value, key) === undefined)) return undefined;
  const sizeBytes = memberOf(value, "size_bytes");
  const filename = memberOf(value, "filename");
  const words = [
    label(typeof mime === "string" ? mime : String(type)),
    ...(typeof filename === "string" ? [label(filename)] : []),
    ...(typeof sizeBytes === "number" ? [`${sizeBytes} bytes`] : []),
  ];
  return `[${words.join(", ")}, left out]`;
}

function label(text: string): string {
  return cleanText(text.slice(0, 100)).replaceAll(/[[\]\r\n]/g, "_");
}

/** No payload is longer than a name: the bytes of a picture cost a million tokens and tell a summarizer nothing. */
export function cleanText(text: string): string {
  return withoutPayloads(wellFormedText(text.length > MAX_STRING_CHARS ? text.slice(0, MAX_STRING_CHARS) : text));
}

/** Of a data URL all that stands before its payload. Every part is bounded, so that a long text costs one pass. */
const DATA_URL = /data:(?:[a-z]{1,20}\\{0,2}\/[a-z0-9.+-]{1,80}(?:;[^\s,;"'<>]{1,80}){0,4}|(?:;[^\s,;"'<>]{1,80}){1,4}),/gi;
/** Shorter runs of base64 may be keys and signatures that matter. */
const MIN_BASE64_CHARS = 4_096;

/**
 * Payloads are walked by hand: an expression that takes as much as it can keeps a way back for each character, and
 * throws in V8 for runs of some megabytes.
 */
function withoutPayloads(text: string): string {
  const pieces: string[] = [];
  let from = 0;
  const leaveOut = (start: number, end: number, what: string): void => {
    pieces.push(text.slice(from, start), `[${what}, ${end - start} characters, left out]`);
    from = end;
  };
  DATA_URL.lastIndex = 0;
  for (let url = DATA_URL.exec(text); url !== null; url = DATA_URL.exec(text)) {
    const end = endOf(text, url.index + url[0].length, isUrlCode);
    leaveOut(url.index, end, "data URL");
    DATA_URL.lastIndex = end;
  }
  const rest = from === 0 ? text : `${pieces.join("")}${text.slice(from)}`;
  return rest.length < MIN_BASE64_CHARS ? rest : withoutBase64(rest);
}

function withoutBase64(text: string): string {
  const pieces: string[] = [];
  let from = 0;
  for (let at = 0; at < text.length; at++) {
    if (!isBase64Code(text.charCodeAt(at))) continue;
    const end = endOf(text, at, isBase64Code);
    if (end - at >= MIN_BASE64_CHARS && looksEncoded(text.slice(at, at + 512))) {
      pieces.push(text.slice(from, at), `[base64, ${end - at} characters, left out]`);
      from = end;
    }
    at = end;
  }
  return from === 0 ? text : `${pieces.join("")}${text.slice(from)}`;
}

function endOf(text: string, start: number, belongs: (code: number) => boolean): number {
  let at = start;
  while (at < text.length && belongs(text.charCodeAt(at))) at++;
  return at;
}

/** What a URL may hold unquoted: no white space, quotes, brackets of markup, or backslash. */
function isUrlCode(code: number): boolean {
  return code > 0x20 && !URL_ENDS.has(code) && code !== 0x00a0 && code !== 0x2028 && code !== 0x2029;
}
const URL_ENDS: ReadonlySet<number> = new Set(Array.from("\"'`()<>\\", (character) => character.charCodeAt(0)));

/** Letters, digits, and the rest of both alphabets, with the padding. */
function isBase64Code(code: number): boolean {
  return (
    (code >= 0x61 && code <= 0x7a) ||
    (code >= 0x41 && code <= 0x5a) ||
    (code >= 0x30 && code <= 0x39) ||
    code === 0x2b ||
    code === 0x2f ||
    code === 0x2d ||
    code === 0x5f ||
    code === 0x3d
  );
}

/** Encoded bytes mix all kinds of characters; a long run of one letter is somebody's text. */
function looksEncoded(head: string): boolean {
  return /[a-z]/.test(head) && /[A-Z]/.test(head) && /\d/.test(head) && new Set(head).size > 20;
}

export function asObject(value: unknown): object | undefined {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? value : undefined;
}

/** Reading a member of a stranger's object may throw. */
export function memberOf(object: object, key: string): unknown {
  try {
    return (object as Record<string, unknown>)[key];
  } catch {
    return "[unreadable]";
  }
}
