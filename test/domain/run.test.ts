import { describe, expect, it } from "vitest";
import { CapstanError } from "../../src/domain/error.ts";
import { assertTransition, isTerminal, runStatuses, TransitionError, type RunStatus } from "../../src/domain/run.ts";

const allowed: { readonly [S in RunStatus]: readonly RunStatus[] } = {
  queued: ["running", "waiting", "completed", "failed", "cancelled"],
  running: ["running", "waiting", "completed", "failed", "cancelled"],
  waiting: ["running", "waiting", "completed", "failed", "cancelled"],
  completed: [],
  failed: [],
  cancelled: [],
};

describe.each(runStatuses)("a %s run", (from) => {
  it.each(runStatuses)("may or may not become %s", (to) => {
    if (allowed[from].includes(to)) {
      expect(() => assertTransition(from, to)).not.toThrow();
      return;
    }
    let thrown: unknown;
    try {
      assertTransition(from, to);
    } catch (error) {
      thrown = error;
    }
    expect(thrown).toBeInstanceOf(TransitionError);
    expect(thrown).toBeInstanceOf(CapstanError);
    expect(thrown).toMatchObject({ code: "TRANSITION_INVALID", details: { from, to }, message: `a ${from} run cannot become ${to}` });
  });

  it("is terminal exactly when nothing follows", () => {
    expect(isTerminal(from)).toBe(["completed", "failed", "cancelled"].includes(from));
  });
});
