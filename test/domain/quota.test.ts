import { describe, expect, it } from "vitest";
import { mergeLimits, parseLimits, sharesOf, sliceOf, tenantOfBucket, type QuotaLimit } from "../../src/domain/quota.ts";

const limit = (over: Partial<QuotaLimit> = {}): QuotaLimit => ({ scope: "tenant", value: "*", kind: "turn", unit: "calls", window: "minute", amount: 10, ...over });
const acme = { kind: "turn", tenant: "acme", agent: "writer", model: "a:b" } as const;
const buckets = (limits: readonly QuotaLimit[], subject: Parameters<typeof sharesOf>[1] = acme) => sharesOf(limits, subject).map(({ bucket }) => bucket);

describe("the buckets of a call", () => {
  it("are those of its kind, tenant, agent and model", () => {
    const limits = [
      limit({ scope: "overall" }),
      limit(),
      limit({ scope: "agent", value: "writer" }),
      limit({ scope: "agent", value: "reader" }),
      limit({ scope: "model", unit: "tokens" }),
      limit({ kind: "summary" }),
    ];
    expect(buckets(limits)).toEqual(["turn/calls/minute/agent/writer", "turn/calls/minute/overall/*", "turn/calls/minute/tenant/acme", "turn/tokens/minute/model/a:b"]);
    expect(buckets(limits, { ...acme, kind: "tool", model: undefined })).toEqual([]);
    expect(buckets(limits, { ...acme, kind: "summary" })).toEqual(["summary/calls/minute/tenant/acme"]);
  });

  it("a limit of its own replaces the one for each, on the same measure only", () => {
    const limits = [limit(), limit({ value: "acme", amount: 99 }), limit({ window: "day" })];
    expect(sharesOf(limits, acme).map((share) => [share.bucket, share.limit.amount])).toEqual([
      ["turn/calls/day/tenant/acme", 10],
      ["turn/calls/minute/tenant/acme", 99],
    ]);
  });

  it("say which tenant they belong to, whatever its name", () => {
    const [bucket = ""] = buckets([limit()], { ...acme, tenant: "a/b/tenant/c" });
    expect(tenantOfBucket(bucket)).toBe("a/b/tenant/c");
    expect(tenantOfBucket("turn/calls/minute/overall/*")).toBeUndefined();
  });
});

it("a slice is a twentieth, and at least one", () => {
  expect([0, 1, 19, 20, 1_000].map((amount) => sliceOf(limit({ amount })))).toEqual([1, 1, 1, 1, 50]);
});

it("stored limits replace configured ones of the same measure and value", () => {
  const merged = mergeLimits([limit({ amount: 1 }), limit({ value: "acme", amount: 2 })], [limit({ amount: 3 }), limit({ window: "day", amount: 4 })]);
  expect(merged.map(({ amount }) => amount)).toEqual([2, 3, 4]);
});

describe("a configured limit", () => {
  it("needs no value, and no window when it counts slots", () => {
    expect(parseLimits([{ scope: "overall", kind: "tool", unit: "concurrent", amount: 3 }])).toEqual({
      ok: true,
      limits: [{ scope: "overall", value: "*", kind: "tool", unit: "concurrent", window: "none", amount: 3 }],
    });
  });

  it.each([
    [{ scope: "overall", kind: "turn", unit: "calls", amount: 1 }, "quotas.0.window"],
    [{ scope: "overall", kind: "turn", unit: "concurrent", window: "day", amount: 1 }, "quotas.0.window"],
    [{ scope: "overall", value: "acme", kind: "turn", unit: "calls", window: "day", amount: 1 }, "quotas.0.value"],
    [{ scope: "tenant", kind: "turn", unit: "calls", window: "day", amount: -1 }, "quotas.0.amount"],
    [{ scope: "user", kind: "turn", unit: "calls", window: "day", amount: 1 }, "quotas.0.scope"],
  ])("%j is refused at %s", (spec, path) => {
    const parsed = parseLimits([spec]);
    expect(parsed.ok ? [] : parsed.issues.map((issue) => issue.path)).toEqual([path]);
  });
});
