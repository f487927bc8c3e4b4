import { expect, it } from "vitest";
import { formatTraceparent, parseTraceparent } from "../../src/telemetry/traceparent.ts";

const text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

it("reads a traceparent and writes the same", () => {
  const context = parseTraceparent(text);
  expect(context).toEqual({ traceId: "4bf92f3577b34da6a3ce929d0e0e4736", spanId: "00f067aa0ba902b7", traceFlags: 1, isRemote: true });
  expect(context && formatTraceparent(context)).toBe(text);
});

it("takes a later version with more fields, and only the flag it knows", () => {
  expect(parseTraceparent("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-03-more")?.traceFlags).toBe(1);
});

it.each([
  "",
  "nonsense",
  text.toUpperCase(),
  `${text}-more`,
  text.replace("00-", "ff-"),
  "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
  "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
  "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
])("finds no span in %j", (bad) => {
  expect(parseTraceparent(bad)).toBeUndefined();
});
