/**
 * What a service knows of an agent that it only enqueues: name, and the schemas of input and output. In a module of its
 * own it is shared by the worker (`agent({ name: c.name, input: c.input, … })`) and by services, which load no worker code.
 */
import type { z } from "zod";
import { agentNamePattern } from "../domain/definition.ts";
import type { EnqueueAgent } from "./enqueue.ts";
import { ArgumentError, InputInvalidError } from "./errors.ts";
import { needsOffload } from "./offload.ts";

/** An agent as enqueue takes it: an agent in code, or its contract. Types flow from it to the input and the run's result. */
export interface TypedAgent<Input = unknown, Output = unknown> extends Pick<EnqueueAgent, "name" | "parseInput"> {
  /** Of an agent in code: its runs are pinned to it. A contract has none: its runs get the promoted one. */
  readonly definition?: EnqueueAgent["definition"];
  readonly isComplete?: boolean;
  /** For types only: never set. */
  readonly types?: { readonly input: Input; readonly output: Output };
}

interface ContractSpec {
  readonly name: string;
  /** Without one the input is a text, as an agent's is. */
  readonly input?: z.ZodType;
  /** Without one the result is a text. */
  readonly output?: z.ZodType;
}

type InputOf<Spec> = Spec extends { readonly input: infer Input extends z.ZodType } ? z.input<Input> : string;
type OutputOf<Spec> = Spec extends { readonly output: infer Output extends z.ZodType } ? z.output<Output> : string;

/** What it was made of, and what enqueue needs. */
export type AgentContract<Spec extends ContractSpec = ContractSpec> = Spec & TypedAgent<InputOf<Spec>, OutputOf<Spec>>;

/** Throws ArgumentError for a name that no agent can have, and for what belongs to the agent alone. */
export function agentContract<const Spec extends ContractSpec>(spec: Spec): AgentContract<Spec> {
  const { name, input, output: _output, ...strange } = spec;
  if (!agentNamePattern.test(name)) throw new ArgumentError(`${JSON.stringify(name)} is no name of an agent: ${agentNamePattern.source}`);
  const [field] = Object.keys(strange);
  if (field !== undefined) throw new ArgumentError(`a contract is made of name, input and output; ${field} belongs to the agent itself`);
  return {
    ...spec,
    parseInput(value) {
      const parsed = input?.safeParse(value);
      if (parsed === undefined) return { ok: true, value };
      if (parsed.success) return { ok: true, value: parsed.data };
      return { ok: false, issues: parsed.error.issues.map((issue) => ({ path: issue.path.map(String).join("."), message: issue.message })) };
    },
  };
}

/** Files are handed over as bytes, which no schema describes. Throws InputInvalidError before anything is sent. */
export function checkedInput(agent: TypedAgent | string, input: unknown): unknown {
  if (typeof agent === "string" || (typeof input !== "string" && needsOffload(input, Number.POSITIVE_INFINITY))) return input;
  const parsed = agent.parseInput(input);
  if (!parsed.ok) throw new InputInvalidError(agent.name, parsed.issues);
  return parsed.value;
}
