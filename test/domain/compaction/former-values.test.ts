/** Which later sentence takes the place of which, in extracts. */
import { describe, expect, it } from "vitest";
import { extractSummary } from "../../../src/domain/compaction/extract.ts";

const extract = (...lines: readonly string[]): string => extractSummary({ record: lines.map((line) => `user: ${line}`).join("\n"), maxBytes: 4_000 });

describe("a later sentence takes the place of an earlier one", () => {
  it.each([
    [
      "in the middle of a line",
      "Thank you for that. The number of desk d1234 is 555-01111. It rains.",
      "By the way. The number of desk d1234 is now 555-02222. It is cold.",
      "555-01111",
      "555-02222",
    ],
    ["in other words", "Call desk d1234 under 555-01111, please.", "Not under the old number, please: desk d1234 has 555-02222.", "555-01111", "555-02222"],
    ["as a label", "Desk d1234: 555-01111", "Desk d1234: 555-02222", "555-01111", "555-02222"],
    ["with a word of correction before it", "The port is 8080.", "Actually, the port is 9090.", "8080", "9090"],
    ["as a change", "Our deadline is 2026-05-01.", "The deadline has been moved to 2026-06-01.", "2026-05-01", "2026-06-01"],
  ])("%s", (_, before, after, old, now) => {
    const text = extract(before, "Something else about 4711.", after);
    expect(text).toContain(now);
    expect(text).not.toContain(old);
    expect(text).toContain("4711");
  });

  it("also where an earlier summary holds the former one", () => {
    const text = extractSummary({ record: "user: Desk d1234 has the new number 555-02222.", previousSummary: "FACTS:\nDesk d1234 has 555-01111.", maxBytes: 1_000 });
    expect(text).toContain("555-02222");
    expect(text).not.toContain("555-01111");
  });
});

describe("stay beside each other", () => {
  it.each<[string, readonly string[]]>([
    ["two open points", ["Still open: the refund for TK-10001 waits for the airline.", "Still open: the refund for TK-10002 waits for the airline."]],
    ["two things to do", ["TODO: send the form for TK-10001.", "To do: send the form for TK-10002."]],
    ["open points with a statement in them", ["Still open: the refund TK-10001 is not paid.", "Still open: the refund TK-10002 is not paid."]],
    ["values of two things", ["The number of desk d1111 is 555-01111.", "The number of desk d2222 is now 555-02222."]],
    ["errors of two nodes", ["E_UNREACHABLE: node db-10001 refused the connection", "E_UNREACHABLE: node db-10002 refused the new connection"]],
    ["two things that share a date", ["Desk d1111 closes on 2026-05-01.", "Desk d2222 now closes on 2026-05-01."]],
    ["a value and what else its sentence says", ["Desk d1111 has 555-01111 and desk d2222 has 555-02222.", "The new number of desk d1111 has to be found: 555-09999."]],
  ])("%s", (_, lines) => {
    const text = extract(...lines);
    for (const line of lines) expect(text).toContain(line);
  });
});
