import { expect, it } from "vitest";
import { RunFinishedError } from "../../src/domain/append-error.ts";
import { CapstanError, recordError } from "../../src/domain/error.ts";
import type { JsonObject } from "../../src/domain/json.ts";

it("records code, message, details and causes of our own errors", () => {
  const error = new RunFinishedError("r1", "failed");
  error.cause = new Error("outer", { cause: "inner" });
  expect(recordError(error, "OTHER")).toEqual({
    code: "RUN_FINISHED",
    message: "run r1 has ended (failed); start a new run",
    details: { run_id: "r1", state: "failed" },
    cause: ["outer", "inner"],
  });
});

it("gives a foreign error the fallback code, and no stack", () => {
  expect(recordError(new TypeError("no"), "TOOL_FAILED")).toEqual({ code: "TOOL_FAILED", message: "no" });
  expect(recordError(new RangeError(), "TOOL_FAILED").message).toBe("RangeError");
});

it.each([
  ["a string", "text", "text"],
  ["undefined", undefined, "thrown value null"],
  ["an object", { status: 500 }, 'thrown value {"status":500}'],
  ["a symbol", Symbol("s"), "a thrown symbol"],
  ["a Map", new Map(), "a thrown object"],
])("describes %s that was thrown", (_, thrown, message) => {
  expect(recordError(thrown, "X").message).toBe(message);
});

it("never throws: messages that are no strings, getters that throw, causes that go round", () => {
  const message = Object.assign(new Error("x"), { message: { reason: "odd" } as unknown as string });
  expect(recordError(message, "X").message).toBe('thrown value {"reason":"odd"}');
  const hostile = Object.defineProperties(new Error("x"), {
    message: {
      get() {
        throw new Error("no message for you");
      },
    },
    cause: {
      get() {
        throw new Error("no cause either");
      },
    },
  });
  expect(recordError(hostile, "X")).toEqual({ code: "X", message: "a thrown object that cannot be read" });
  const round = new Error("round");
  round.cause = round;
  expect(recordError(round, "X").cause).toHaveLength(5);
});

it("gives what can be stored: no NUL, no lone surrogate, bounded", () => {
  class Damaged extends CapstanError {
    override readonly name = "Damaged";
    readonly code = "DAMAGED";
    override readonly details: JsonObject = { text: "\u0000" };
  }
  expect(recordError(new Damaged("a\u0000\uD800", { cause: "\u0000" }), "X")).toEqual({
    code: "DAMAGED",
    message: "a\uFFFD\uFFFD",
    details: { text: "\uFFFD" },
    cause: ["\uFFFD"],
  });
  const long = recordError("😀".repeat(10_000), "X").message;
  expect(long).toHaveLength(4_000 + "… (20000 characters)".length);
  expect(recordError(`x${"😀".repeat(10_000)}`, "X").message.isWellFormed()).toBe(true);
});
