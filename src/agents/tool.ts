/** How users write a tool. */
import { z } from "zod";
import { toolDefinition, type ToolDefinition, type ToolEffect } from "../domain/definition.ts";
import type { JsonObject, JsonValue } from "../domain/json.ts";
import type { ToolCode, ToolContext } from "../engine/code.ts";
import { fromZod, type Checked } from "../domain/json-schema.ts";
import { ConfigError, type ConfigIssue } from "./config-error.ts";

export interface ToolSpec<Input extends z.ZodType = z.ZodType> {
  readonly name: string;
  readonly description: string;
  /** A zod object. The model sees its JSON Schema; `execute` gets the parsed value. */
  readonly input: Input;
  /**
   * What happens when a call is interrupted. `read` (no side effects) and `idempotent` (safe to repeat with the same
   * `idempotencyKey`) are repeated; `once`, the default, never is: the model is told that the outcome is unknown.
   */
  readonly effect?: ToolEffect;
  execute(input: z.output<Input>, context: ToolContext): unknown;
  /** Milliseconds, 1 to 86,400,000; default 10 minutes. */
  readonly timeoutMs?: number;
  /** For `read` and `idempotent`: tries in all (1 to 20) and the first pause, doubled each time (default 200 ms). */
  readonly retry?: { readonly attempts: number; readonly backoffMs?: number };
  /**
   * A person decides before anything is executed: `true`, or for which arguments (one that throws counts as yes).
   * `expiresMs` after which `onExpiry` (default `deny`) counts; without it the run waits for as long as it takes.
   */
  readonly approval?: boolean | ApprovalSpec<z.output<Input>>;
  /** Bytes of a result kept inline, 1,024 to 16 MiB; default 256 KiB. More goes to a blob, the model gets an excerpt. */
  readonly maxResultBytes?: number;
}

export interface ApprovalSpec<Input = unknown> {
  readonly when?: (input: Input) => boolean;
  /** Milliseconds, up to ten years. */
  readonly expiresMs?: number;
  readonly onExpiry?: "approve" | "deny";
}

const CAPSTAN_TOOL = Symbol("capstan.tool");
export interface Tool extends ToolCode {
  readonly [CAPSTAN_TOOL]: true;
}

/** Throws ConfigError: bad names, ranges, fields that do not exist, `retry` on a `once` tool, an input that has no JSON Schema. */
export function tool<Input extends z.ZodType>(spec: ToolSpec<Input>): Tool {
  const { name, description, input, effect = "once", execute, timeoutMs, retry, maxResultBytes, approval, ...strange } = spec;
  const where = `tool ${JSON.stringify(name)}`;
  refuseStrange(where, strange);
  if (typeof execute !== "function") throw new ConfigError(where, [{ path: "execute", message: "must be a function" }]);
  if (retry !== undefined && effect === "once") {
    throw new ConfigError(where, [{ path: "retry", message: 'is for effect "read" or "idempotent" only: a tool with side effects is never repeated by us' }]);
  }
  const { when, ...asks } = approval === true ? {} : approval === false || approval === undefined ? {} : approval;
  if (when !== undefined && typeof when !== "function") throw new ConfigError(where, [{ path: "approval.when", message: "must be a function of the arguments" }]);
  const definition = checkDefinition(where, {
    name,
    description,
    input_schema: objectSchemaOf(where, "input", input),
    effect,
    ...(timeoutMs === undefined ? {} : { timeout_ms: timeoutMs }),
    ...(retry === undefined ? {} : { retry: snakeKeys(retry) }),
    ...(maxResultBytes === undefined ? {} : { max_result_bytes: maxResultBytes }),
    ...(approval === undefined || approval === false ? {} : { approval: { when: when === undefined ? "always" : "predicate", ...snakeKeys(asks) } }),
  });
  return {
    [CAPSTAN_TOOL]: true,
    definition,
    check: (value: JsonValue): Checked => fromZod(input.safeParse(value)),
    ...(when === undefined ? {} : { needsApproval: (value: unknown) => when(value as z.output<Input>) }),
    // Through the spec: `execute` may be a method that uses `this`.
    execute: (value, context) => spec.execute(value as z.output<Input>, context),
  };
}

export function isTool(value: unknown): value is Tool {
  return typeof value === "object" && value !== null && CAPSTAN_TOOL in value;
}

/** Fields that the types do not know: a misspelt one would otherwise do nothing, silently. */
export function refuseStrange(where: string, strange: object): void {
  const keys = Object.keys(dropUnset(strange));
  if (keys.length > 0)
    throw new ConfigError(
      where,
      keys.map((path) => ({ path, message: "is not a known field" })),
    );
}

function checkDefinition(where: string, candidate: unknown): ToolDefinition {
  const parsed = toolDefinition.safeParse(candidate);
  if (!parsed.success) throw new ConfigError(where, camelIssues(parsed.error));
  return parsed.data;
}

/** The JSON Schema of an object, as vendors want it for a tool's input. */
export function objectSchemaOf(where: string, field: string, schema: z.ZodType): JsonObject {
  const json = jsonSchemaOf(where, field, schema);
  if (json["type"] !== "object") throw new ConfigError(where, [{ path: field, message: "must be a zod object (z.object({...})): vendors take nothing else" }]);
  return json;
}

/** Throws ConfigError for schemas that JSON Schema cannot express (transforms without an input side, functions, maps…). */
export function jsonSchemaOf(where: string, field: string, schema: z.ZodType, io: "input" | "output" = "input"): JsonObject {
  try {
    const { $schema: _, ...json } = z.toJSONSchema(schema, { io, unrepresentable: "throw" });
    return json as JsonObject;
  } catch (error) {
    throw new ConfigError(where, [{ path: field, message: `has no JSON Schema: ${error instanceof Error ? error.message : String(error)}` }]);
  }
}

/** The issues of a definition under the names that its author wrote: camelCase, except inside the compaction policy. */
export function camelIssues(error: z.ZodError): ConfigIssue[] {
  const issues = error.issues.flatMap((issue): ConfigIssue[] => {
    const name = issue.path[0] === "compaction" ? String : camel;
    const path = issue.path.map((step) => name(String(step)));
    if (issue.code !== "unrecognized_keys") return [{ path: path.join("."), message: issue.message }];
    return issue.keys.map((key) => ({ path: [...path, name(key)].join("."), message: "is not a known field" }));
  });
  return issues.filter(({ path, message }, i) => issues.findIndex((other) => other.path === path && other.message === message) === i);
}

/** camelCase of TypeScript to the stored snake_case: the one place for definitions. */
export function snakeKeys(spec: object): object {
  if (typeof spec !== "object" || spec === null || Array.isArray(spec)) return spec;
  return dropUnset(Object.fromEntries(Object.entries(spec).map(([key, value]) => [key.replaceAll(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`), value])));
}

export function dropUnset(object: object): object {
  return Object.fromEntries(Object.entries(object).filter(([, value]) => value !== undefined));
}

function camel(snake: string): string {
  return snake.replaceAll(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());
}
