/**
 * A fork: a definition with some of its fields changed. What an overlay may say is derived from the definition's own
 * schema, so that a field which is added there can be overlaid at once.
 */
import { z } from "zod";
import { agentDefinition, normalizeDefinition, type AgentDefinition } from "./definition.ts";
import { forkIssues } from "./fork-rules.ts";
import type { JsonObject, JsonValue } from "./json.ts";
import { toJsonValue } from "./json.ts";

/** Groups of fields (`compaction`, `limits`...) are merged field by field; JSON Schemas, lists and scalars are replaced. */
type Overlaid<T> = T extends readonly unknown[]
  ? T
  : T extends object
    ? string extends keyof T
      ? T
      : { readonly [K in keyof T]?: Overlaid<NonNullable<T[K]>> | null | undefined }
    : T;

/** `null` unsets; absent leaves as it is. `tools` lists the names of those that are kept: a fork brings no code. */
export type DefinitionOverlay = {
  readonly [K in Exclude<keyof AgentDefinition, "name">]?: (K extends "tools" ? readonly string[] : Overlaid<NonNullable<AgentDefinition[K]>>) | null | undefined;
};

export interface DefinitionIssue {
  /** As stored: `compaction.keep_last_n`, `limits.max_turns`. */
  readonly path: string;
  readonly message: string;
}

export type OverlayResult = { readonly ok: true; readonly definition: AgentDefinition } | { readonly ok: false; readonly issues: readonly DefinitionIssue[] };

const definitionShape: Readonly<Record<string, z.ZodType>> = agentDefinition.shape;

/** The fields of a group, or undefined for a field that is one value. */
function groupOf(field: z.ZodType | undefined): Readonly<Record<string, z.ZodType>> | undefined {
  const inner = field instanceof z.ZodOptional ? field.unwrap() : field;
  return inner instanceof z.ZodObject ? inner.shape : undefined;
}

function overlaid(field: z.ZodType): z.ZodType {
  const group = groupOf(field);
  const inner = field instanceof z.ZodOptional ? (field.unwrap() as z.ZodType) : field;
  const value = group === undefined ? inner : z.strictObject(mapFields(group));
  // What every definition must have cannot be unset.
  return (field instanceof z.ZodOptional ? value.nullable() : value).optional();
}

function mapFields(shape: Readonly<Record<string, z.ZodType>>): Record<string, z.ZodType> {
  return Object.fromEntries(Object.entries(shape).map(([name, field]) => [name, overlaid(field)]));
}

const { name: _, tools: __, ...overlayFields } = mapFields(definitionShape);
export const definitionOverlay = z.strictObject({ ...overlayFields, tools: z.array(z.string()).nullable().optional() });

/** Pure; changes neither of the two. What comes out has passed everything that a definition in code has to pass. */
export function applyOverlay(base: AgentDefinition, overlay: DefinitionOverlay): OverlayResult {
  const json = toJsonValue(overlay);
  if (!json.ok) return refused([{ path: json.problem.path, message: json.problem.problem }]);
  const parsed = definitionOverlay.safeParse(json.value);
  if (!parsed.success) return refused(issuesOf(parsed.error, json.value));
  const given = parsed.data as JsonObject;
  const strangers = (parsed.data.tools ?? []).filter((tool) => !base.tools.some(({ name }) => name === tool));
  if (strangers.length > 0) {
    return refused([
      { path: "tools", message: `names ${strangers.join(", ")}; a fork keeps some of ${base.tools.map(({ name }) => name).join(", ") || "no tools"} and cannot add any` },
    ]);
  }
  const changed: Record<string, unknown> = { ...base };
  for (const [field, value] of Object.entries(given)) {
    if (field === "tools") changed[field] = base.tools.filter(({ name }) => (parsed.data.tools ?? []).includes(name));
    else if (value === null) delete changed[field];
    else changed[field] = mergeField(definitionShape[field], changed[field] as JsonValue | undefined, value);
  }
  const checked = agentDefinition.safeParse(normalizeDefinition(changed as AgentDefinition));
  if (!checked.success) return refused(issuesOf(checked.error, changed as JsonObject));
  const issues = forkIssues(base, checked.data, given);
  return issues.length > 0 ? refused(issues) : { ok: true, definition: checked.data };
}

const refused = (issues: readonly DefinitionIssue[]): OverlayResult => ({ ok: false, issues });

function mergeField(schema: z.ZodType | undefined, base: JsonValue | undefined, over: JsonValue): JsonValue {
  const group = groupOf(schema);
  if (group === undefined) return over;
  const merged = new Map(Object.entries((base ?? {}) as JsonObject));
  for (const [name, value] of Object.entries(over as JsonObject)) {
    if (value === null) merged.delete(name);
    else merged.set(name, mergeField(group[name], merged.get(name), value));
  }
  return Object.fromEntries(merged);
}

function issuesOf(error: z.ZodError, input: JsonValue): DefinitionIssue[] {
  return error.issues.flatMap((issue): DefinitionIssue[] => {
    const path = issue.path.map(String);
    if (issue.code !== "unrecognized_keys") return [{ path: path.join("."), message: messageOf(issue, valueAt(input, path)) }];
    return issue.keys.map((key) => ({ path: [...path, key].join("."), message: strange([...path, key]) }));
  });
}

function messageOf(issue: z.core.$ZodIssue, value: JsonValue | undefined): string {
  if (issue.path.length === 0) return "must be an object of fields to change";
  if (value === null) return "cannot be unset: it must have a value";
  if (value === undefined) return "is missing";
  return issue.message;
}

function strange(path: readonly string[]): string {
  if (path.length === 1 && path[0] === "name") return "cannot be changed: a fork is another definition of the same agent";
  const group = path.slice(0, -1).reduce<Readonly<Record<string, z.ZodType>>>((shape, step) => groupOf(shape[step]) ?? {}, definitionShape);
  const known = path.length === 1 ? Object.keys(overlayFields).concat("tools") : Object.keys(group);
  return `is not a known field: there ${known.length === 1 ? "is" : "are"} ${known.join(", ")}`;
}

function valueAt(value: JsonValue | undefined, path: readonly string[]): JsonValue | undefined {
  return path.reduce<JsonValue | undefined>((at, step) => (typeof at === "object" && at !== null ? (at as JsonObject)[step] : undefined), value);
}
