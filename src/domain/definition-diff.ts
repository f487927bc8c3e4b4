/** What differs between two definitions, field by field: empty exactly when they have the same hash. */
import { definitionText, type AgentDefinition } from "./definition.ts";
import { canonicalJson, type JsonObject, type JsonValue } from "./json.ts";

export interface DefinitionChange {
  /** `instructions`, `compaction.keep_last_n`, `tools.search.description`. */
  readonly path: string;
  /** Absent: there was none. */
  readonly before?: JsonValue;
  /** Absent: there is none any more. */
  readonly after?: JsonValue;
}

export function diffDefinitions(before: AgentDefinition, after: AgentDefinition): DefinitionChange[] {
  const [old, now] = [comparable(before), comparable(after)];
  const order = (definition: AgentDefinition): string[] => definition.tools.map(({ name }) => name);
  const reordered: DefinitionChange[] = isReordered(order(before), order(after)) ? [{ path: "tools (order)", before: order(before), after: order(after) }] : [];
  return [...changesOf(old, now, []), ...reordered];
}

/** As the hash sees it, with the tools by name: a tool that was added must not change all that come after it. */
function comparable(definition: AgentDefinition): JsonObject {
  const { tools = [], ...rest } = JSON.parse(definitionText(definition)) as { readonly tools?: readonly { readonly name: string }[] } & JsonObject;
  return tools.length === 0 ? rest : { ...rest, tools: Object.fromEntries(tools.map(({ name, ...tool }) => [name, tool])) };
}

function isReordered(before: readonly string[], after: readonly string[]): boolean {
  const common = (names: readonly string[], others: readonly string[]): string => names.filter((name) => others.includes(name)).join(" ");
  return common(before, after) !== common(after, before);
}

function changesOf(before: JsonValue | undefined, after: JsonValue | undefined, path: readonly string[]): DefinitionChange[] {
  if (isObject(before) && isObject(after)) {
    const keys = [...new Set([...Object.keys(before), ...Object.keys(after)])].toSorted();
    return keys.flatMap((key) => changesOf(own(before, key), own(after, key), [...path, key]));
  }
  if (before !== undefined && after !== undefined && canonicalJson(before) === canonicalJson(after)) return [];
  if (before === undefined && after === undefined) return [];
  return [{ path: path.join("."), ...(before === undefined ? {} : { before }), ...(after === undefined ? {} : { after }) }];
}

const own = (object: JsonObject, key: string): JsonValue | undefined => (Object.hasOwn(object, key) ? object[key] : undefined);

function isObject(value: JsonValue | undefined): value is JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
