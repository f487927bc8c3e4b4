import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { fieldsWithoutEffect, inheritPolicy } from "../../../src/domain/compaction/inherit.ts";
import { compactionPolicy, resolvePolicy, type CompactionPolicy } from "../../../src/domain/compaction/policy.ts";

type Field = keyof CompactionPolicy;
type Values = { readonly [F in Field]-?: readonly [NonNullable<CompactionPolicy[F]>, NonNullable<CompactionPolicy[F]>, NonNullable<CompactionPolicy[F]>] };

/** Three different values of each field (of a boolean, two): for the spawn's override, the parent and the child. None conflicts with another field's default. */
const values: Values = {
  enabled: [false, true, false],
  autocompact_at_pct: [60, 70, 90],
  at_tokens: [1000, 2000, 3000],
  after_bytes: [100_000, 200_000, 300_000],
  keep_first: [false, true, false],
  keep_last_n: [0, 1, 2],
  target_percentage: [11, 22, 33],
  model: ["offline:a", "offline:b", "offline:c"],
  summarizer: ["first", "second", "third"],
  instruction: ["be short", "be exact", "be kind"],
  max_tokens: [1000, 2000, 3000],
  prefetch_at_pct: [10, 20, 30],
};
const fields = Object.keys(compactionPolicy.shape) as Field[];
const names = { childModel: "offline:child", parentModel: "offline:parent" };
const only = <F extends Field>(field: F, value: CompactionPolicy[F]): CompactionPolicy => ({ [field]: value });

it("knows every field of the schema", () => {
  expect(Object.keys(values).toSorted()).toEqual(fields.toSorted());
});

describe.each(fields)("%s", (field) => {
  const [override, parent, child] = values[field].map((value) => only(field, value));

  // Who sets it, and whose value counts.
  it.each([
    ["nobody", {}, undefined],
    ["the child", { child }, child],
    ["the parent", { parent }, parent],
    ["the parent and the child", { parent, child }, parent],
    ["the spawn", { override }, override],
    ["the spawn and the child", { override, child }, override],
    ["the spawn and the parent", { override, parent }, override],
    ["all three", { override, parent, child }, override],
  ])("set by %s", (_, policies, expected) => {
    const inherited = inheritPolicy({ ...policies, ...names });
    expect(inherited).toEqual({ set: expected, ignored: [], issues: [] });
  });

  it("goes on to a grandchild that sets another value, and to one that sets none", () => {
    const { set } = inheritPolicy({ override, parent, child, ...names });
    expect(inheritPolicy({ parent: set, child, ...names }).set).toEqual(override);
    expect(inheritPolicy({ parent: set, ...names }).set).toEqual(override);
  });

  it("leaves a gap that the child fills, whatever else its parent set", () => {
    const others = Object.fromEntries(fields.filter((other) => other !== field).map((other) => [other, values[other][1]])) as CompactionPolicy;
    expect(inheritPolicy({ parent: others, child, ...names }).set).toEqual({ ...others, ...child });
  });
});

describe("defaults", () => {
  it("come after the merge: what a parent has by default does not stand over what its child set", () => {
    const parent: CompactionPolicy = { enabled: true };
    const child: CompactionPolicy = { keep_last_n: 9, autocompact_at_pct: 55 };
    const { set } = inheritPolicy({ parent, child, ...names });
    expect(set).toEqual({ enabled: true, keep_last_n: 9, autocompact_at_pct: 55 });
    expect(resolvePolicy(set)).toMatchObject({ keep_first: true, target_percentage: 10, keep_last_n: 9, autocompact_at_pct: 55 });
  });

  it("are no part of what is inherited: a policy that nobody set stays none over generations", () => {
    expect(inheritPolicy({ parent: {}, child: { enabled: undefined }, override: {}, ...names }).set).toBeUndefined();
  });
});

describe("what is wrong between the fields of the merged policy", () => {
  it("is told although each was right where it was written", () => {
    const { issues } = inheritPolicy({ override: { autocompact_at_pct: 60 }, parent: { prefetch_at_pct: 70 }, child: {}, ...names });
    expect(issues).toMatchObject([{ path: "prefetch_at_pct", message: expect.stringContaining("from 1 to 59") }]);
  });

  it("is told of a size in bytes that the summary of another's size could fill", () => {
    const { issues } = inheritPolicy({ override: { after_bytes: 10_000 }, child: { max_tokens: 4000 }, ...names });
    expect(issues).toMatchObject([{ path: "after_bytes", message: expect.stringContaining("above 16000") }]);
  });
});

describe("a bare model name", () => {
  const claude = "anthropic:claude-opus-5";
  const gpt = "openai:gpt-5";

  it("goes to a child of the same provider", () => {
    expect(inheritPolicy({ parent: { model: "claude-haiku-4-5" }, childModel: "anthropic:claude-sonnet-5", parentModel: claude })).toMatchObject({
      set: { model: "claude-haiku-4-5" },
      ignored: [],
    });
  });

  it("is ignored by a child of another one, visibly, and the rest of the policy is not", () => {
    const inherited = inheritPolicy({ parent: { model: "claude-haiku-4-5", enabled: true }, childModel: gpt, parentModel: claude });
    expect(inherited.set).toEqual({ enabled: true });
    expect(inherited.ignored).toEqual([{ field: "model", reason: expect.stringMatching(/"claude-haiku-4-5".*openai/) }]);
  });

  it("that is ignored leaves the child its own", () => {
    expect(inheritPolicy({ parent: { model: "claude-haiku-4-5" }, child: { model: "gpt-5-mini" }, childModel: gpt, parentModel: claude }).set).toEqual({ model: "gpt-5-mini" });
  });

  it("is not of interest when the spawn names another", () => {
    const inherited = inheritPolicy({ override: { model: "gpt-5-nano" }, parent: { model: "claude-haiku-4-5" }, childModel: gpt, parentModel: claude });
    expect(inherited).toEqual({ set: { model: "gpt-5-nano" }, ignored: [], issues: [] });
  });

  it.each(["anthropic:claude-haiku-4-5", "openai:gpt-5-mini", "ollama:llama3:8b"])("with its provider's prefix goes to every child: %s", (model) => {
    expect(inheritPolicy({ parent: { model }, childModel: gpt, parentModel: claude })).toEqual({ set: { model }, ignored: [], issues: [] });
  });

  it("with a tag is bare, unless a server has that name", () => {
    const input = { parent: { model: "llama3:8b" }, childModel: gpt, parentModel: "ollama:llama3:70b" };
    expect(inheritPolicy(input)).toMatchObject({ set: undefined, ignored: [{ field: "model" }] });
    expect(inheritPolicy({ ...input, isProvider: (name) => name === "llama3" })).toMatchObject({ set: { model: "llama3:8b" }, ignored: [] });
    // The parent's own server needs no catalogue.
    expect(inheritPolicy({ parent: { model: "lab:small" }, childModel: gpt, parentModel: "lab:large" })).toMatchObject({ set: { model: "lab:small" }, ignored: [] });
  });

  it("does not come back to a grandchild of the first provider: what was ignored is not in force", () => {
    const { set } = inheritPolicy({ parent: { model: "claude-haiku-4-5" }, childModel: gpt, parentModel: claude });
    expect(inheritPolicy({ parent: set, childModel: claude, parentModel: gpt })).toEqual({ set: undefined, ignored: [], issues: [] });
  });
});

describe("a summarizer in force", () => {
  it("makes what is for the built-in one without effect, whoever set it", () => {
    const inherited = inheritPolicy({
      override: { summarizer: "mine" },
      parent: { max_tokens: 2000 },
      child: { model: "offline:a", instruction: "be short", keep_last_n: 2 },
      ...names,
    });
    expect(inherited.set).toEqual({ summarizer: "mine", max_tokens: 2000, model: "offline:a", instruction: "be short", keep_last_n: 2 });
    expect(inherited.ignored.map(({ field }) => field)).toEqual(["model", "instruction", "max_tokens"]);
    for (const { reason } of inherited.ignored) expect(reason).toContain('"mine"');
  });

  it("is not there, and all have their effect", () => {
    expect(fieldsWithoutEffect({ max_tokens: 2000, model: "offline:a", instruction: "be short" })).toEqual([]);
    expect(fieldsWithoutEffect(undefined)).toEqual([]);
  });
});

describe("over generations", () => {
  const policy = fc.record(Object.fromEntries(fields.map((field) => [field, fc.constantFrom(...(values[field] as readonly unknown[]))])), {
    requiredKeys: [],
  }) as fc.Arbitrary<CompactionPolicy>;

  it("each field is that of the nearest spawn that set it, else of the farthest ancestor's definition that did", () => {
    fc.assert(
      fc.property(fc.array(fc.record({ override: policy, child: policy }), { minLength: 1, maxLength: 4 }), (generations) => {
        let parent: CompactionPolicy | undefined;
        for (const { override, child } of generations) parent = inheritPolicy({ override, parent, child, ...names }).set;
        for (const field of fields) {
          const spawned = generations.map(({ override }) => override[field]).findLast((value) => value !== undefined);
          const defined = generations.map(({ child }) => child[field]).find((value) => value !== undefined);
          expect(parent?.[field]).toBe(spawned ?? defined);
        }
      }),
      { numRuns: 300 },
    );
  });

  it("changes none of the policies that it is given", () => {
    const frozen = Object.freeze({ enabled: true });
    expect(inheritPolicy({ override: frozen, parent: frozen, child: frozen, ...names }).set).toEqual({ enabled: true });
  });
});
