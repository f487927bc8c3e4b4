import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { eventSchemas, eventVersions, type CapstanEvent } from "../../src/domain/event.ts";
import { EventInvalidError, EventUnknownError, isEventType, toEvent, type StoredEvent } from "../../src/domain/upcast.ts";
import { storedJson } from "./arbitrary-json.ts";
import { run } from "./runs.ts";

const row = (change: Partial<StoredEvent>): StoredEvent => ({
  seq: 3,
  turn: 1,
  attempt: 0,
  epoch: 0,
  type: "run.pinned",
  version: 1,
  payload: { definition_sha: "sha256:1" },
  ...change,
});

function thrownBy(change: Partial<StoredEvent>): unknown {
  try {
    toEvent(row(change));
  } catch (error) {
    return error;
  }
  throw new Error("was accepted");
}

describe("reading a stored row", () => {
  it("gives back every event as it was written", () => {
    fc.assert(
      fc.property(run, (events) => {
        for (const event of events) expect(toEvent({ ...event, version: 1 })).toEqual(event);
      }),
    );
  });

  it("keeps the envelope, without the version", () => {
    const envelope = { stepKey: "m1", origin: "tool:search", actor: "ann", inboxId: "i" };
    expect(toEvent(row(envelope))).toEqual({ seq: 3, turn: 1, attempt: 0, epoch: 0, type: "run.pinned", payload: { definition_sha: "sha256:1" }, ...envelope });
  });

  it.each(["run.teleported", "", "RUN.CREATED", "toString", "__proto__", "constructor"])("refuses the unknown type %j", (type) => {
    expect(isEventType(type)).toBe(false);
    const error = thrownBy({ type });
    expect(error).toBeInstanceOf(EventUnknownError);
    expect(error).toMatchObject({ code: "EVENT_UNKNOWN", details: { type, version: 1, seq: 3 }, message: expect.stringContaining("run a newer worker") });
  });

  it.each(Object.keys(eventSchemas) as CapstanEvent["type"][])("refuses a newer %s, and one from before its first version", (type) => {
    const newer = eventVersions[type] + 1;
    expect(thrownBy({ type, version: newer })).toMatchObject({
      code: "EVENT_UNKNOWN",
      details: { version: newer },
      message: expect.stringContaining(`up to version ${eventVersions[type]}`),
    });
    for (const version of [0, -1]) expect(thrownBy({ type, version })).toBeInstanceOf(EventUnknownError);
  });

  it("refuses a payload that does not fit, naming the event and the place", () => {
    const error = thrownBy({ type: "tool.completed", payload: { call_id: "c", index: -1, name: "t", duration_ms: 1 } });
    expect(error).toBeInstanceOf(EventInvalidError);
    expect(error).toMatchObject({ code: "EVENT_INVALID", details: { type: "tool.completed", seq: 3 } });
    expect((error as Error).message).toMatch(/event 3 \(tool\.completed\).*index /);
    expect((error as Error).message).toMatch(/output /);
  });

  it.each(Object.keys(eventSchemas) as CapstanEvent["type"][])("refuses every payload of %s that is no object, with the same typed error", (type) => {
    for (const payload of [null, "x", 1, [], undefined]) expect(thrownBy({ type, payload })).toBeInstanceOf(EventInvalidError);
  });

  it("throws nothing but its two errors, whatever is stored", () => {
    fc.assert(
      fc.property(fc.constantFrom("run.unknown", ...Object.keys(eventSchemas)), fc.integer({ min: -1, max: 3 }), storedJson, (type, version, payload) => {
        try {
          toEvent(row({ type, version, payload }));
        } catch (error) {
          expect(error instanceof EventUnknownError || error instanceof EventInvalidError).toBe(true);
        }
      }),
    );
  });

  it.each([null, false, 0, "", [], { __proto__: null, a: 1 }])("takes %j for a tool's output", (output) => {
    const payload = { call_id: "c", index: 0, name: "t", output, duration_ms: 1 };
    expect(toEvent(row({ type: "tool.completed", payload })).payload).toEqual(payload);
  });
});
