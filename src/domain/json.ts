/**
 * JSON as Capstan stores and hashes it. Everything that enters the journal passes `toJsonValue` once; everything
 * that is hashed is written by `canonicalJson`. Both are versioned by RENDER_VERSION (transcript/render.ts): the
 * bytes that they give are promised to stay (P5).
 */
import { parseJsonText } from "./json-text.ts";

export type JsonValue = null | boolean | number | string | readonly JsonValue[] | { readonly [key: string]: JsonValue };
export type JsonObject = { readonly [key: string]: JsonValue };

/** Deeper values are refused: Postgres's and V8's JSON parsers both recurse, and both give up in the thousands. */
export const MAX_JSON_DEPTH = 256;

/**
 * More values than this are refused: some 64 MiB of text, the most that is kept of a result. Lower would refuse tables
 * that people do return; higher lets a small graph whose members are shared (a list of twice the same list, forty deep)
 * unfold until the event loop is blocked for longer than a lease (4 million take 2 s), or memory runs out.
 */
export const MAX_JSON_VALUES = 4_000_000;
/** Names and sentences of the user's own in a problem are cut here: the problem itself must fit into an event. */
const MAX_PROBLEM_CHARS = 500;

export type JsonProblem = { readonly path: string; readonly problem: string };
export type JsonResult = { readonly ok: true; readonly value: JsonValue; readonly repaired: number } | { readonly ok: false; readonly problem: JsonProblem };

/** Replaces what jsonb refuses: NUL (22P05) by U+FFFD, and lone surrogates (22P02) by U+FFFD. Length in code units is kept. */
export function wellFormedText(text: string): string {
  const nulFree = text.includes("\u0000") ? text.replaceAll("\u0000", "\uFFFD") : text;
  return nulFree.isWellFormed() ? nulFree : nulFree.toWellFormed();
}

/**
 * Turns any JavaScript value into a JSON value that Postgres stores and returns unchanged, or names the first place
 * that cannot be stored. `undefined` members are left out and top-level `undefined` becomes null, as JSON.stringify
 * does; strings are made well-formed and NUL-free (counted in `repaired`); -0 becomes 0, as jsonb does. BigInt,
 * functions, symbols, non-finite numbers, cycles, Map, Set and class instances without toJSON are refused: writing
 * them silently as null or {} would lose what the tool meant. Holes of an array become null. Never throws.
 */
export function toJsonValue(value: unknown): JsonResult {
  const seen = new Set<object>();
  let repaired = 0;
  let values = 0;
  class Refused extends Error {
    readonly at: JsonProblem;
    constructor(at: JsonProblem) {
      super(at.problem);
      this.at = at;
    }
  }
  const text = (s: string): string => {
    const fixed = wellFormedText(s);
    if (fixed !== s) repaired++;
    return fixed;
  };
  const count = (more: number, path: string): void => {
    values += more;
    if (values > MAX_JSON_VALUES) throw new Refused({ path, problem: `more than ${MAX_JSON_VALUES} values` });
  };
  const convert = (v: unknown, path: string, depth: number): JsonValue => {
    if (v === null || v === undefined) return null;
    if (typeof v === "string") return text(v);
    if (typeof v === "boolean") return v;
    if (typeof v === "number") {
      if (!Number.isFinite(v)) throw new Refused({ path, problem: `${v} is not a JSON number` });
      return v === 0 ? 0 : v;
    }
    if (typeof v !== "object") throw new Refused({ path, problem: `a ${typeof v} cannot be stored as JSON` });
    if (depth >= MAX_JSON_DEPTH) throw new Refused({ path, problem: `nested deeper than ${MAX_JSON_DEPTH} levels` });
    if (seen.has(v)) throw new Refused({ path, problem: "a cycle cannot be stored as JSON" });
    seen.add(v);
    try {
      if (Array.isArray(v)) {
        count(v.length, path);
        // Not v.map, which keeps holes.
        return Array.from(v as unknown[], (item, i) => convert(item, `${path}[${i}]`, depth + 1));
      }
      const toJson = (v as { toJSON?: unknown }).toJSON;
      if (typeof toJson === "function") return convert(toJson.call(v), path, depth + 1);
      const proto = Object.getPrototypeOf(v) as object | null;
      if (proto !== null && proto !== Object.prototype && Object.getPrototypeOf(proto) !== null) {
        throw new Refused({ path, problem: `a ${v.constructor?.name ?? "class instance"} cannot be stored as JSON; give a plain object` });
      }
      const out: Record<string, JsonValue> = {};
      const keys = Object.keys(v);
      count(keys.length, path);
      for (const key of keys) {
        const member = (v as Record<string, unknown>)[key];
        if (member !== undefined) setMember(out, text(key), convert(member, `${path}.${key}`, depth + 1));
      }
      return out;
    } finally {
      seen.delete(v);
    }
  };
  try {
    return { ok: true, value: convert(value, "$", 0), repaired };
  } catch (error) {
    if (error instanceof Refused) return { ok: false, problem: { path: quoted(error.at.path), problem: quoted(error.at.problem) } };
    // A getter or toJSON of the value's own threw.
    return { ok: false, problem: { path: "$", problem: quoted(`reading the value failed: ${sentenceOf(error)}`) } };
  }
}

/** A problem is journaled like any text: storable itself, and short. */
function quoted(text: string): string {
  const short = text.length <= MAX_PROBLEM_CHARS ? text : `${text.slice(0, MAX_PROBLEM_CHARS)}…`;
  return wellFormedText(short);
}

function sentenceOf(thrown: unknown): string {
  try {
    // Typed as text, but anything can be assigned to it.
    const message: unknown = thrown instanceof Error ? thrown.message : thrown;
    return String(message);
  } catch {
    return `it threw a ${typeof thrown}`;
  }
}

/**
 * The one textual form of a JSON value: no spaces, members sorted by UTF-16 code units, numbers as ECMAScript writes
 * them. Independent of member order, so a value that went through jsonb (which reorders members) gives the same text;
 * members that are undefined (an optional field of a message) are left out, as they are when the value is stored.
 */
export function canonicalJson(value: JsonValue): string {
  if (value === null || typeof value !== "object") return JSON.stringify(value === 0 ? 0 : value);
  if (Array.isArray(value)) return `[${value.map((item) => canonicalJson(item as JsonValue)).join(",")}]`;
  const object = value as JsonObject;
  const members = Object.keys(object)
    .filter((key) => object[key] !== undefined)
    .toSorted()
    .map((key) => `${JSON.stringify(key)}:${canonicalJson(object[key] as JsonValue)}`);
  return `{${members.join(",")}}`;
}

/** Parses text that a model wrote as JSON. Non-finite numbers (1e400) are a problem, not null or Infinity. */
export function parseJson(text: string): JsonResult {
  let parsed: unknown;
  try {
    parsed = parseJsonText(text);
  } catch (error) {
    // V8 quotes the text around the error.
    return { ok: false, problem: { path: "$", problem: quoted((error as Error).message) } };
  }
  return toJsonValue(parsed);
}

/** `__proto__` is an ordinary member, as it is in JSON. */
function setMember(target: Record<string, JsonValue>, key: string, value: JsonValue): void {
  if (key === "__proto__") Object.defineProperty(target, key, { value, enumerable: true, configurable: true, writable: true });
  else target[key] = value;
}
