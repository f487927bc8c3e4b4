/** A fork of a definition: what its overlay may say, and when it is another definition. */
import { createHash } from "node:crypto";
import { describe, expect, it } from "vitest";
import { z } from "zod";
import { compactionPolicy } from "../../src/domain/compaction/policy.ts";
import { agentDefinition, definitionText, type AgentDefinition } from "../../src/domain/definition.ts";
import { applyOverlay, definitionOverlay, type DefinitionOverlay } from "../../src/domain/overlay.ts";

const shaOf = (definition: AgentDefinition): string => createHash("sha256").update(definitionText(definition)).digest("hex");
const toolNamed = (name: string): AgentDefinition["tools"][number] => ({ name, description: name, input_schema: { type: "object", properties: {} }, effect: "read" });

/** Every field set, so that each can be changed and unset. */
const full = {
  name: "clerk",
  model: "offline:a",
  fallbacks: ["offline:b"],
  instructions: "Be exact.",
  tools: [toolNamed("search"), toolNamed("write"), toolNamed("read"), toolNamed("agent")],
  input_schema: { type: "string" },
  output_schema: { type: "object" },
  settings: { max_output_tokens: 100, temperature: 1, top_p: 1, seed: 1, reasoning_effort: "low", stop_sequences: ["x"], provider_options: { a: 1, b: [] } },
  limits: { max_turns: 10, deadline_ms: 1000, parallel_tools: 2, max_calls_per_turn: 3, model_attempts: 4, model_timeout_ms: 5000, inline_payload_bytes: 5000 },
  interactive: true,
  warn_transcript_bytes: 1000,
  compaction: {
    enabled: true,
    autocompact_at_pct: 80,
    at_tokens: 1000,
    after_bytes: 50_000,
    keep_first: true,
    keep_last_n: 4,
    target_percentage: 10,
    model: "a",
    summarizer: "mine",
    instruction: "short",
    max_tokens: 1024,
    prefetch_at_pct: 60,
  },
  grants: ["model:offline:*", "tool:*", "summarizer:*", "agent:*"],
  claim_check: { tools: ["search"], over_bytes: 1000, preview_bytes: 100 },
  approvals: { tools: ["search"], expires_ms: 1000, on_expiry: "approve" },
  spawn: { agents: ["helper", "*"], max_depth: 2, max_children: 3, concurrency: 4 },
  budget: { soft: { turns: 5, tokens: 500 }, hard: { turns: 10, tokens: 1000, cost_usd_micros: 7, wall_ms: 9 }, wrap_up: true },
} satisfies Required<AgentDefinition> as AgentDefinition;

/** Another value for every field; groups hold one for each of theirs. */
const changed: { readonly [K in Exclude<keyof AgentDefinition, "name">]-?: NonNullable<DefinitionOverlay[K]> } = {
  model: "offline:c",
  fallbacks: ["offline:d"],
  instructions: "Be kind.",
  tools: ["search", "agent"],
  input_schema: { type: "number" },
  output_schema: { type: "array" },
  settings: { max_output_tokens: 200, temperature: 0, top_p: 0, seed: 2, reasoning_effort: "high", stop_sequences: ["y"], provider_options: { a: 2 } },
  limits: { max_turns: 11, deadline_ms: 1001, parallel_tools: 3, max_calls_per_turn: 4, model_attempts: 5, model_timeout_ms: 5001, inline_payload_bytes: 5001 },
  interactive: false,
  warn_transcript_bytes: false,
  compaction: {
    enabled: false,
    autocompact_at_pct: 70,
    at_tokens: 2000,
    after_bytes: 60_000,
    keep_first: false,
    keep_last_n: 0,
    target_percentage: 20,
    model: "b",
    summarizer: "other",
    instruction: "long",
    max_tokens: 2048,
    prefetch_at_pct: 50,
  },
  grants: ["model:offline:*", "tool:search", "tool:read"],
  claim_check: { tools: ["write"], over_bytes: 2000, preview_bytes: 50 },
  approvals: { tools: ["*"], expires_ms: 2000, on_expiry: "deny" },
  spawn: { agents: ["helper"], max_depth: 3, max_children: 4, concurrency: 5 },
  budget: { soft: { turns: 4, tokens: 400 }, hard: { turns: 11, tokens: 1001, cost_usd_micros: 8, wall_ms: 10 }, wrap_up: false },
};
const fields = Object.keys(changed) as (keyof typeof changed)[];
const shape: Readonly<Record<string, z.ZodType>> = agentDefinition.shape;
const groupShape = (field: string): Readonly<Record<string, unknown>> | undefined => {
  const schema = shape[field];
  const inner = schema instanceof z.ZodOptional ? schema.unwrap() : schema;
  return inner instanceof z.ZodObject ? inner.shape : undefined;
};
const groups = fields.filter((field) => groupShape(field) !== undefined) as ("settings" | "limits" | "compaction" | "claim_check" | "approvals" | "spawn")[];
const inGroups = groups.flatMap((group) => Object.keys(groupShape(group) ?? {}).map((field) => [group, field] as const));
const isRequired = (schema: unknown): boolean => !(schema instanceof z.ZodOptional);

function fork(overlay: object, base = full): AgentDefinition {
  const result = applyOverlay(base, overlay);
  if (!result.ok) throw new Error(JSON.stringify(result.issues));
  return result.definition;
}
function problems(overlay: object, base = full): string[] {
  const result = applyOverlay(base, overlay);
  return result.ok ? [] : result.issues.map(({ path, message }) => `${path} ${message}`);
}

describe("the overlay's schema", () => {
  it("has every field of a definition except its name, and these tests a value for each", () => {
    const known = Object.keys(shape).filter((field) => field !== "name");
    expect(Object.keys(definitionOverlay.shape).toSorted()).toEqual(known.toSorted());
    expect(fields.toSorted()).toEqual(known.toSorted());
    for (const group of groups) expect(Object.keys(changed[group]).toSorted()).toEqual(Object.keys(groupShape(group) ?? {}).toSorted());
    expect(groups.toSorted()).toEqual(["approvals", "budget", "claim_check", "compaction", "limits", "settings", "spawn"]);
  });
});

describe.each(fields)("%s", (field) => {
  const overlay = { [field]: changed[field] };

  it("is changed by an overlay, and nothing else is", () => {
    const result = fork(overlay);
    const { [field]: after, ...rest } = result;
    const { [field]: before, ...restBefore } = full;
    expect(rest).toEqual(restBefore);
    expect(after).not.toEqual(before);
    expect(shaOf(result)).not.toBe(shaOf(full));
  });

  it("with the value that it has gives the same definition", () => {
    const same = field === "tools" ? full.tools.map(({ name }) => name).toReversed() : full[field];
    expect(shaOf(fork({ [field]: same }))).toBe(shaOf(full));
    expect(shaOf(fork({ [field]: undefined }))).toBe(shaOf(full));
  });
});

it.each(fields.filter((field) => !isRequired(shape[field])))("%s is unset by null", (field) => {
  // The tool that comes with it goes with it, and so does the one that waits for a person.
  const more = field === "spawn" ? { tools: ["search", "write", "read"] } : field === "approvals" ? { tools: ["write", "read", "agent"], claim_check: null } : {};
  expect(fork({ [field]: null, ...more })).not.toHaveProperty(field);
});

it.each(fields.filter((field) => isRequired(shape[field]) && field !== "tools"))("%s cannot be unset", (field) => {
  expect(problems({ [field]: null })).toEqual([`${field} cannot be unset: it must have a value`]);
});

describe.each(inGroups)("%s.%s", (group, field) => {
  const value = (changed[group] as Readonly<Record<string, unknown>>)[field];

  it("is merged: it alone changes, and the hash with it", () => {
    const result = fork({ [group]: { [field]: value } });
    expect(result[group]).toEqual({ ...full[group], [field]: value });
    expect(shaOf(result)).not.toBe(shaOf(full));
  });

  it("with the value that it has, or absent, gives the same hash", () => {
    const same = (full[group] as Readonly<Record<string, unknown>>)[field];
    expect(shaOf(fork({ [group]: { [field]: same } }))).toBe(shaOf(full));
    expect(shaOf(fork({ [group]: { [field]: undefined } }))).toBe(shaOf(full));
  });

  it("is unset by null, unless its group cannot be without", () => {
    if (isRequired(groupShape(group)?.[field])) return expect(problems({ [group]: { [field]: null } })).toEqual([`${group}.${field} cannot be unset: it must have a value`]);
    const result = fork({ [group]: { [field]: null } });
    expect(result[group]).not.toHaveProperty(field);
    expect(shaOf(result)).not.toBe(shaOf(full));
  });
});

describe("the compaction policy", () => {
  const { compaction: _, ...without } = full;

  it.each(Object.keys(compactionPolicy.shape))("%s set where there was no policy is a new definition, unset again the old one", (field) => {
    // Alone it must be right beside the defaults.
    const value = (changed.compaction as Readonly<Record<string, unknown>>)[field];
    const forked = fork({ compaction: { [field]: value } }, without);
    expect(shaOf(forked)).not.toBe(shaOf(without));
    expect(shaOf(fork({ compaction: { [field]: null } }, forked))).toBe(shaOf(without));
  });

  it("that is empty is none", () => {
    expect(shaOf(fork({ compaction: {} }, without))).toBe(shaOf(without));
    expect(fork({ compaction: {} }, without)).not.toHaveProperty("compaction");
  });
});

it("of nothing is the same definition, and neither base nor overlay is changed", () => {
  const base = structuredClone(full);
  const overlay = { compaction: { keep_last_n: 9 }, tools: ["read", "agent"], claim_check: null, approvals: null };
  expect(shaOf(fork({}, base))).toBe(shaOf(full));
  fork(overlay, base);
  expect(base).toEqual(full);
  expect(overlay).toEqual({ compaction: { keep_last_n: 9 }, tools: ["read", "agent"], claim_check: null, approvals: null });
});

describe("what an overlay may not say", () => {
  it.each([
    ["another name", { name: "other" }, ["name cannot be changed: a fork is another definition of the same agent"]],
    ["a field that does not exist", { colour: "red" }, [expect.stringMatching(/^colour is not a known field: there are .*compaction.*tools$/)]],
    ["such a field of a group", { compaction: { keepLastN: 1 } }, [expect.stringMatching(/^compaction\.keepLastN is not a known field: there are enabled, .*keep_last_n/)]],
    ["a number out of its range", { compaction: { autocompact_at_pct: 40 } }, ["compaction.autocompact_at_pct must be a whole number from 50 to 95, not 40"]],
    [
      "several of them, each with its range",
      { limits: { max_turns: 0 }, settings: { temperature: 3 } },
      expect.arrayContaining([expect.stringMatching(/^limits\.max_turns .*from 1 to 1000000, not 0/), expect.stringMatching(/^settings\.temperature .*from 0 to 2, not 3/)]),
    ],
    ["what contradicts a field of the base", { compaction: { prefetch_at_pct: 85 } }, [expect.stringMatching(/^compaction\.prefetch_at_pct must be below autocompact_at_pct/)]],
    [
      "the same, by unsetting the field it leaned on",
      { compaction: { summarizer: null, after_bytes: 4096 } },
      [expect.stringMatching(/^compaction\.after_bytes must be a whole number above 4096/)],
    ],
    ["a model without its provider", { model: "gpt" }, [expect.stringMatching(/^model "gpt" must name its provider/), expect.stringContaining("is not granted")]],
    [
      "a preview larger than the limit of the base",
      { claim_check: { preview_bytes: 1001 } },
      [expect.stringMatching(/^claim_check\.preview_bytes must be a whole number from 0 to 1000/)],
    ],
    ["what JSON cannot hold", { input_schema: { check: () => true } }, [expect.stringContaining("function")]],
    ["nothing at all", null as unknown as object, [" must be an object of fields to change"]],
  ])("%s", (_, overlay, expected) => {
    expect(problems(overlay)).toEqual(expected);
  });

  it("part of a group that is not there and cannot be without the rest", () => {
    const { claim_check: _, ...without } = full;
    expect(problems({ claim_check: { over_bytes: 5000 } }, without)).toEqual(["claim_check.tools is missing"]);
  });
});

describe("tools", () => {
  it("are kept by name, in the base's order, as they are", () => {
    expect(fork({ tools: ["agent", "read", "search"] }).tools).toEqual([full.tools[0], full.tools[2], full.tools[3]]);
    expect(fork({ tools: null, claim_check: null, approvals: null, spawn: null }).tools).toEqual([]);
  });

  it("cannot be added", () => {
    expect(problems({ tools: ["search", "delete"] })).toEqual(["tools names delete; a fork keeps some of search, write, read, agent and cannot add any"]);
    expect(problems({ tools: [toolNamed("search")] })[0]).toMatch(/^tools\.0 /);
  });

  it("that are withheld must be kept, or the setting changed too", () => {
    expect(problems({ tools: ["read", "agent"] })).toEqual([
      "claim_check.tools names search, which the fork does not have",
      "approvals.tools names search, which the fork does not have",
    ]);
    expect(fork({ tools: ["read", "agent"], claim_check: { tools: ["read"] }, approvals: { tools: ["*"] } }).claim_check?.tools).toEqual(["read"]);
    const reader = { ...full, tools: [...full.tools, toolNamed("context")] };
    expect(problems({ claim_check: { tools: ["context"] } }, reader)).toEqual([expect.stringMatching(/^claim_check\.tools names context, by which/)]);
  });
});

describe("approvals", () => {
  const all = { ...full, approvals: { tools: ["*"] } };

  it("may be added to and not taken away, by whatever name", () => {
    expect(problems({ approvals: null })).toEqual(["approvals.tools would let search run unasked; a fork may only add to what waits for a person"]);
    expect(problems({ approvals: { tools: ["write"] } })).toEqual([expect.stringContaining("would let search run unasked")]);
    expect(fork({ approvals: { tools: ["write", "search"] } }).approvals?.tools).toEqual(["write", "search"]);
    expect(fork({ approvals: { tools: ["*"] } }).approvals?.tools).toEqual(["*"]);
    expect(problems({ approvals: { tools: ["search"] } }, all)).toEqual([expect.stringContaining("would let write, read, agent run unasked")]);
    expect(fork({ approvals: { tools: ["search", "write", "read", "agent"] } }, all).approvals?.tools).toHaveLength(4);
  });

  it("that nobody gives are not given by time", () => {
    const said = expect.stringMatching(/^approvals\.on_expiry would approve .*; a fork may not$/) as string;
    expect(problems({ approvals: { on_expiry: "approve", expires_ms: 1 } }, all)).toEqual([said]);
    expect(fork({ approvals: { on_expiry: "deny" } }).approvals?.on_expiry).toBe("deny");
    // Sooner is laxer too.
    expect(problems({ approvals: { expires_ms: 1 } })).toEqual([said]);
    expect(fork({ approvals: { expires_ms: 5_000 } }).approvals?.expires_ms).toBe(5_000);
    // Also where the tool itself asks, and the agent said nothing.
    const asks = { ...full, approvals: undefined, tools: full.tools.map((one) => (one.name === "search" ? { ...one, approval: { when: "always" as const } } : one)) };
    expect(problems({ approvals: { tools: ["search"], expires_ms: 1, on_expiry: "approve" } }, asks)).toEqual([said]);
    expect(fork({ approvals: { tools: ["search"], expires_ms: 1 } }, asks).approvals?.tools).toEqual(["search"]);
  });
});

describe("spawn", () => {
  const few = { ...full, spawn: { agents: ["helper", "checker"] } };
  const { spawn: _, ...none } = full;

  it("may be narrowed and not widened", () => {
    expect(fork({ spawn: { agents: ["helper"] } }, few).spawn?.agents).toEqual(["helper"]);
    expect(problems({ spawn: { agents: ["helper", "stranger"] } }, few)).toEqual(["spawn.agents would add stranger; a fork may only narrow them, which are helper, checker"]);
    expect(problems({ spawn: { agents: ["*"] } }, few)[0]).toMatch(/^spawn\.agents would add \*/);
    expect(problems({ spawn: { agents: ["helper"] } }, none)[0]).toMatch(/^spawn cannot be added/);
  });

  it("and its tool go together", () => {
    expect(problems({ spawn: null })).toEqual(["spawn cannot be unset while tool agent is kept; leave it out of tools"]);
    expect(problems({ tools: ["search", "write"] })).toEqual(["spawn has no effect without tool agent; unset it, or keep the tool"]);
    // An agent's own tool may have that name.
    expect(fork({ instructions: "x" }, none).tools).toHaveLength(4);
  });
});

describe("grants", () => {
  it("may be narrowed and not widened", () => {
    expect(fork({ grants: ["model:offline:a", "model:offline:b", "tool:search"] }).grants).toHaveLength(3);
    expect(problems({ grants: ["model:*", "tool:search"] })).toEqual([
      expect.stringMatching(/^grants would add model:\*; a fork may only narrow what is granted, which is model:offline:\*/),
    ]);
    expect(problems({ grants: ["model:offline:*", "mcp:github/*"] })).toEqual([expect.stringContaining("mcp:github/*")]);
    const narrow = { ...full, grants: ["model:offline:*", "tool:search"] };
    // Without grants it would have all that it names.
    expect(problems({ grants: null }, narrow)[0]).toMatch(/^grants would add tool:write, tool:read, tool:agent, agent:helper, agent:\*, summarizer:\*/);
  });

  it("of a base without any are what it names itself", () => {
    const { grants: _, ...open } = full;
    expect(fork({ grants: ["model:offline:a", "model:offline:b", "tool:search"] }, open).grants).toHaveLength(3);
    expect(problems({ grants: ["model:offline:*"] }, open)[0]).toMatch(/^grants would add model:offline:\*/);
    // A fork's owner names its model as the base's owner did.
    expect(fork({ model: "openai:gpt-5", grants: ["model:openai:gpt-5", "model:offline:b"] }, open).grants).toHaveLength(2);
  });

  it("must leave the model that the fork has", () => {
    expect(problems({ model: "openai:gpt-5" })).toEqual(['model "openai:gpt-5" is not granted: of models there are model:offline:*']);
    expect(problems({ grants: ["tool:*"] })).toEqual([
      'model "offline:a" is not granted: of models there are none',
      'fallbacks.0 "offline:b" is not granted: of models there are none',
    ]);
  });
});
