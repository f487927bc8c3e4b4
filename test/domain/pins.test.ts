import { expect, it } from "vitest";
import { checkPin, MAX_PIN_CHARS, MAX_PINS, MAX_PINS_BYTES, PinRefusedError, type PinRefusal } from "../../src/domain/compaction/pins.ts";

function refusalOf(text: string, pins: readonly string[] = []): { readonly code: PinRefusal; readonly message: string } {
  try {
    checkPin(text, pins);
  } catch (error) {
    if (error instanceof PinRefusedError) return error;
    throw error;
  }
  throw new Error("was not refused");
}

it("takes what is new, and knows what is pinned already, even when there is no room left", () => {
  const full = Array.from({ length: MAX_PINS }, (_, i) => `fact ${i}`);
  expect(checkPin("fact", [])).toBe("new");
  expect(checkPin("fact 31", full)).toBe("known");
});

it.each(["", " \n\t"])("refuses %j, which says nothing", (text) => {
  expect(refusalOf(text).code).toBe("PIN_EMPTY");
});

it("counts a pin's length in characters, not in code units", () => {
  expect(checkPin("😀".repeat(MAX_PIN_CHARS), [])).toBe("new");
  const refusal = refusalOf("😀".repeat(MAX_PIN_CHARS + 1));
  expect(refusal.code).toBe("PIN_TOO_LONG");
  expect(refusal.message).toContain("1001");
});

it("is full at 32 pins", () => {
  const pins = Array.from({ length: MAX_PINS - 1 }, (_, i) => `fact ${i}`);
  expect(checkPin("one more", pins)).toBe("new");
  expect(refusalOf("two more", [...pins, "one more"])).toMatchObject({ code: "PINS_FULL", message: expect.stringContaining("there are 32") as string });
});

it("is full at 8,192 bytes of UTF-8, however few pins they are", () => {
  const pins = ["€".repeat(1_000), "€".repeat(999), "€".repeat(730)];
  const left = MAX_PINS_BYTES - pins.reduce((sum, pin) => sum + Buffer.byteLength(pin), 0);
  expect(checkPin("x".repeat(left), pins)).toBe("new");
  expect(refusalOf("x".repeat(left + 1), pins).code).toBe("PINS_FULL");
});
