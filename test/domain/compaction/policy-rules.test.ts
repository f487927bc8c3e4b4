import { describe, expect, it } from "vitest";
import { policyIssues, policyWarnings, resolvePolicy } from "../../../src/domain/compaction/policy.ts";

describe("the resolved policy", () => {
  it("has the defaults of the documentation", () => {
    const defaults = { enabled: false, autocompact_at_pct: 80, keep_first: true, keep_last_n: 4, target_percentage: 10 };
    expect(resolvePolicy(undefined)).toEqual(defaults);
    expect(resolvePolicy({})).toEqual(defaults);
    expect(resolvePolicy({ keep_last_n: undefined })).toEqual(defaults);
  });

  it("keeps what is set, false and 0 too", () => {
    expect(resolvePolicy({ enabled: true, keep_first: false, keep_last_n: 0, max_tokens: 2_000, at_tokens: 9 })).toMatchObject({
      enabled: true,
      keep_first: false,
      keep_last_n: 0,
      max_tokens: 2_000,
      at_tokens: 9,
    });
  });

  it("has no byte trigger under an explicit enabled: false", () => {
    expect(resolvePolicy({ enabled: false, after_bytes: 50_000 })).not.toHaveProperty("after_bytes");
    expect(resolvePolicy({ after_bytes: 50_000 })).toMatchObject({ enabled: false, after_bytes: 50_000 });
  });
});

describe("rules between fields", () => {
  it("prefetching begins before compaction is due, also by default", () => {
    expect(policyIssues({ prefetch_at_pct: 79 })).toEqual([]);
    expect(policyIssues({ prefetch_at_pct: 80 })).toEqual([{ path: "prefetch_at_pct", message: "must be below autocompact_at_pct, from 1 to 79, not 80" }]);
    expect(policyIssues({ autocompact_at_pct: 60, prefetch_at_pct: 70 })[0]?.message).toContain("from 1 to 59, not 70");
  });

  it("after_bytes leaves room for more than the summary, and the message names a good value", () => {
    expect(policyIssues({ after_bytes: 4_097 })).toEqual([]);
    expect(policyIssues({ after_bytes: 4_096 })[0]).toMatchObject({
      path: "after_bytes",
      message: expect.stringMatching(/above 4096 \(max_tokens 1024 x 4\), not 4096.*16384/) as string,
    });
    expect(policyIssues({ after_bytes: 8_000, max_tokens: 2_000 })).toHaveLength(1);
    expect(policyIssues({ after_bytes: 8_001, max_tokens: 2_000 })).toEqual([]);
  });

  it("does not judge the size of a summarizer of the user's own", () => {
    expect(policyIssues({ after_bytes: 100, summarizer: "mine" })).toEqual([]);
    expect(policyWarnings({ after_bytes: 100, summarizer: "mine" })).toEqual([]);
  });

  it("warns below twice the summary, once", () => {
    expect(policyWarnings({ after_bytes: 8_191 })).toMatchObject([{ path: "after_bytes", message: expect.stringContaining("16384") as string }]);
    expect(policyWarnings({ after_bytes: 8_192 })).toEqual([]);
    expect(policyWarnings({ after_bytes: 4_000 })).toEqual([]);
    expect(policyWarnings(undefined)).toEqual([]);
  });
});
